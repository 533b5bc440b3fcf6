"""``nilometer exporter``: the lag of groups as metrics, under the names of kafka_exporter.

A coordinator knows what its groups have committed, but not the high watermarks of partitions that other
brokers lead. So the lag is measured by a client, which asks all brokers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click
import msgspec

from nilometer.broker.settings.listeners import HttpEndpoint, metrics_endpoint
from nilometer.cli import commands
from nilometer.cli.cluster_options import client_config, connection_options, run_async, stop_on_signals
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.admin.group_descriptions import SHARE, ShareOffset
from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from nilometer.client.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.client.settings import GivenConfig
from nilometer.config import ConfigError
from nilometer.http.server import HttpServer, Response, plain
from nilometer.metrics import CONTENT_TYPE, Family, Kind, Measured, Registry, Series
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

# What one reading of a cluster finds, topics, offsets and groups, and how an admin client reads it.


class GroupState(msgspec.Struct, frozen=True):
    members: int
    committed: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict[TopicPartition, int])
    """Of a consumer group."""
    shared: Mapping[TopicPartition, ShareOffset] = msgspec.field(
        default_factory=dict[TopicPartition, ShareOffset]
    )
    """Of a share group."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Offsets and groups that could not be read are missing; ``failed`` says which part failed, and why."""

    brokers: tuple[BrokerNode, ...]
    topics: Mapping[str, TopicMetadata]
    log_start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    groups: Mapping[str, GroupState] = field(default_factory=dict[str, GroupState])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])

    def lag(self, group: GroupState, partition: TopicPartition) -> int | None:
        """Return how many offsets a group is behind the high watermark; None if that is not known."""
        end, committed = self.high_watermarks.get(partition), group.committed.get(partition)
        return None if end is None or committed is None else max(0, end - committed)


logger = logging.getLogger("nilometer.exporter")

GROUPS_AT_ONCE = 32
PARTS = ("offsets", "groups")
"""What a reading may lack."""

T = TypeVar("T")


class Selection(msgspec.Struct, frozen=True):
    """Which topics and groups are read: those whose whole name matches."""

    topics: re.Pattern[str] = re.compile(r".*")
    groups: re.Pattern[str] = re.compile(r".*")


class ClusterReading:
    """One reading; :meth:`read` returns its result."""

    def __init__(self, admin: Admin, selection: Selection) -> None:
        self._admin = admin
        self._groups = GroupAdmin(admin.client, admin.timeout_ms)
        self._selection = selection
        self._failed: dict[str, str] = {}

    async def read(self) -> ClusterState:
        """Read the cluster. Raises KafkaError if not even its topics can be read."""
        cluster = await self._admin.describe_cluster()
        topics = {
            name: topic
            for name, topic in (await self._admin.list_topics()).items()
            if self._selection.topics.fullmatch(name)
        }
        partitions = list(_with_leader(topics))
        starts = await self._part("offsets", lambda: self._offsets(partitions, EARLIEST_TIMESTAMP), {})
        ends = await self._part("offsets", lambda: self._offsets(partitions, LATEST_TIMESTAMP), {})
        groups = await self._part("groups", self._read_groups, {})
        return ClusterState(cluster.brokers, topics, starts, ends, groups, self._failed)

    async def _part(self, name: str, read: Callable[[], Awaitable[T]], missing: T) -> T:
        try:
            return await read()
        except KafkaError as error:
            self._fail(name, error)
            return missing

    def _fail(self, part: str, error: KafkaError) -> None:
        logger.warning("The %s of the cluster cannot be read completely: %s", part, error)
        self._failed.setdefault(part, str(error))

    async def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> Mapping[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, timestamp)
        if not wanted:
            return {}
        found = await self._admin.list_offsets(wanted)
        return {partition: listed.offset for partition, listed in found.items()}

    async def _read_groups(self) -> Mapping[str, GroupState]:
        listed = [
            group.group_id
            for group in await self._groups.list_groups()
            if self._selection.groups.fullmatch(group.group_id)
        ]
        found: dict[str, GroupState] = {}
        for first in range(0, len(listed), GROUPS_AT_ONCE):
            names = listed[first : first + GROUPS_AT_ONCE]
            states = await asyncio.gather(*map(self._group, names))
            found |= {name: one for name, one in zip(names, states, strict=True) if one is not None}
        return found

    async def _group(self, name: str) -> GroupState | None:
        try:
            described = (await self._groups.describe([name]))[name]
            if isinstance(described, KafkaError):
                raise described
            if described.group_type == SHARE:
                return GroupState(len(described.members), shared=await self._shared(name))
            committed = await self._groups.committed(name)
        except KafkaError as error:
            self._fail("groups", error)
            return None
        wanted = self._selection.topics
        return GroupState(
            len(described.members),
            {
                partition: offset.offset
                for partition, offset in committed.items()
                if wanted.fullmatch(partition.topic)
            },
        )

    async def _shared(self, name: str) -> dict[TopicPartition, ShareOffset]:
        found = (await self._groups.share_offsets_of([name]))[name]
        if isinstance(found, KafkaError):
            raise found
        wanted = self._selection.topics
        return {partition: one for partition, one in found.items() if wanted.fullmatch(partition.topic)}


