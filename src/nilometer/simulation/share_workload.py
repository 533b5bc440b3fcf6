"""The share group of a run: who puts its records, also in transactions, its members, and their checks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from nilometer.broker.sharing.share_partitions import LedSharePartition
from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from nilometer.identifiers import topic_id_of
from nilometer.replication.leader import LeaderRole
from nilometer.runtime import Entropy, Runtime
from nilometer.share.partition_events import AcknowledgeType
from nilometer.simulation.checkers.history import LongHistory, Outcome
from nilometer.simulation.checkers.share_groups import FINDINGS_MAX, Fetch, Session, ShareLedger
from nilometer.simulation.checkers.transactions import Fate, TransactionLedger
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.workload.producers import Writer, WriterPlan
from nilometer.simulation.workload.transactions import V2, TransactionalProgram, TransactionPlan, make_client
from nilometer.simulation.world import Host, Program
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import batches
from nilometer.wire.records import decode_records

# Members of a share group, request by request: they fetch from each leader, work, and say what became of it.
#
# A member accepts, rejects or releases records, some of them late: it hangs over its lock, renews it, leaves
# the group, loses its connection on purpose. After :meth:`ShareMember.stop_disrupting` it accepts what it
# gets. An observer asks for the group's start offsets meanwhile.

CHANNEL = "share"
HEARTBEAT_S = 1.0
WAIT_MS = 300
RECORDS_MAX = 20
REQUEST_TIMEOUT_MS = 5_000
RETRY_S = 0.5
DECOMPRESSED_MAX = 1 << 20
ROUNDS = (20, 200)
"""Of fetches, until a member leaves."""
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
RENEW = AcknowledgeType.RENEW
SAID = {ACCEPT: "accepted", RELEASE: "released", REJECT: "rejected", RENEW: "renewed"}
REJOINS = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found)
SESSION_ERRORS = (ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch)

Leadership = Callable[[str, int], int | None]
"""Returns the number of the leadership of a partition, if the broker leads it now."""
Held = tuple[str, int, int]
"""A partition and its first and last offset."""


@dataclass(slots=True)
class _Leader:
    """What a member has to do with one broker."""

    session: Session
    epoch: int = 0
    partitions: set[str] = field(default_factory=set[str])


class ShareMember(Program):
    def __init__(
        self,
        name: str,
        host: Host,
        bootstrap_servers: str,
        group_id: str,
        topic: str,
        ledger: ShareLedger,
        leadership: Leadership,
    ) -> None:
        super().__init__(name, host)
        self.ledger = ledger
        self._bootstrap_servers = bootstrap_servers
        self.group_id = group_id
        self.topic = topic
        self.leadership = leadership
        self.is_undisturbed = False

    def stop_disrupting(self) -> None:
        self.is_undisturbed = True

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            try:
                async with make_client(runtime, self._bootstrap_servers, self.name) as client:
                    await client.topic(self.topic, 40_000)
                    await _Membership(self, client, runtime.entropy).live()
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(RETRY_S)

    @property
    def is_stopping(self) -> bool:
        return self._stopping


class _Membership:
    """From one joining of the group to the end of that membership."""

    def __init__(self, member: ShareMember, client: Client, entropy: Entropy) -> None:
        self._member = member
        self._client = client
        self._entropy = entropy
        self._ledger = member.ledger
        self._id = str(entropy.uuid())
        self._coordinator = Coordinator(client, member.group_id)
        self._epoch = 0
        self._next_beat_s = 0.0
        self._assigned: set[str] = set()
        self._leaders: dict[int, _Leader] = {}

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def live(self) -> None:
        low, high = ROUNDS
        rounds = low + self._entropy.below(high - low)
        try:
            while not self._member.is_stopping and (rounds > 0 or self._member.is_undisturbed):
                rounds -= 1
                await self._beat()
                by_broker = self._partitions_by_leader()
                for broker, partitions in by_broker.items():
                    await self._fetch(broker, partitions)
                if not by_broker:
                    await asyncio.sleep(RETRY_S)
                    self._client.request_refresh()
                await asyncio.sleep(self._entropy.uniform(0.0, 0.2))
            if self._entropy.below(3):
                await self._leave()
        finally:
            for leader in self._leaders.values():
                self._ledger.ends(leader.session)

    # --- membership

    async def _beat(self) -> None:
        if self._now_s < self._next_beat_s:
            return
        self._next_beat_s = self._now_s + HEARTBEAT_S
        try:
            answer = await self._heartbeat(self._epoch)
        except KafkaError as error:
            self._member.error_counts[error.code.name] += 1
            return
        if answer.error_code is ErrorCode.none:
            self._epoch = answer.member_epoch
            if answer.assignment is not None:
                self._assigned = {
                    f"{self._member.topic}-{index}"
                    for topic in answer.assignment.topic_partitions
                    for index in topic.partitions
                }
        elif answer.error_code in REJOINS:
            self._epoch, self._next_beat_s = 0, 0.0
        else:
            self._member.error_counts[answer.error_code.name] += 1
            self._coordinator.on_error(answer.error_code, self._coordinator.node_id)

    async def _heartbeat(self, epoch: int) -> Message:
        def make(api: Api) -> Message:
            return api.request(
                group_id=self._member.group_id,
                member_id=self._id,
                member_epoch=epoch,
                rack_id=None,
                subscribed_topic_names=(self._member.topic,) if epoch == 0 else None,
            )

        return await self._coordinator.ask(ApiKey.SHARE_GROUP_HEARTBEAT, make, timeout_ms=REQUEST_TIMEOUT_MS)

    async def _leave(self) -> None:
        for broker, leader in list(self._leaders.items()):
            self._ledger.ends(leader.session)
            try:
                await self._ask_fetch(broker, leader, -1, (), (), 0)
            except KafkaError as error:
                self._member.error_counts[error.code.name] += 1
        try:
            await self._heartbeat(-1)
        except KafkaError as error:
            self._member.error_counts[error.code.name] += 1

    # --- fetching

    def _partitions_by_leader(self) -> dict[int, list[str]]:
        topic = self._client.metadata.topics.get(self._member.topic)
        found: dict[int, list[str]] = {}
        for part in () if topic is None else topic.partitions:
            name = f"{self._member.topic}-{part.partition}"
            if name in self._assigned and part.leader_id in self._client.metadata.brokers:
                found.setdefault(part.leader_id, []).append(name)
        return found

    async def _fetch(self, broker: int, partitions: Sequence[str]) -> None:
        leader = self._leaders.get(broker)
        if leader is None or leader.session.is_over:
            leader = self._leaders[broker] = _Leader(Session(self._id, broker))
        added = [each for each in partitions if each not in leader.partitions]
        removed = [each for each in sorted(leader.partitions) if each not in partitions]
        sent_s = self._now_s
        leaderships = {
            each: number
            for each in partitions
            if (number := self._member.leadership(each, broker)) is not None
        }
        fetch = Fetch(leader.session, tuple(partitions), sent_s, leaderships)
        self._ledger.fetches(fetch)
        try:
            answer = await self._ask_fetch(broker, leader, leader.epoch, added, removed, WAIT_MS)
        except KafkaError as error:
            self._member.error_counts[error.code.name] += 1
            self._ledger.ends(leader.session)
            self._client.request_refresh()
            await asyncio.sleep(RETRY_S)
            return
        if not self._is_good(leader, answer.error_code):
            self._ledger.answered(fetch)
            return
        leader.epoch += 1
        leader.partitions = set(partitions)
        got = self._take(fetch, broker, answer)
        self._ledger.answered(fetch)
        for part in got:
            await self._work(broker, leader, part)

    def _is_good(self, leader: _Leader, error: ErrorCode) -> bool:
        if error is ErrorCode.none:
            return True
        self._member.error_counts[error.name] += 1
        if error in SESSION_ERRORS or leader.epoch == 0:
            self._ledger.ends(leader.session)
        return False

    async def _ask_fetch(
        self,
        broker: int,
        leader: _Leader,
        epoch: int,
        added: Sequence[str],
        removed: Sequence[str],
        wait_ms: int,
    ) -> Message:
        topic_id = self._topic_id()

        def make(api: Api) -> Message:
            parts = tuple(
                api.make_request("FetchPartition", partition_index=_index(each), acknowledgement_batches=())
                for each in added
            )
            topics = (api.make_request("FetchTopic", topic_id=topic_id, partitions=parts),) if parts else ()
            gone = tuple(map(_index, removed))
            forgotten = (
                (api.make_request("ForgottenTopic", topic_id=topic_id, partitions=gone),) if gone else ()
            )
            return api.request(
                group_id=self._member.group_id,
                member_id=self._id,
                share_session_epoch=epoch,
                max_wait=timedelta(milliseconds=wait_ms),
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=RECORDS_MAX,
                batch_size=RECORDS_MAX,
                topics=topics,
                forgotten_topics_data=forgotten,
            )

        connection = await self._client.connections.get(broker, CHANNEL)
        return await connection.request(ApiKey.SHARE_FETCH, make, timeout_ms=REQUEST_TIMEOUT_MS)

    def _topic_id(self) -> UUID:
        topic = self._client.metadata.topics.get(self._member.topic)
        if topic is None or topic.topic_id is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, self._member.topic)
        return topic.topic_id

    def _take(self, fetch: Fetch, broker: int, answer: Message) -> list[Held]:
        got: list[Held] = []
        for topic in answer.responses:
            for part in topic.partitions:
                name = f"{self._member.topic}-{part.partition_index}"
                if part.error_code is not ErrorCode.none:
                    self._member.error_counts[part.error_code.name] += 1
                    self._client.request_refresh()
                    continue
                values = _values(bytes(part.records or b""))
                leadership = self._member.leadership(name, broker)
                for one in part.acquired_records:
                    got.append((name, one.first_offset, one.last_offset))
                    for offset in range(one.first_offset, one.last_offset + 1):
                        if offset in values:
                            self._ledger.delivered(
                                fetch,
                                name,
                                offset,
                                values[offset],
                                one.delivery_count,
                                self._now_s,
                                leadership,
                            )
        return got

    # --- working

    async def _work(self, broker: int, leader: _Leader, held: Held) -> None:
        """Do something with records, and say what, or nothing at all."""
        if self._member.is_undisturbed:
            await self._say(broker, leader, held, ACCEPT)
            return
        lock_s = self._ledger.lock_s
        await asyncio.sleep(self._entropy.uniform(0.0, 0.3))
        chance = self._entropy.below(20)
        if chance < 11:
            await self._say(broker, leader, held, ACCEPT)
        elif chance < 13:
            await self._say(broker, leader, held, RELEASE)
        elif chance == 13:
            await self._say(broker, leader, held, REJECT)
        elif chance == 14:  # one half accepted, one released
            name, first, last = held
            middle = (first + last) // 2
            await self._say(broker, leader, (name, first, middle), ACCEPT)
            if middle < last:
                await self._say(broker, leader, (name, middle + 1, last), RELEASE)
        elif chance == 15:
            await asyncio.sleep(self._entropy.uniform(0.3, 0.8) * lock_s)
            if await self._say(broker, leader, held, RENEW):
                await asyncio.sleep(self._entropy.uniform(0.3, 0.8) * lock_s)
                await self._say(broker, leader, held, ACCEPT)
        elif chance == 16:  # late
            await asyncio.sleep(self._entropy.uniform(1.0, 1.8) * lock_s)
            await self._say(broker, leader, held, ACCEPT)
        elif chance == 17:
            self._ledger.ends(leader.session)
            (await self._client.connections.get(broker, CHANNEL)).close()
            self._ledger.counted["share connections given up"] += 1
        elif chance == 18:  # in the next fetch it is still held
            self._ledger.counted["share records forgotten"] += 1
        else:
            await self._say(broker, leader, held, ACCEPT)

    async def _say(self, broker: int, leader: _Leader, held: Held, kind: AcknowledgeType) -> bool:
        """Acknowledge; return whether the leader has taken it."""
        if leader.session.is_over:
            return False
        name, first, last = held
        offsets = range(first, last + 1)
        topic_id = self._topic_id()

        def make(api: Api) -> Message:
            batch = api.make_request(
                "AcknowledgementBatch", first_offset=first, last_offset=last, acknowledge_types=(kind,)
            )
            part = api.make_request(
                "AcknowledgePartition", partition_index=_index(name), acknowledgement_batches=(batch,)
            )
            topic = api.make_request("AcknowledgeTopic", topic_id=topic_id, partitions=(part,))
            return api.request(
                group_id=self._member.group_id,
                member_id=self._id,
                share_session_epoch=leader.epoch,
                is_renew_ack=kind == RENEW,
                topics=(topic,),
            )

        sent_s = self._now_s
        ends = kind in (ACCEPT, REJECT)
        for offset in offsets:
            self._ledger.acknowledges(leader.session, name, offset)
            if ends:
                self._ledger.maybe_done(name, offset)
        try:
            connection = await self._client.connections.get(broker, CHANNEL)
            answer = await connection.request(ApiKey.SHARE_ACKNOWLEDGE, make, timeout_ms=REQUEST_TIMEOUT_MS)
        except KafkaError as error:
            self._member.error_counts[error.code.name] += 1
            self._ledger.ends(leader.session)
            return False
        if not self._is_good(leader, answer.error_code):
            if ends:
                self._refused(name, offsets)
            return False
        leader.epoch += 1
        self._ledger.goes_on(leader.session)
        ((part,),) = [topic.partitions for topic in answer.responses]
        if part.error_code is not ErrorCode.none:
            self._member.error_counts[part.error_code.name] += 1
            self._ledger.counted["share acknowledgements refused"] += 1
            if ends and part.error_code is ErrorCode.invalid_record_state:  # else some may be written
                self._refused(name, offsets)
            return False
        for offset in offsets:
            self._ledger.acknowledged(leader.session, name, offset, SAID[kind], sent_s, self._now_s)
        return True

    def _refused(self, partition: str, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._ledger.refused(partition, offset)


def _index(partition: str) -> int:
    return int(partition.rpartition("-")[2])


def _values(data: bytes) -> dict[int, str]:
    """Return the values of the records in complete batches, by offset; without those of markers."""
    found: dict[int, str] = {}
    for position, header in batches(data):
        if not header.is_control:
            for record in decode_records(data, position, header, limit=DECOMPRESSED_MAX):
                found[record.offset] = (record.value or b"").decode().rstrip()
    return found


class ShareObserver(Program):
    """Asks for the start offsets of the group, again and again."""

    def __init__(
        self, name: str, host: Host, bootstrap_servers: str, group_id: str, topic: str, ledger: ShareLedger
    ) -> None:
        super().__init__(name, host)
        self._bootstrap_servers = bootstrap_servers
        self._group_id = group_id
        self._topic = topic
        self._ledger = ledger

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            try:
                async with make_client(runtime, self._bootstrap_servers, self.name) as client:
                    coordinator = Coordinator(client, self._group_id)
                    while not self._stopping:
                        await asyncio.sleep(runtime.entropy.uniform(0.2, 2.0))
                        await self._ask(coordinator)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(RETRY_S)

    async def _ask(self, coordinator: Coordinator) -> None:
        def make(api: Api) -> Message:
            group = api.make_request(
                "DescribeShareGroupOffsetsRequestGroup", group_id=self._group_id, topics=None
            )
            return api.request(groups=(group,))

        answer = await coordinator.ask(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, make, timeout_ms=4 * REQUEST_TIMEOUT_MS
        )
        (group,) = answer.groups
        coordinator.check(group.error_code, "offsets of the share group")
        for topic in group.topics:
            for part in topic.partitions:
                if part.error_code is ErrorCode.none:
                    self._ledger.counted["share start offsets asked for"] += 1
                    self._ledger.started(f"{topic.topic_name}-{part.partition_index}", part.start_offset)


GROUP = "share-workers"
TOPIC = "share-jobs"
PARTITIONS = 2
REPLICAS = 3
GROUP_CONFIGS = 32
SHARE_COORDINATOR = 2
SET_UP_MS = 120_000
TWO_IN_SYNC = {"min.insync.replicas": "2"}
INTERNAL: Mapping[str, Mapping[str, str]] = {
    GROUP_METADATA_TOPIC: TWO_IN_SYNC,
    TRANSACTION_STATE_TOPIC: {},
    SHARE_GROUP_STATE_TOPIC: {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlan:
    members: int
    limit: int
    """``group.share.delivery.count.limit``."""
    lock_ms: int
    max_record_locks: int
    per_second: float
    """Records put, and transactions begun half as often."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the brokers."""
        return {
            "offsets.topic.num.partitions": "2",
            "share.coordinator.state.topic.num.partitions": "2",
            "share.coordinator.snapshot.update.records.per.snapshot": "10",
            "share.coordinator.state.topic.prune.interval.ms": "5000",
            "transaction.state.log.num.partitions": "2",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "group.share.delivery.count.limit": str(self.limit),
            "group.share.record.lock.duration.ms": str(self.lock_ms),
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.partition.max.record.locks": str(self.max_record_locks),
            "group.share.session.timeout.ms": "8000",
            "group.share.min.session.timeout.ms": "1000",
            "group.share.heartbeat.interval.ms": "1000",
            "group.share.min.heartbeat.interval.ms": "500",
            "group.share.assignment.interval.ms": "100",
        }


