"""Where replicas should be: leader elections and reassignments, the JSON that names them, their progress and
their throttle.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from nilometer.client.admin.admin import Admin, AlterOperation, ConfigChange, ResourceType
from nilometer.client.admin.replica_survey import ReplicaRow, ReplicaSurvey, Survey
from nilometer.client.admin.requests import raise_error
from nilometer.client.network.cluster_metadata import (
    MetadataAnswer,
    TopicMetadata,
    TopicPartition,
    metadata_request,
    numbers_by_topic,
    read_metadata,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import LEADER

# Requests to the controller for leader elections and partition reassignments (KIP-460, KIP-455).
#
# The operations that change partitions return an outcome per partition: None, or its KafkaError.

PartitionOutcomes = dict[TopicPartition, KafkaError | None]

OPERATION_TIMEOUT_MS = 60_000


class ElectionType(enum.IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class OngoingMove:
    """A reassignment that has not completed."""

    replicas: tuple[int, ...]
    """The current replicas, including those of ``adding`` and ``removing``."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def elect_leaders(
    admin: Admin, kind: ElectionType, partitions: Sequence[TopicPartition] | None
) -> PartitionOutcomes:
    """Have the controller elect leaders for ``partitions`` (None: all); return the outcome per partition.

    An outcome may be ELECTION_NOT_NEEDED. Raises KafkaError if the whole request is rejected.
    """

    def make(api: Api) -> Message:
        asked = None
        if partitions is not None:
            asked = tuple(
                api.make_request("TopicPartitions", topic=topic, partitions=tuple(numbers))
                for topic, numbers in numbers_by_topic(partitions).items()
            )
        return api.request(election_type=int(kind), topic_partitions=asked, timeout_ms=OPERATION_TIMEOUT_MS)

    async def ask() -> PartitionOutcomes:
        response = await admin.client.send_to_controller(ApiKey.ELECT_LEADERS, make)
        raise_error(getattr(response, "error_code", ErrorCode.none), None)
        return {
            TopicPartition(topic.topic, part.partition_id): _error(part.error_code, part.error_message)
            for topic in response.replica_election_results
            for part in topic.partition_result
        }

    return await admin.client.retry(ask, OPERATION_TIMEOUT_MS)


async def alter_reassignments(
    admin: Admin, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> PartitionOutcomes:
    """Start moving each partition to its target replicas; a target of None cancels its reassignment.

    Returns the outcome per partition. Raises KafkaError if the whole request is rejected.
    """

    def make(api: Api) -> Message:
        topics = tuple(
            api.make_request(
                "ReassignableTopic",
                name=topic,
                partitions=tuple(
                    api.make_request(
                        "ReassignablePartition",
                        partition_index=number,
                        replicas=None if target is None else tuple(target),
                    )
                    for number in numbers
                    for target in (targets[TopicPartition(topic, number)],)
                ),
            )
            for topic, numbers in numbers_by_topic(targets).items()
        )
        return api.request(topics=topics, timeout_ms=OPERATION_TIMEOUT_MS)

    async def ask() -> PartitionOutcomes:
        response = await admin.client.send_to_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, make)
        raise_error(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): _error(part.error_code, part.error_message)
            for topic in response.responses
            for part in topic.partitions
        }

    return await admin.client.retry(ask, OPERATION_TIMEOUT_MS) if targets else {}


async def list_reassignments(
    admin: Admin, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OngoingMove]:
    """Return the ongoing reassignments of ``partitions`` (None: of all). Raises KafkaError."""

    def make(api: Api) -> Message:
        asked = None
        if partitions is not None:
            asked = tuple(
                api.make_request(
                    "ListPartitionReassignmentsTopics", name=topic, partition_indexes=tuple(numbers)
                )
                for topic, numbers in numbers_by_topic(partitions).items()
            )
        return api.request(topics=asked, timeout_ms=OPERATION_TIMEOUT_MS)

    async def ask() -> dict[TopicPartition, OngoingMove]:
        response = await admin.client.send_to_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, make)
        raise_error(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): OngoingMove(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in response.topics
            for part in topic.partitions
        }

    return await admin.client.retry(ask, OPERATION_TIMEOUT_MS)