def _with_leader(topics: Mapping[str, TopicMetadata]) -> Iterable[TopicPartition]:
    for name, topic in topics.items():
        for index in topic.available:
            yield TopicPartition(name, index)


# The metrics of a cluster's topics and groups, with kafka_exporter's names, made from one reading.

PARTITION_SERIES_MAX = 200_000

_TOPIC, _PARTITION = ("topic",), ("topic", "partition")
_GROUP_TOPIC, _GROUP_PARTITION = ("consumergroup", "topic"), ("consumergroup", "topic", "partition")


def _gauge(name: str, help_text: str, labels: tuple[str, ...] = ()) -> Family:
    return Family(f"kafka_{name}", Kind.GAUGE, help_text, labels, PARTITION_SERIES_MAX)


BROKERS = _gauge("brokers", "Brokers of the cluster that are not fenced.")
BROKER_INFO = _gauge("broker_info", "Always 1; the labels are a broker's id and address.", ("id", "address"))
TOPIC_PARTITIONS = _gauge("topic_partitions", "Partitions of a topic.", _TOPIC)
CURRENT_OFFSET = _gauge("topic_partition_current_offset", "The high watermark of a partition.", _PARTITION)
OLDEST_OFFSET = _gauge("topic_partition_oldest_offset", "The log start offset of a partition.", _PARTITION)
GROUP_MEMBERS = _gauge(
    "consumergroup_members", "Members of a consumer group or share group.", ("consumergroup",)
)
GROUP_OFFSET = _gauge(
    "consumergroup_current_offset", "The committed offset of a consumer group.", _GROUP_PARTITION
)
GROUP_LAG = _gauge(
    "consumergroup_lag",
    "How many offsets a consumer group is behind the high watermark; missing while that is not known.",
    _GROUP_PARTITION,
)
# Their names end like parts of a summary: as gauges they would break Prometheus' rules for names.
GROUP_OFFSET_SUM = Family(
    "kafka_consumergroup_current_offset_sum",
    Kind.UNTYPED,
    "The sum of the offsets that a consumer group has committed in a topic.",
    _GROUP_TOPIC,
)
GROUP_LAG_SUM = Family(
    "kafka_consumergroup_lag_sum",
    Kind.UNTYPED,
    "The sum of a consumer group's lag in a topic.",
    _GROUP_TOPIC,
)
_SHARE_PARTITION = ("sharegroup", "topic", "partition")
SHARE_START = Family(
    "nilometer_sharegroup_start_offset",
    Kind.GAUGE,
    "The offset below which a share group has acknowledged or archived each record.",
    _SHARE_PARTITION,
    PARTITION_SERIES_MAX,
)
SHARE_LAG = Family(
    "nilometer_sharegroup_lag",
    Kind.GAUGE,
    "How many records a share group has neither acknowledged nor archived; missing while that is not known.",
    _SHARE_PARTITION,
    PARTITION_SERIES_MAX,
)
UP = Family(
    "nilometer_exporter_complete",
    Kind.GAUGE,
    "1 if the part of the cluster could be read completely for this scrape, else 0; the log has the reason.",
    ("part",),
)