class JobTransactions(TransactionalProgram):
    """Puts records in transactions, of which it aborts some."""

    async def _incarnation(self, runtime: Runtime) -> None:
        async with self._client(runtime) as client:
            session = self._session(client)
            await session.init()
            while not self._stopping:
                await asyncio.sleep(runtime.entropy.uniform(0.0, 2 * self.plan.gap_s))
                transaction = self._begin(session)
                partition = TopicPartition(TOPIC, runtime.entropy.below(PARTITIONS))
                for number in range(1 + runtime.entropy.below(2)):
                    value = f"{self.name}-{transaction.number}-{number}"
                    written = transaction.write(str(partition), value)
                    written.offset = await session.write(partition, [(None, value)])
                await asyncio.sleep(runtime.entropy.uniform(0.0, 0.5))
                await self._end(session, transaction, commit=runtime.entropy.below(3) > 0)
                if session.needs_new_epoch:
                    await session.init(goes_on=True)


class ShareWorkload:
    def __init__(self, cluster: Cluster, clients: Host, plan: SharePlan, *, flush_each: bool) -> None:
        self._cluster = cluster
        self._durable = {"flush.messages": "1"} if flush_each else dict[str, str]()
        self.ledger = ShareLedger(plan.limit, plan.lock_ms / 1000)
        self._history = LongHistory()
        self._transactions = TransactionLedger()
        servers = cluster.bootstrap_servers
        puts = WriterPlan(topic=TOPIC, partitions=PARTITIONS, per_second=plan.per_second, value_bytes=10)
        self._writer = Writer("share-writer", clients, servers, puts, self._history)
        self._transactional = JobTransactions(
            "share-transactions",
            clients,
            servers,
            TransactionPlan(version=V2, timeout_ms=5_000, gap_s=2 / plan.per_second),
            self._transactions,
        )
        self.programs: list[Writer | TransactionalProgram] = [self._writer, self._transactional]
        self._leaderships: dict[str, list[LedSharePartition]] = {}
        self.members = [
            ShareMember(
                f"share-member{number}", clients, servers, GROUP, TOPIC, self.ledger, self._leadership
            )
            for number in range(plan.members)
        ]
        self.observer = ShareObserver("share-observer", clients, servers, GROUP, TOPIC, self.ledger)
        self.workers: list[Program] = [*self.members, self.observer]

    def _leadership(self, partition: str, broker: int) -> int | None:
        """Return the number of what the broker has loaded of a partition, if it leads it.

        A broker that resigned may lead again in the same epoch, and one whose write of the state failed loads
        it again: both have lost which member they gave which record, and how often.
        """
        node = self._cluster.nodes.get(broker)
        if node is None or node.broker is None:
            return None
        for hosted in node.partitions:
            if str(hosted) == partition and isinstance(hosted.replica.role, LeaderRole):
                led = node.broker.parts.serving.share_partitions.loaded(GROUP, hosted.key)
                return None if led is None else self._number(partition, led)
        return None

    def _number(self, partition: str, led: LedSharePartition) -> int:
        known = self._leaderships.setdefault(partition, [])
        if not any(one is led for one in known):
            known.append(led)
        return next(number for number, one in enumerate(known) if one is led)

    # ── the run ─────────────────────────────────────────────────────────────────────────────────
    async def create_topics(self, runtime: Runtime, admin: Admin) -> None:
        """Create the topic of the records and that of the states, and configure the group. Raises
        KafkaError."""
        await admin.ensure_topic(NewTopic(TOPIC, PARTITIONS, REPLICAS, TWO_IN_SYNC | self._durable))
        async with make_client(runtime, self._cluster.bootstrap_servers, "share-set-up") as client:
            await client.retry(Coordinator(client, GROUP).find, SET_UP_MS)
            topic = await client.topic(TOPIC, SET_UP_MS)
            assert topic.topic_id is not None
            key = f"{GROUP}:{topic_id_of(topic.topic_id)}:0"
            await client.retry(lambda: _find_share_coordinator(client, key), SET_UP_MS)
            await client.retry(lambda: _configure(client), SET_UP_MS)
            await client.retry(Coordinator(client, "any", CoordinatorType.TRANSACTION).find, SET_UP_MS)
        # By default one replica may acknowledge an offset alone, and then lose it with its machine.
        for name, configs in INTERNAL.items():
            changes = [ConfigChange(key, value) for key, value in {**configs, **self._durable}.items()]
            if changes:
                await admin.incremental_alter_configs(ResourceType.TOPIC, name, changes)

    def stop_disrupting(self) -> None:
        """End the faults of the members, and start those that had crashed."""
        for member in self.members:
            member.stop_disrupting()
        for worker in self.workers:
            if worker.process is None or not worker.process.alive:
                worker.start()

    @property
    def producers(self) -> int:
        return self._writer.incarnations + self._transactional.incarnations

    def not_settled(self) -> list[str]:
        """Return the share partitions with records that are not done, for a cluster at rest."""
        found: list[str] = []
        for node in self._cluster.nodes.values():
            for hosted in node.partitions:
                if hosted.topic != TOPIC or not isinstance(hosted.replica.role, LeaderRole):
                    continue
                assert node.broker is not None
                end = hosted.replica.high_watermark
                led = node.broker.parts.serving.share_partitions.loaded(GROUP, hosted.key)
                start = None if led is None or led.core is None else led.core.start_offset
                if end and (start is None or start < end):
                    found.append(f"share group: {hosted} is done up to {start} of {end} on {node.name}")
        return found

    # ── checks ──────────────────────────────────────────────────────────────────────────────────
    def judge_at_rest(self) -> Iterator[str]:
        """Compare what was put with what members did; they have ended."""
        put = [(send.partition, send.value) for send in self._history.sends if send.outcome is Outcome.OK]
        for transaction in self._transactions.transactions:
            if transaction.fate is Fate.COMMITTED:
                put += [(one.partition, one.value) for one in transaction.writes]
        missing = list(self.ledger.missing(put))
        yield from missing[:FINDINGS_MAX]

    def judge(self) -> Iterator[str]:
        aborted = [
            one.value
            for transaction in self._transactions.transactions
            if transaction.fate in (Fate.ABORTED, Fate.OPEN)
            for one in transaction.writes
        ]
        yield from self.ledger.judge(self._elections, aborted)
        yield from self._transactional.violations[:FINDINGS_MAX]

    def _elections(self, partition: str) -> int:
        """Return how often the partition has got another leader or leader epoch: by the newest image or, if
        more, by the leaderships that were seen."""
        image = self._cluster.newest_image
        name, _, index = partition.rpartition("-")
        topic = None if image is None else image.topic(name)
        state = None if topic is None else topic.partition(int(index))
        epoch = 0 if state is None else int(state.leader_epoch)
        return max(epoch, len(self._leaderships.get(partition, ())) - 1)

    @property
    def error_counts(self) -> Counter[str]:
        programs = (*self.programs, *self.workers)
        return sum((each.error_counts for each in programs), Counter[str]())

    def done(self) -> Mapping[str, int]:
        return self.ledger.counted + Counter({"share records put": self._writer.acknowledged})


async def _find_share_coordinator(client: Client, key: str) -> None:
    def make(api: Api) -> Message:
        return api.request(key_type=SHARE_COORDINATOR, coordinator_keys=(key,))

    (found,) = (await client.send_to_any(ApiKey.FIND_COORDINATOR, make)).coordinators
    if found.error_code is not ErrorCode.none:
        raise KafkaError(found.error_code, key)


async def _configure(client: Client) -> None:
    """Let the group begin with the first record, and read only what is committed. Raises KafkaError."""
    configs = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}

    def make(api: Api) -> Message:
        changes = tuple(
            api.make_request("AlterableConfig", name=name, config_operation=0, value=value)
            for name, value in configs.items()
        )
        resource = api.make_request(
            "AlterConfigsResource", resource_type=GROUP_CONFIGS, resource_name=GROUP, configs=changes
        )
        return api.request(resources=(resource,), validate_only=False)

    (answer,) = (await client.send_to_any(ApiKey.INCREMENTAL_ALTER_CONFIGS, make)).responses
    if answer.error_code is not ErrorCode.none:
        raise KafkaError(answer.error_code, answer.error_message or GROUP)