async def describe_by_controller(admin: Admin, topics: Sequence[str]) -> dict[str, TopicMetadata]:
    """Return the controller's metadata of ``topics``: another broker's may lack the last changes.

    Raises KafkaError if one of them does not exist.
    """

    async def ask() -> MetadataAnswer:
        response = await admin.client.send_to_controller(
            ApiKey.METADATA, lambda api: metadata_request(api, topics)
        )
        return read_metadata(response)

    answer = await admin.client.retry(ask, OPERATION_TIMEOUT_MS)
    for name, code in answer.errors.items():
        raise KafkaError(code, f"topic {name}")
    return {name: answer.metadata.topics[name] for name in topics}


def _error(code: ErrorCode, message: str | None) -> KafkaError | None:
    return None if code == ErrorCode.none else KafkaError(code, message or "")


# Reads and writes the JSON of reassignments, in the format of ``kafka-reassign-partitions``. Pure.
#
# ``{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any",
# …]}]}``
#
# ``log_dirs`` names the log directory of each replica on its broker (KIP-113), in the order of ``replicas``;
# "any", or no ``log_dirs`` at all: the one that the replica is in, or else one that the broker chooses.

VERSION = 1
ANY_LOG_DIR = "any"

Targets = dict[TopicPartition, tuple[int, ...]]
LogDirs = dict[int, dict[TopicPartition, str]]
"""By broker: the paths of log directories by partition."""


class BadReassignment(ValueError):
    """The file is not a valid reassignment; the message names the place and the reason."""


class _Partition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    partitions: tuple[_Partition, ...]
    version: int = VERSION


def parse_log_dirs(text: str | bytes) -> LogDirs:
    """Return, by broker, the log directories that the file names. Raises BadReassignment."""
    parse_reassignment(text)
    wanted: LogDirs = {}
    for one in msgspec.json.decode(text, type=_Document).partitions:
        for broker_id, path in zip(one.replicas, one.log_dirs or (), strict=False):
            if path != ANY_LOG_DIR:
                wanted.setdefault(broker_id, {})[TopicPartition(one.topic, one.partition)] = path
    return wanted


async def alter_log_dirs(
    admin: Admin, wanted: LogDirs
) -> dict[tuple[TopicPartition, int], KafkaError | None]:
    """Move the replicas to these log directories of their brokers, or have them created there.

    Call it before :func:`alter_reassignments`: a broker that has no replica yet remembers the directory.
    Returns the outcomes by partition and broker. Raises KafkaError.
    """
    outcomes: dict[tuple[TopicPartition, int], KafkaError | None] = {}
    for broker_id, paths in sorted(wanted.items()):
        for key, error in (await admin.alter_replica_log_dirs(broker_id, paths)).items():
            is_remembered = error is not None and error.code is ErrorCode.replica_not_available
            outcomes[key, broker_id] = None if is_remembered else error
    return outcomes