_OF_PARTITIONS: tuple[tuple[Family, Callable[[PartitionMetadata], int]], ...] = (
    (
        _gauge("topic_partition_leader", "The broker id of the leader, -1 if there is none.", _PARTITION),
        lambda partition: partition.leader_id,
    ),
    (
        _gauge("topic_partition_replicas", "The number of assigned replicas.", _PARTITION),
        lambda partition: len(partition.replicas),
    ),
    (
        _gauge("topic_partition_in_sync_replica", "The size of the ISR.", _PARTITION),
        lambda partition: len(partition.in_sync_replicas),
    ),
    (
        _gauge("topic_partition_leader_is_preferred", "1 if the first replica leads.", _PARTITION),
        lambda partition: int(partition.replicas[:1] == (partition.leader_id,)),
    ),
    (
        _gauge(
            "topic_partition_under_replicated_partition",
            "1 if fewer replicas are in sync than assigned.",
            _PARTITION,
        ),
        lambda partition: int(len(partition.in_sync_replicas) < len(partition.replicas)),
    ),
)
FAMILIES = (
    BROKERS,
    BROKER_INFO,
    TOPIC_PARTITIONS,
    CURRENT_OFFSET,
    OLDEST_OFFSET,
    *(family for family, _ in _OF_PARTITIONS),
    GROUP_MEMBERS,
    GROUP_OFFSET,
    GROUP_LAG,
    GROUP_OFFSET_SUM,
    GROUP_LAG_SUM,
    SHARE_START,
    SHARE_LAG,
    UP,
)


def registry_of(state: ClusterState) -> Registry:
    """Return a registry with the metrics of one reading."""
    registry = Registry()
    registry.add(FAMILIES, lambda: _collect(state))
    return registry


def _collect(state: ClusterState) -> Iterator[Measured]:
    yield Measured(BROKERS, [((), len(state.brokers))])
    addresses = [(str(broker.node_id), f"{broker.host}:{broker.port}") for broker in state.brokers]
    yield Measured(BROKER_INFO, ((labels, 1) for labels in addresses))
    sizes = (((name,), len(topic.partitions)) for name, topic in state.topics.items())
    yield Measured(TOPIC_PARTITIONS, sizes)
    yield Measured(CURRENT_OFFSET, _of_partitions(state.high_watermarks))
    yield Measured(OLDEST_OFFSET, _of_partitions(state.log_start_offsets))
    for family, value in _OF_PARTITIONS:
        yield Measured(family, _of_metadata(state, value))
    yield from _of_groups(state)
    yield Measured(UP, (((part,), int(part not in state.failed)) for part in PARTS))


def _of_partitions(values: Mapping[TopicPartition, int]) -> Iterator[Series]:
    for partition, value in sorted(values.items()):
        yield _labels(partition), value


def _of_metadata(state: ClusterState, value: Callable[[PartitionMetadata], int]) -> Iterator[Series]:
    for name, topic in state.topics.items():
        for partition in topic.partitions:
            yield (name, str(partition.partition)), value(partition)


def _of_groups(state: ClusterState) -> Iterator[Measured]:
    groups = state.groups
    yield Measured(GROUP_MEMBERS, (((name,), group.members) for name, group in groups.items()))
    yield Measured(
        GROUP_OFFSET,
        (
            ((name, *_labels(partition)), offset)
            for name, group in groups.items()
            for partition, offset in group.committed.items()
        ),
    )
    yield Measured(
        GROUP_LAG,
        (
            ((name, *_labels(partition)), lag)
            for name, group in groups.items()
            for partition in group.committed
            if (lag := state.lag(group, partition)) is not None
        ),
    )
    offsets = {name: _by_topic(group.committed) for name, group in groups.items()}
    yield Measured(GROUP_OFFSET_SUM, _sums(offsets))
    yield Measured(
        GROUP_LAG_SUM, _sums({name: _lag_by_topic(state, group) for name, group in groups.items()})
    )
    yield Measured(SHARE_START, _of_share_groups(groups, lambda one: one.start_offset))
    yield Measured(SHARE_LAG, _of_share_groups(groups, lambda one: one.lag))


def _of_share_groups(
    groups: Mapping[str, GroupState], value: Callable[[ShareOffset], int | None]
) -> Iterator[Series]:
    for name, group in groups.items():
        for partition, one in group.shared.items():
            if (known := value(one)) is not None:
                yield (name, *_labels(partition)), known


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for partition, value in values.items():
        sums[partition.topic] = sums.get(partition.topic, 0) + value
    return sums


