"""Reads what the pages show, with the ordinary clients: brokers, topics, replicas, groups, settings."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from nilometer.client.admin.admin import ResourceType
from nilometer.client.admin.cluster_health import cluster_health
from nilometer.client.admin.group_admin import GroupAdmin, lags, lags_by_topic
from nilometer.client.admin.group_descriptions import SHARE, GroupDescription, GroupListing
from nilometer.client.admin.health_check import HealthCheck
from nilometer.client.admin.replica_survey import Survey
from nilometer.client.admin.security_admin import (
    AclAdmin,
    EntityQuotas,
    QuotaAdmin,
    UserAdmin,
    UserCredential,
)
from nilometer.client.admin.transaction_admin import TransactionAdmin, TransactionListing
from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.cluster.acl import Acl, AclFilter
from nilometer.console.reading.connection import REQUEST_TIMEOUT_MS, ClusterConnection
from nilometer.console.views.groups import (
    COLUMNS,
    GroupRow,
    GroupsView,
    GroupView,
    ShareGroupView,
    ShareSettingsView,
    group_rows,
    group_view,
    groups_page,
    lag_by_topic,
    settings_of,
    share_group_view,
)
from nilometer.console.views.lists import (
    Asked,
    TableView,
    TransactionsView,
    acls_view,
    page_of,
    quotas_view,
    transactions_page,
    transactions_view,
    users_view,
)
from nilometer.console.views.overview import LogDirRow, OverviewView, log_dir_rows, overview_view
from nilometer.console.views.partition import Eligible, PartitionView, partition_view
from nilometer.console.views.rates import AppendRates, Chart, Sample, chart
from nilometer.console.views.topics import (
    MEASURED,
    NOTHING_MEASURED,
    ConfigRow,
    Measures,
    TopicsView,
    TopicView,
    config_rows,
    measures_of,
    topic_view,
    topics_page,
    topics_view,
)
from nilometer.runtime import Clock
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion

# What was read in the last minutes, for the charts: so many samples of so many subjects, and no more.
#
# A subject is read on for a while after it was last looked at, so that a page that is opened again has no
# gap.

logger = logging.getLogger("nilometer.console")

SAMPLE_MS = 5_000
SPAN_MS = 15 * 60_000
SUBJECTS_MAX = 32
SAMPLING_SHARE = 10
"""After a reading of t seconds the next begins after at least ``SHARE`` * t."""

Read = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class _Subject:
    read: Read
    looked_at_ms: int
    samples: dict[str, deque[Sample]] = field(default_factory=dict[str, deque[Sample]])
    """By the name of what is measured."""


class History:
    """Invariant: of each name there is at most one sample in SAMPLE_MS, and none older than SPAN_MS."""

    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._subjects: dict[str, _Subject] = {}
        self._task: asyncio.Task[None] | None = None

    def look(self, subject: str, read: Read) -> None:
        """Have ``subject`` read for SPAN_MS from now on; ``read`` must call :meth:`add`."""
        found = self._subjects.pop(subject, None) or _Subject(read, 0)
        found.looked_at_ms = self._clock.monotonic_ms()
        self._subjects[subject] = found  # the last one
        if len(self._subjects) > SUBJECTS_MAX:
            del self._subjects[next(iter(self._subjects))]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_on(), name="console-history")

    def add(self, subject: str, name: str, value: float | None) -> None:
        """Take a value, unless the last one was just before, or it is not known."""
        found = self._subjects.get(subject)
        if found is None or value is None:
            return
        now_ms = self._clock.monotonic_ms()
        samples = found.samples.setdefault(name, deque())
        if samples and now_ms - samples[-1].at_ms < SAMPLE_MS:
            return
        samples.append(Sample(now_ms, value))
        while samples[0].at_ms < now_ms - SPAN_MS:
            samples.popleft()

    def chart(self, subject: str, name: str, *, is_bytes: bool = False) -> Chart | None:
        """Return the chart of a name, which is its label; None without two samples."""
        found = self._subjects.get(subject)
        samples = () if found is None else found.samples.get(name, ())
        return chart(name, tuple(samples), span_ms=SPAN_MS, gap_ms=3 * SAMPLE_MS, is_bytes=is_bytes)

    @property
    def subjects(self) -> list[str]:
        """What is read on."""
        return list(self._subjects)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read_on(self) -> None:
        while self._subjects:
            began_ms = self._clock.monotonic_ms()
            for subject, found in list(self._subjects.items()):
                if began_ms - found.looked_at_ms > SPAN_MS:
                    self._subjects.pop(subject, None)
                    continue
                try:
                    await found.read()
                except KafkaError as error:  # a gap in the chart; the page says why
                    logger.debug("%s is not read: %s", subject, error)
            took_ms = self._clock.monotonic_ms() - began_ms
            await self._sleep(max(SAMPLE_MS, SAMPLING_SHARE * took_ms) / 1000)


# One reading for several subjects: it is shared while it is under way, and as long as it is fresh.

T = TypeVar("T")


class Shared(Generic[T]):
    """``fresh_ms``: for how long after its end a reading is used again."""

    def __init__(self, clock: Clock, read: Callable[[], Awaitable[T]], fresh_ms: int) -> None:
        self._clock = clock
        self._read = read
        self._fresh_ms = fresh_ms
        self._task: asyncio.Task[T] | None = None
        self._ended_ms = 0
        self._newest: T | None = None

    async def get(self) -> T:
        """Return a reading, and raise what it raised."""
        if self._task is None or self._is_stale(self._task):
            self._task = asyncio.ensure_future(self._once())
        return await asyncio.shield(self._task)

    @property
    def newest(self) -> T | None:
        """What was read last, however long ago; None before that."""
        return self._newest

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_stale(self, task: asyncio.Task[T]) -> bool:
        if not task.done():
            return False
        failed = task.cancelled() or task.exception() is not None
        return failed or self._clock.monotonic_ms() - self._ended_ms >= self._fresh_ms

    async def _once(self) -> T:
        try:
            self._newest = await self._read()
            return self._newest
        finally:
            self._ended_ms = self._clock.monotonic_ms()


HEALTH_FRESH_MS = 800
LISTS_FRESH_MS = 2_000
"""For how long the lists of topics and groups are used again: with thousands of them a reading costs much."""
GROUPS_READ_MAX = 500
"""Of more groups only those of a page are read: their members and offsets are asked for group by group."""
TOO_MANY_GROUPS = (
    "The list is sorted by name: the members and offsets of more than {:,} groups are not read at once."
)
CLEANUP_POLICY = "cleanup.policy"
OVERVIEW, RECORDS, BYTES = "overview", "records appended per second", "bytes appended per second"
LAG, LEFT = "behind the high watermark", "records left"
"""Subjects of the history, and names of what it measures."""


class BrokerView(msgspec.Struct, frozen=True):
    id: int
    log_dirs: tuple[LogDirRow, ...]
    configs: tuple[ConfigRow, ...]


class TopicConfigs(msgspec.Struct, frozen=True):
    topic: str
    configs: tuple[ConfigRow, ...]


class ClusterReader:
    """Each method returns a view, and raises KafkaError."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        clock = connection.runtime.clock
        self._clock = clock
        self._check = HealthCheck(
            connection.runtime, connection.bootstrap, REQUEST_TIMEOUT_MS, connection=connection.common
        )
        self._rates = AppendRates()
        self._history = History(clock)
        self._lists: list[Shared[Any]] = []
        self._whole = Shared(clock, self._survey_whole, HEALTH_FRESH_MS)
        self._overview = Shared(clock, self._read_overview, HEALTH_FRESH_MS)
        self._topics = self._list(self._read_topics)
        self._sizes = self._list(self._survey_of_topics)
        self._groups = self._list(self._read_groups)
        self._group_rows = self._list(self._read_all_groups)
        self._transactions = self._list(self._read_transactions)
        self._acls = self._list(self._read_acls)
        self._users = self._list(self._read_users)
        self._quotas = self._list(self._read_quotas)

    async def close(self) -> None:
        await self._history.close()
        for shared in (self._whole, self._overview, *self._lists):
            await shared.close()
        self._check.close()
        await self._connection.close()

    def _list(self, read: Callable[[], Awaitable[T]]) -> Shared[T]:
        """Return a shared reading of a list, which :meth:`close` ends."""
        made = Shared(self._clock, read, LISTS_FRESH_MS)
        self._lists.append(made)
        return made

    # --- brokers

    async def overview(self) -> OverviewView:
        self._history.look(OVERVIEW, self._overview.get)
        return await self._overview.get()

    async def broker(self, broker_id: int) -> BrokerView:
        admin = await self._connection.admin()
        if broker_id not in (await admin.client.refresh()).brokers:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not registered")
        configs = await admin.describe_configs(ResourceType.BROKER, str(broker_id), in_full=True)
        return BrokerView(
            broker_id, log_dir_rows(await admin.describe_log_dirs([broker_id])), config_rows(configs)
        )

    async def _read_overview(self) -> OverviewView:
        findings = await self._check.check(self._whole.get)
        health = cluster_health(findings)
        rate = None if findings.survey is None else self._rates.total()
        if rate is not None:
            self._history.add(OVERVIEW, RECORDS, rate.records_per_s)
            self._history.add(OVERVIEW, BYTES, rate.bytes_per_s)
        charts = (self._history.chart(OVERVIEW, name, is_bytes=name == BYTES) for name in (RECORDS, BYTES))
        return overview_view(health, findings.survey, rate, [one for one in charts if one is not None])

    async def _survey_whole(self) -> Survey:
        survey = await self._check.look()
        self._rates.read(survey, self._clock.monotonic_ms(), is_whole=True)
        return survey

    # --- topics

    async def topics(self, asked: Asked, *, internal: bool) -> TopicsView:
        """Return a page of the topics: its replicas are surveyed, or all if the order depends on them."""
        surveyed = await self._sizes.get() if asked.column in MEASURED else None
        listed = await self._topics.get() if surveyed is None else surveyed.metadata.topics
        shown = [topic for topic in listed.values() if internal or not topic.is_internal]
        if asked.column in MEASURED:
            measures = self._measures(surveyed)
            page = topics_page(shown, asked, measures)
        else:
            page = topics_page(shown, asked)
            measures = self._measures(await self._surveyed([row.name for row in page.items]))
        return topics_view(
            page, measures, await self._policies([row.name for row in page.items]), internal=internal
        )

    async def topic(self, name: str) -> TopicView:
        survey, listed = await asyncio.gather(self._survey(name, None), self._groups.get())
        groups = await self._group_rows.get() if len(listed) <= GROUPS_READ_MAX else None
        return topic_view(survey, name, groups)

    async def partition(self, topic: str, partition: int) -> PartitionView:
        survey = await self._survey(topic, partition, segments=True)
        count = survey.metadata.partition_count(topic)
        if partition >= count:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {count} partitions; there is no partition {partition}",
            )
        return partition_view(survey, topic, partition, await self._eligible(topic, partition))

    async def topic_configs(self, topic: str) -> TopicConfigs:
        admin = await self._connection.admin()
        entries = await admin.describe_configs(ResourceType.TOPIC, topic, in_full=True)
        return TopicConfigs(topic, config_rows(entries))

    async def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises KafkaError if it does not exist."""
        admin = await self._connection.admin()
        found = (await admin.describe_topics([topic]))[topic]
        if isinstance(found, KafkaError):
            raise KafkaError(found.code, found.message or f"topic {topic} does not exist")
        return len(found.partitions)

    async def _survey(self, topic: str, partition: int | None, *, segments: bool = False) -> Survey:
        async with self._connection.survey() as survey:
            numbers = None if partition is None else [partition]
            found = await survey.look([topic], numbers, segments=segments)
        if topic in found.missing_topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic} does not exist")
        return found

    async def _eligible(self, topic: str, partition: int) -> Eligible:
        """Return the ELR of a partition; nothing from brokers that do not serve DescribeTopicPartitions."""
        admin = await self._connection.admin()
        try:
            response = await admin.client.send_to_any(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                lambda api: api.request(
                    topics=(api.make_request("TopicRequest", name=topic),),
                    response_partition_limit=1,
                    cursor=api.make_request("Cursor", topic_name=topic, partition_index=partition),
                ),
            )
        except UnsupportedVersion:
            return Eligible()
        for found in response.topics:
            for part in found.partitions:
                if part.partition_index == partition:
                    last = tuple(part.last_known_elr or ())
                    return Eligible(tuple(part.eligible_leader_replicas or ()), last[0] if last else None)
        return Eligible()

    async def _read_topics(self) -> Mapping[str, TopicMetadata]:
        found = await (await self._connection.admin()).list_topics()
        self._rates.keep(
            TopicPartition(name, part.partition) for name, topic in found.items() for part in topic.partitions
        )
        return found

    async def _survey_of_topics(self) -> Survey | None:
        return await self._known(self._whole.get())

    async def _surveyed(self, topics: Sequence[str]) -> Survey | None:
        """Survey the replicas of ``topics``; return None if the user may not describe one."""

        async def look() -> Survey:
            async with self._connection.survey() as survey:
                return await survey.look(topics)

        if (found := await self._known(look())) is not None:
            self._rates.read(found, self._clock.monotonic_ms(), is_whole=False)
        return found

    async def _known(self, survey: Awaitable[Survey]) -> Survey | None:
        try:
            return await survey
        except KafkaError as error:
            logger.info("The sizes of topics are not known: %s", error)
            return None

    def _measures(self, survey: Survey | None) -> Measures:
        return NOTHING_MEASURED if survey is None else measures_of(survey, self._rates.by_topic())

    async def _policies(self, topics: Sequence[str]) -> Mapping[str, str | None]:
        admin = await self._connection.admin()
        found = await admin.describe_topic_configs(topics, [CLEANUP_POLICY]) if topics else {}
        return {topic: configs[CLEANUP_POLICY].value for topic, configs in found.items()}

    # --- transactions, security

    async def transactions(self, asked: Asked, *, all_ids: bool) -> TransactionsView:
        """Return a page of the transactions that are open, or of all transactional ids; and those that hang,
        as the overview has found them: it is read meanwhile, and not waited for."""
        self._history.look(OVERVIEW, self._overview.get)
        admin = await self._connection.admin()
        transactions = TransactionAdmin(admin.client, admin.timeout_ms)
        listed, overview = await self._transactions.get(), self._overview.newest
        page = transactions_page(listed, asked, all_ids=all_ids)
        described = await transactions.describe(one.transactional_id for one in page.items)
        hanging = () if overview is None else overview.hanging
        return transactions_view(page, described, hanging, self._clock.wall_ms(), all_ids=all_ids)

    async def acls(self, asked: Asked) -> TableView:
        return acls_view(await self._acls.get(), asked)

    async def users(self, asked: Asked) -> TableView:
        return users_view(await self._users.get(), asked)

    async def quotas(self, asked: Asked) -> TableView:
        return quotas_view(await self._quotas.get(), asked)

    async def _read_transactions(self) -> list[TransactionListing]:
        admin = await self._connection.admin()
        await admin.client.refresh()  # a coordinator may have come or gone
        return await TransactionAdmin(admin.client, admin.timeout_ms).list_transactions()

    async def _read_acls(self) -> list[Acl]:
        admin = await self._connection.admin()
        return await AclAdmin(admin.client, admin.timeout_ms).list_acls(AclFilter())

    async def _read_users(self) -> list[UserCredential]:
        admin = await self._connection.admin()
        users = UserAdmin(self._connection.runtime, admin.client, admin.timeout_ms)
        return await users.list_credentials()

    async def _read_quotas(self) -> list[EntityQuotas]:
        admin = await self._connection.admin()
        return await QuotaAdmin(admin.client, admin.timeout_ms).list_quotas()

    # --- groups

    async def groups(self, asked: Asked) -> GroupsView:
        """Return a page of the groups, each with its members, topics and lag."""
        listed = await self._groups.get()
        if asked.column not in COLUMNS:
            page = groups_page(listed, asked)
        elif len(listed) <= GROUPS_READ_MAX:
            rows = await self._group_rows.get()
            return GroupsView(page_of(rows, lambda row: row.group_id, asked, COLUMNS))
        else:
            page = groups_page(listed, Asked(asked.query, asked.number))
            return GroupsView(
                page.showing(await self._rows_of(page.items)), TOO_MANY_GROUPS.format(GROUPS_READ_MAX)
            )
        return GroupsView(page.showing(await self._rows_of(page.items)))

    async def _read_all_groups(self) -> tuple[GroupRow, ...]:
        return await self._rows_of(await self._groups.get())

    async def _rows_of(self, listed: Sequence[GroupListing]) -> tuple[GroupRow, ...]:
        admin = await self._connection.admin()
        groups = GroupAdmin(admin.client, admin.timeout_ms)
        ids = [group.group_id for group in listed]
        shared = [group.group_id for group in listed if group.group_type == SHARE]
        described, offsets, starts = await asyncio.gather(
            groups.describe(ids),
            groups.committed_of([one for one in ids if one not in shared]),
            groups.share_offsets_of(shared),
        )
        known = {group: found for group, found in offsets.items() if not isinstance(found, KafkaError)}
        of_share = {group: found for group, found in starts.items() if not isinstance(found, KafkaError)}
        try:
            behind = await lags_by_topic(admin.client, known, admin.timeout_ms)
        except KafkaError as error:  # a leader that does not respond; the rest is shown all the same
            logger.info("The lag of groups is not known: %s", error)
            behind = {}
        left = {group: lag_by_topic(list(found.values())) for group, found in of_share.items()}
        return group_rows(listed, described, {**known, **of_share}, {**behind, **left})

    async def group(self, group_id: str) -> GroupView | ShareGroupView:
        self._history.look(_subject_of(group_id), partial(self._read_group, group_id))
        return await self._read_group(group_id)

    async def _read_group(self, group_id: str) -> GroupView | ShareGroupView:
        admin = await self._connection.admin()
        groups = GroupAdmin(admin.client, admin.timeout_ms)
        found = (await groups.describe([group_id]))[group_id]
        if isinstance(found, KafkaError):
            raise found
        if found.group_type == SHARE:
            return await self._read_share_group(groups, found)
        committed = await groups.committed(group_id)
        assigned = [partition for member in found.members for partition in member.assignment]
        view = group_view(found, await lags(admin.client, committed, assigned, admin.timeout_ms))
        subject = _subject_of(group_id)
        self._history.add(subject, LAG, view.lag)
        return replace(view, chart=self._history.chart(subject, LAG))

    async def _read_share_group(self, groups: GroupAdmin, group: GroupDescription) -> ShareGroupView:
        group_id = group.group_id
        offsets = (await groups.share_offsets_of([group_id]))[group_id]
        if isinstance(offsets, KafkaError):
            raise offsets
        assigned = [partition for member in group.members for partition in member.assignment]
        states, settings = await asyncio.gather(
            groups.share_partitions(group_id, sorted({*offsets, *assigned})), self._share_settings(group_id)
        )
        view = share_group_view(group, offsets, states, settings)
        subject = _subject_of(group_id)
        self._history.add(subject, LEFT, view.lag)
        return replace(view, chart=self._history.chart(subject, LEFT))

    async def _share_settings(self, group_id: str) -> ShareSettingsView | None:
        """Return the settings of a share group; None if the user may not see them."""
        admin = await self._connection.admin()
        try:
            entries = await admin.describe_configs(ResourceType.GROUP, group_id)
        except KafkaError as error:
            logger.info("The settings of group %s are not shown: %s", group_id, error)
            return None
        return settings_of({name: entry.value for name, entry in entries.items()})

    async def _read_groups(self) -> list[GroupListing]:
        admin = await self._connection.admin()
        await admin.client.refresh()  # a coordinator may have come or gone
        return await GroupAdmin(admin.client, admin.timeout_ms).list_groups()


def _subject_of(group_id: str) -> str:
    """Return the history's name of a group; one may be called "overview"."""
    return f"group {group_id}"