def parse_reassignment(text: str | bytes) -> Targets:
    """Return the target replicas of each partition. Raises BadReassignment."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadReassignment(f"not a reassignment in JSON: {error}") from None
    if document.version != VERSION:
        raise BadReassignment(f"version {document.version} of the format is not known, only {VERSION}")
    targets: Targets = {}
    for one in document.partitions:
        key = TopicPartition(one.topic, one.partition)
        if key in targets:
            raise BadReassignment(f"{key} appears twice")
        _check(key, one)
        targets[key] = one.replicas
    if not targets:
        raise BadReassignment("it names no partition")
    return targets


def _check(key: TopicPartition, one: _Partition) -> None:
    if not one.topic or one.partition < 0:
        raise BadReassignment(f"{key} is not a valid topic partition")
    if not one.replicas:
        raise BadReassignment(f"{key} has an empty replica list")
    if len(set(one.replicas)) != len(one.replicas) or min(one.replicas) < 0:
        raise BadReassignment(
            f"{key} has replicas {list(one.replicas)}: name each broker once, with an id of 0 or more"
        )
    if one.log_dirs is not None and len(one.log_dirs) != len(one.replicas):
        raise BadReassignment(f"{key} has {len(one.replicas)} replicas but {len(one.log_dirs)} log_dirs")


def format_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> str:
    return json.dumps(
        {
            "version": VERSION,
            "partitions": [
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "replicas": list(replicas),
                    "log_dirs": [ANY_LOG_DIR] * len(replicas),
                }
                for key, replicas in sorted(targets.items())
            ],
        }
    )


# The progress of reassignments, from the controller's list of them and from the replicas' log ends.


class MoveState(enum.Enum):
    COMPLETE = "complete"
    MOVING = "moving"
    DIFFERENT = "different"
    """No reassignment is ongoing, and the replicas are not the target."""


@dataclass(frozen=True, slots=True)
class MoveProgress:
    partition: TopicPartition
    state: MoveState
    replicas: tuple[int, ...]
    """The current replicas."""
    target: tuple[int, ...]
    adding: tuple[int, ...] = ()
    copied: int = 0
    """The number of offsets that the slowest added replica has copied, from the leader's log start offset."""
    total: int = 0
    """The number of offsets in the leader's log; 0 if unknown."""

    @property
    def fraction(self) -> float:
        if self.state is MoveState.COMPLETE:
            return 1.0
        return min(self.copied / self.total, 1.0) if self.total > 0 else 0.0


async def reassignment_progress(
    admin: Admin, survey: ReplicaSurvey, targets: Mapping[TopicPartition, Sequence[int]] | None
) -> list[MoveProgress]:
    """Return the progress towards ``targets``, or (None) of all ongoing reassignments. Raises KafkaError."""
    ongoing = await list_reassignments(admin, None if targets is None else sorted(targets))
    if targets is None:
        targets = {
            key: tuple(one for one in move.replicas if one not in move.removing)
            for key, move in ongoing.items()
        }
    if not targets:
        return []
    topics = sorted({key.topic for key in targets})
    described = await describe_by_controller(admin, topics)
    seen = await survey.look(topics)
    return [
        _progress(key, tuple(target), ongoing.get(key), described[key.topic], seen)
        for key, target in sorted(targets.items())
    ]


def is_over(progress: Iterable[MoveProgress]) -> bool:
    """Whether none of the reassignments is still moving."""
    return not any(one.state is MoveState.MOVING for one in progress)


def _progress(
    key: TopicPartition,
    target: tuple[int, ...],
    move: OngoingMove | None,
    topic: TopicMetadata,
    seen: Survey,
) -> MoveProgress:
    replicas = topic.partitions[key.partition].replicas if key.partition < len(topic.partitions) else ()
    if move is None:
        state = MoveState.COMPLETE if tuple(replicas) == target else MoveState.DIFFERENT
        return MoveProgress(key, state, tuple(replicas), target)
    copied, total = _copied(key, move.adding, seen)
    return MoveProgress(key, MoveState.MOVING, move.replicas, target, move.adding, copied, total)


def _copied(key: TopicPartition, adding: Sequence[int], seen: Survey) -> tuple[int, int]:
    """Return ``copied`` and ``total`` of :class:`MoveProgress`; zeros if no leader was found."""
    rows = [row for row in seen.rows if (row.topic, row.partition) == key]
    leader = next((row.state for row in rows if row.state is not None and row.state.role == LEADER), None)
    if leader is None:
        return 0, 0
    ends = {row.broker_id: _log_end(row) for row in rows}
    start, end = leader.log_start_offset, leader.log_end_offset
    least = min((max(ends.get(broker, start), start) for broker in adding), default=end)
    return least - start, end - start


def _log_end(row: ReplicaRow) -> int:
    """Return the log end offset from the replica's own response, which is newest; else from its leader's.

    Returns -1 if neither is there.
    """
    if row.state is not None:
        return row.state.log_end_offset
    return -1 if row.seen_by_leader is None else row.seen_by_leader.log_end_offset