def _lag_by_topic(state: ClusterState, group: GroupState) -> dict[str, int]:
    known = {partition: state.lag(group, partition) for partition in group.committed}
    return _by_topic({partition: lag for partition, lag in known.items() if lag is not None})


def _sums(by_group: Mapping[str, Mapping[str, int]]) -> Iterator[Series]:
    for group, by_topic in by_group.items():
        for topic, value in by_topic.items():
            yield (group, topic), value


def _labels(partition: TopicPartition) -> tuple[str, str]:
    return partition.topic, str(partition.partition)


# Serves the lag metrics over HTTP: each scrape reads the cluster.
#
# Scrapes that arrive while the cluster is read share the result.

REQUEST_TIMEOUT_MS = 2_000
API_TIMEOUT_MS = 4_000
"""How long a part of a reading may take: below Prometheus' default ``scrape_timeout`` of 10 s in total."""


class Exporter:
    def __init__(self, runtime: Runtime, client: GivenConfig, selection: Selection) -> None:
        """``client`` are the settings of the admin client: ``bootstrap.servers``, and how to connect."""
        self._runtime = runtime
        self._selection = selection
        self._settings: GivenConfig = {
            **client,
            "client.id": "nilometer-exporter",
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "default.api.timeout.ms": API_TIMEOUT_MS,
            "socket.connection.setup.timeout.ms": REQUEST_TIMEOUT_MS,
        }
        self._reading: asyncio.Task[ClusterState] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        routes = {"/metrics": self._metrics, "/healthz": lambda: plain(200, "ok\n")}
        self._server = HttpServer(runtime.clock, routes, self._spawn)

    async def serve(self, host: str, port: int) -> int:
        """Serve on ``host`` and ``port`` (0 lets the system choose); return the port. Raises OSError."""
        await self._server.start(self._runtime.network, host, port)
        return self._server.port

    async def close(self) -> None:
        self._server.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def _metrics(self) -> Response:
        try:
            state = await self._read()
        except KafkaError as error:
            logger.warning("The cluster cannot be read: %s", error)
            return plain(503, f"the cluster cannot be read: {error}\n")
        return Response(200, registry_of(state).text(), CONTENT_TYPE)

    async def _read(self) -> ClusterState:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read_now())
        return await asyncio.shield(self._reading)

    async def _read_now(self) -> ClusterState:
        async with Admin(self._runtime, self._settings) as admin:
            return await ClusterReading(admin, self._selection).read()


DEFAULT_LISTENER = "127.0.0.1:9308"


def _endpoint(_context: click.Context, _parameter: click.Parameter, value: str) -> HttpEndpoint:
    try:
        endpoint = metrics_endpoint(value)
    except ConfigError:
        raise click.BadParameter(f"{value!r} is not of the form HOST:PORT") from None
    assert endpoint is not None, "there is a default"
    return endpoint


def _pattern(_context: click.Context, _parameter: click.Parameter, value: str) -> re.Pattern[str]:
    try:
        return re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from None


@commands.command()
@connection_options
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTENER,
    show_default=True,
    callback=_endpoint,
    help="Where to serve /metrics and /healthz.",
)
@click.option(
    "--topics", metavar="REGEX", default=".*", show_default=True, callback=_pattern, help="Only these topics."
)
@click.option(
    "--groups", metavar="REGEX", default=".*", show_default=True, callback=_pattern, help="Only these groups."
)
def exporter(bootstrap: str, listen: HttpEndpoint, topics: re.Pattern[str], groups: re.Pattern[str]) -> None:
    """Serve the lag of consumer groups, and offsets and replicas of topics, as metrics for Prometheus.

    The names are those of kafka_exporter. Each scrape reads the cluster.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    run_async(_serve(client_config(bootstrap), listen, Selection(topics, groups)))


async def _serve(client: dict[str, str], listen: HttpEndpoint, selection: Selection) -> None:
    stopped = asyncio.Event()
    stop_on_signals(stopped.set)
    serving = Exporter(Runtime.system(), client, selection)
    try:
        port = await serving.serve(listen.host, listen.port)
        click.echo(f"{HttpEndpoint(listen.host, port)}/metrics")
        await stopped.wait()
    finally:
        await serving.close()