# The replication throttle of a reassignment (KIP-73): set before partitions move, removed afterwards.
#
# Topic configurations name the throttled replicas: as leaders the replicas before the move, as followers the
# added ones. Broker configurations hold the rates. All are changed by requests to the controller, so they can
# also be changed for a broker that is down.

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"

ALTER_TIMEOUT_MS = 60_000

Replicas = Mapping[TopicPartition, Sequence[int]]
_Resource = tuple[ResourceType, str]


async def throttle(admin: Admin, before: Replicas, after: Replicas, bytes_per_second: int) -> None:
    """Throttle the moves from replicas ``before`` to ``after``. Raises KafkaError: do not start them then."""
    changes: dict[_Resource, list[ConfigChange]] = {}
    for topic in sorted({key.topic for key in after}):
        keys = sorted(key for key in after if key.topic == topic)
        changes[ResourceType.TOPIC, topic] = [
            ConfigChange(LEADER_REPLICAS, _named((key, before[key]) for key in keys)),
            ConfigChange(
                FOLLOWER_REPLICAS,
                _named((key, [one for one in after[key] if one not in before[key]]) for key in keys),
            ),
        ]
    for broker in sorted({one for key in after for one in (*before[key], *after[key])}):
        changes[ResourceType.BROKER, str(broker)] = [
            ConfigChange(name, str(bytes_per_second)) for name in (LEADER_RATE, FOLLOWER_RATE)
        ]
    await _alter(admin, changes)


async def unthrottle(admin: Admin, topics: Sequence[str], broker_ids: Sequence[int]) -> bool:
    """Remove the throttle of these topics and brokers; return whether a topic had one. Raises KafkaError."""
    throttled = [topic for topic in topics if await _is_throttled(admin, topic)]
    if not throttled:
        return False
    changes = {
        (ResourceType.TOPIC, topic): [_deleted(LEADER_REPLICAS), _deleted(FOLLOWER_REPLICAS)]
        for topic in throttled
    }
    for broker in broker_ids:
        changes[ResourceType.BROKER, str(broker)] = [_deleted(LEADER_RATE), _deleted(FOLLOWER_RATE)]
    await _alter(admin, changes)
    return True


async def _is_throttled(admin: Admin, topic: str) -> bool:
    def make(api: Api) -> Message:
        resource = api.make_request(
            "DescribeConfigsResource",
            resource_type=ResourceType.TOPIC,
            resource_name=topic,
            configuration_keys=(LEADER_REPLICAS, FOLLOWER_REPLICAS),
        )
        return api.request(resources=(resource,))

    async def ask() -> bool:
        response = await admin.client.send_to_controller(ApiKey.DESCRIBE_CONFIGS, make)
        (result,) = response.results
        if result.error_code != ErrorCode.none:
            raise KafkaError(result.error_code, f"topic {topic}: {result.error_message or ''}")
        return any(entry.value for entry in result.configs)

    return await admin.client.retry(ask, ALTER_TIMEOUT_MS)


async def _alter(admin: Admin, changes: Mapping[_Resource, Sequence[ConfigChange]]) -> None:
    def make(api: Api) -> Message:
        resources = tuple(
            api.make_request(
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    api.make_request(
                        "AlterableConfig",
                        name=change.name,
                        config_operation=change.operation,
                        value=change.value,
                    )
                    for change in altered
                ),
            )
            for (kind, name), altered in changes.items()
        )
        return api.request(resources=resources, validate_only=False)

    async def ask() -> None:
        response = await admin.client.send_to_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, make)
        for result in response.responses:
            if result.error_code != ErrorCode.none:
                subject = f"{ResourceType(result.resource_type).name.lower()} {result.resource_name}"
                raise KafkaError(result.error_code, f"{subject}: {result.error_message or ''}")

    await admin.client.retry(ask, ALTER_TIMEOUT_MS)


def _named(replicas: Iterable[tuple[TopicPartition, Sequence[int]]]) -> str:
    return ",".join(f"{key.partition}:{broker}" for key, brokers in replicas for broker in brokers)


def _deleted(name: str) -> ConfigChange:
    return ConfigChange(name, None, AlterOperation.DELETE)
