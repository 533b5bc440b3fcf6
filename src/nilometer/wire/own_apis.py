"""Nilometer's own APIs: their messages are JSON, with Kafka's framing and headers.

A request has the header of version 1 (API key, version, correlation id, client id), a response that of
version 0 (correlation id); a JSON document fills the rest of the frame. The API keys are far above Kafka's,
so clients ignore them in ApiVersions.

Invariant: decoding any bytes returns a value of the message's type or raises MalformedMessage, with memory
proportional to the frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias, cast

import msgspec

from nilometer.wire.api_keys import NilometerApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import MalformedMessage, MalformedRequest, MalformedResponse

# DescribeRebalances, Nilometer's own API: the last rebalance of each group, its reason and causing member.
#
# A broker responds for the groups that it coordinates; it keeps the history from when it loaded the group.
# Fields may be added; a reader ignores unknown ones.

DESCRIBE_REBALANCES = NilometerApiKey.DESCRIBE_REBALANCES


class DescribeRebalancesRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(DESCRIBE_REBALANCES)
    __version__: ClassVar[int] = 0

    groups: tuple[str, ...]


class RebalanceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    group_id: str
    error_code: int = 0
    """The error for this group, for example that the broker is not its coordinator."""
    reason: str | None = None
    """None: the group has not rebalanced since it was loaded, or the rebalance was not recorded."""
    member_id: str = ""
    """The id of the member that caused the rebalance, at that time."""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    wall_ms: int = 0
    generation: int = 0
    """The generation before the rebalance."""
    times_in_a_row: int = 0
    """How many consecutive rebalances this member caused."""


class DescribeRebalancesResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(DESCRIBE_REBALANCES)
    __version__: ClassVar[int] = 0

    groups: tuple[RebalanceState, ...] = ()


# DescribeReplicas, Nilometer's own API: the full state of one broker's replicas.
#
# A broker responds for its own replicas only; a leader adds its followers' state, known from their fetches.
# An offset or epoch of -1 means *not known*. Fields may be added; a reader ignores unknown ones. The
# collector need not visit the states (``gc=False``): they refer to values only.

DESCRIBE_REPLICAS = NilometerApiKey.DESCRIBE_REPLICAS

LEADER = "leader"
FOLLOWER = "follower"
NO_ROLE = "none"
OFFLINE = "offline"

NOT_HELD = "not-held"
UNDER_MIN_ISR = "under-min-isr"
WAITING_FOR_REPLICAS = "waiting-for-replicas"
WAITING_FOR_FLUSH = "waiting-for-flush"

PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class DescribeReplicasRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(DESCRIBE_REPLICAS)
    __version__: ClassVar[int] = 0

    topics: tuple[str, ...] | None = None
    """Only these topics; None for all."""
    partitions: tuple[PartitionNumber, ...] | None = None
    """Only partitions with these numbers; None for all."""
    segments: bool = False
    """Whether to describe the segments of the logs. A broker does it for a few replicas of a response."""


class RemoteReplicaState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A follower as its leader knows it, from its fetches."""

    broker_id: int
    broker_epoch: int
    """The broker epoch of the last fetch."""
    log_start_offset: int
    log_end_offset: int
    caught_up_age_ms: int | None
    """How many ms ago it was last caught up; None: never since this leader epoch started."""
    is_assigned: bool
    is_eligible: bool
    """Whether a broker with that broker epoch may be in the ISR."""


class HighWatermarkHoldState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why the high watermark does not advance."""

    reason: str
    """``not-held``, ``under-min-isr``, ``waiting-for-replicas`` or ``waiting-for-flush``."""
    text: str
    """The reason as text for operators."""
    replicas: tuple[int, ...] = ()
    """The replicas that the high watermark waits for."""


class LeaderState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state that only a leader has."""

    epoch_start_offset: int
    isr: tuple[int, ...]
    """The committed ISR."""
    maximal_isr: tuple[int, ...]
    """The replicas that must have a record before it is committed: the committed ISR and those being
    added."""
    pending_isr: tuple[int, ...] | None
    """The ISR requested from the controller, until its response."""
    needed_in_sync: int
    """The size of the committed ISR below which no record is committed."""
    hold: HighWatermarkHoldState
    followers: tuple[RemoteReplicaState, ...]


class CompactionState(msgspec.Struct, frozen=True, kw_only=True):
    """The compaction of a replica's log: the round in progress, or the last one since the broker started."""

    in_progress: bool
    age_ms: int
    """How many ms ago the round began if it is in progress, or ended."""
    progress: float
    """From 0 to 1: the share of the bytes to read that are read."""
    bytes_total: int
    """The size of the segments that the round rewrites."""
    bytes_written: int
    records_read: int
    records_kept: int
    end_offset: int = -1
    """The offset up to which the log is clean; -1 unless the round was completed."""
    failure: str = ""
    """Why the last round was not completed."""


class SegmentState(msgspec.Struct, frozen=True, kw_only=True):
    base_offset: int
    size_bytes: int
    """The size of the ``.log`` file."""
    modified_ms: int = -1
    """When that file was last written, in ms since the epoch; -1: not known."""
    largest_timestamp: int = -1
    """The largest timestamp of the segment's batches; -1 also if the broker has not read it yet."""


class SegmentsState(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    """How many segments the log has."""
    newest: tuple[SegmentState, ...]
    """The last of them by base offset, at most :data:`SEGMENTS_MAX`. The last one is active."""


SEGMENTS_MAX = 100
"""How many segments of a log are described."""


class TierState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What remote storage has of a partition, as its leader knows it."""

    end_offset: int
    """The offset after the last record there; -1: not known."""
    size_bytes: int = 0
    """Of the log files there."""
    newest_ms: int = -1
    """The largest timestamp there; -1: it has no records."""
    lag_segments: int = 0
    """How many segments are full and not there."""
    lag_bytes: int = 0
    oldest_segment: int = -1
    """The base offset of the oldest segment that is not there; -1: none has a record."""
    missing_records: int = 0
    """The committed records that would be lost with the disks of all brokers."""
    missing_bytes: int = 0
    missing_ms: int = -1
    """How long ago the newest record there was written, if records are missing; -1: not known."""
    error: str = ""
    """Why the last round, in which records are copied and removed, did not end."""
    failing_ms: int = 0
    """How long rounds have failed."""


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic: str
    topic_id: str
    partition: int
    broker_id: int
    role: str
    """``leader``, ``follower``, ``none`` (no role yet) or ``offline`` (its log cannot be used)."""
    leader_id: int
    leader_epoch: int
    """The role's leader epoch; without a role, the one in the metadata."""
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """The ISR in this broker's metadata."""
    in_sync: bool
    log_start_offset: int = -1
    log_end_offset: int = -1
    flushed_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    size_bytes: int = -1
    epoch_chain: tuple[tuple[int, int], ...] = ()
    """(leader epoch, start offset), oldest first."""
    leader: LeaderState | None = None
    compaction: CompactionState | None = None
    """None: the broker has not compacted the log since it started."""
    tier: TierState | None = None
    """None: the topic is not tiered, and nothing of it waits in vain to be removed; or this replica does not
    lead, or its broker has not looked yet."""
    segments: SegmentsState | None = None
    """None: not requested, or the response describes those of enough other replicas."""
    problems: tuple[str, ...] = ()
    """For operators: why the replica is offline, or which of its tasks currently fail and are retried."""


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: int
    broker_epoch: int
    """-1: not registered."""
    controller_id: int
    controller_epoch: int
    metadata_number: int
    """The number of the last entry of the metadata log that this broker has applied."""
    unclean_elections: int
    stray_folders: tuple[str, ...] = ()
    """The folders of logs that are no replica of this broker: kept until an operator deletes them."""
    longest_turn_us: int = -1
    """The processor time of the longest turn of the broker's event loop since its start."""
    longest_turn: str = ""
    """What ran in it: the API, client and size of a request, or the name of a task."""


NO_BROKER_STATE = BrokerState(
    broker_id=-1,
    broker_epoch=-1,
    controller_id=-1,
    controller_epoch=-1,
    metadata_number=-1,
    unclean_elections=0,
)


class DescribeReplicasResponse(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(DESCRIBE_REPLICAS)
    __version__: ClassVar[int] = 0

    cluster_id: str
    broker: BrokerState
    replicas: tuple[ReplicaState, ...]
    """Ordered by topic and partition."""
    error_code: int = 0
    """Kafka's error code; with an error the other fields say nothing."""


# ForfeitReplicas, Nilometer's own API: a broker leaves the ISR and ELR of partitions whose records it lost.
#
# Sent by a broker to the controller when it finds a replica's data damaged, or when the replica cannot be
# used because its log directory failed. The controller removes the replica from the ISR, from the eligible
# leader replicas and from leadership. The response has an outcome for every partition.

FORFEIT_REPLICAS = NilometerApiKey.FORFEIT_REPLICAS


class ReplicaOfPartition(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: str
    partition: int


class ForfeitReplicasRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(FORFEIT_REPLICAS)
    __version__: ClassVar[int] = 0

    broker_id: int
    broker_epoch: int
    replicas: tuple[ReplicaOfPartition, ...]
    offline: bool = False
    """Whether the replicas are offline until the broker registers again; then they must leave the ISR."""


class ForfeitOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic_id: str
    partition: int
    error_code: int
    message: str = ""


class ForfeitReplicasResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(FORFEIT_REPLICAS)
    __version__: ClassVar[int] = 0

    error_code: int
    """The error if the whole request was rejected."""
    message: str = ""
    outcomes: tuple[ForfeitOutcome, ...] = ()


# ForwardRequest, Nilometer's own API: a client's request, forwarded to the controller with its context.
#
# Between brokers. Like Kafka's Envelope (KIP-590), but with the client's listener, and with addresses as
# text.

FORWARD_REQUEST = NilometerApiKey.FORWARD_REQUEST


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(FORWARD_REQUEST)
    __version__: ClassVar[int] = 0

    principal_type: str
    principal_name: str
    client_address: str
    client_port: int
    listener: str
    security_protocol: str = "PLAINTEXT"
    """The protocol of that listener; not sent by versions that have PLAINTEXT only."""
    request: bytes
    """The frame that the client sent, without its length; the client id is in its header."""


class ForwardedResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(FORWARD_REQUEST)
    __version__: ClassVar[int] = 0

    error_code: int = 0
    """Why the request was not executed: NOT_CONTROLLER, CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST."""
    message: str = ""
    response: bytes = b""
    """The frame for the client, without its length."""


# ProveBroker, Nilometer's own API: two brokers authenticate each other on a new connection.
#
# Between brokers, before any other request; not advertised in ApiVersions. There are two requests on one
# connection: the response to the first, which has no proof, has the acceptor's nonce and proof; the second
# has the initiator's proof. :mod:`nilometer.cluster.cluster_secret` describes the proofs. If the user of the
# connection is the initiator's identity, there is one request, whose response has neither nonce nor proof.

PROVE_BROKER = NilometerApiKey.PROVE_BROKER


class ProveBrokerRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(PROVE_BROKER)
    __version__: ClassVar[int] = 0

    cluster_id: str = ""
    broker_id: int = -1
    """The id of the broker that connects."""
    expected_broker_id: int = -1
    """The id of the broker that it wants to connect to."""
    secret_number: int = -1
    """The number of the current cluster secret of the broker that connects."""
    nonce: bytes = b""
    """Empty: the initiator gives no proof; its connection's user is its identity."""
    proof: bytes = b""
    """Only in the second request, which has no other field."""
    asked_at: str = ""
    """Between nodes of a metadata quorum: the initiator only asks who listens at this address."""
    key_id: str = ""
    """Between nodes of a metadata quorum: which key the initiator has."""


class ProveBrokerResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(PROVE_BROKER)
    __version__: ClassVar[int] = 0

    error_code: int = 0
    message: str = ""
    secret_number: int = -1
    """The number of the cluster secret that both proofs use."""
    nonce: bytes = b""
    proof: bytes = b""


# AskQuorum, Nilometer's own API: what nodes of a metadata quorum ask each other beside Kafka's requests. Only
# the listeners of controllers serve it, to nodes that have been let in.

ASK_QUORUM = NilometerApiKey.ASK_QUORUM


class Propose(msgspec.Struct, frozen=True, kw_only=True, tag="propose"):
    """The leader is to append a command to the metadata log. The response has where it is."""

    command: bytes


class RenewSession(msgspec.Struct, frozen=True, kw_only=True, tag="renew-session"):
    """The leader is to renew a broker's session. The response has whether it has."""

    broker_id: int
    incarnation: int


class AskCommitted(msgspec.Struct, frozen=True, kw_only=True, tag="ask-committed"):
    """How far the log is committed, as the leader knows it once a majority has confirmed that it leads."""


class AskStanding(msgspec.Struct, frozen=True, kw_only=True, tag="ask-standing"):
    """Who the node is, and whether it has taken part in a quorum yet."""


class AskReplicas(msgspec.Struct, frozen=True, kw_only=True, tag="ask-replicas"):
    """The leader is asked how far the log of each replica reaches. The response has a QuorumDescription."""


class QuorumReplica(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    node_id: int
    directory_id: str
    is_voter: bool
    log_end_offset: int = -1
    """Durable there; -1: it has not fetched from this leader."""
    fetched_ms: int = -1
    """How long ago it has fetched from this leader, in ms; -1: never."""


class QuorumDescription(msgspec.Struct, frozen=True, kw_only=True):
    leader_id: int
    epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplica, ...]
    """The voters, then the observers, each in the order of their ids."""


class QuorumStanding(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    directory_id: str
    is_blank: bool
    """Whether it has no record, and has not voted."""
    voters: tuple[str, ...]
    """Its ``controller.quorum.voters``."""


QuorumQuestion: TypeAlias = Propose | RenewSession | AskCommitted | AskStanding | AskReplicas


class AskQuorumRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(ASK_QUORUM)
    __version__: ClassVar[int] = 0

    question: QuorumQuestion
    cluster_id: str | None = None
    """None: the sender does not know it yet."""


class AskQuorumResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(ASK_QUORUM)
    __version__: ClassVar[int] = 0

    error_code: int = 0
    message: str = ""
    offset: int = -1
    """Of the command, or after the last committed record; -1: the node does not lead."""
    epoch: int = -1
    renewed: bool = False
    standing: QuorumStanding | None = None
    description: QuorumDescription | None = None
    """None: the node does not lead."""


# DescribeSharePartitions, Nilometer's own API: which records of a share group's partitions each member has,
# and how often they were delivered.
#
# A broker responds for the partitions that it leads, from what it has in memory while members fetch them.
# Fields may be added; a reader ignores unknown ones.

DESCRIBE_SHARE_PARTITIONS = NilometerApiKey.DESCRIBE_SHARE_PARTITIONS


class SharePartitionsOfTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: tuple[PartitionNumber, ...]


class DescribeSharePartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(DESCRIBE_SHARE_PARTITIONS)
    __version__: ClassVar[int] = 0

    group_id: str
    topics: tuple[SharePartitionsOfTopic, ...]


class DeliveryRange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Records in one state, from ``first_offset`` to ``last_offset``, both included."""

    first_offset: int
    last_offset: int
    state: str
    """``available``, ``acquired``, ``acknowledged``, ``archiving`` or ``archived``."""
    delivery_count: int
    member_id: str | None = None
    """Who has acquired them."""
    lock_left_ms: int | None = None
    """When its lock ends; negative: it has just ended."""


class MemberLocks(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    records: int


class SharePartitionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    partition: int
    error_code: int = 0
    """For example that the broker does not lead the partition."""
    is_loaded: bool = False
    """Whether a member fetches it. The following is not known otherwise."""
    start_offset: int = -1
    end_offset: int = -1
    """The first offset that was never delivered."""
    high_watermark: int = -1
    lag: int = -1
    """Records up to the high watermark that are neither acknowledged nor archived."""
    available: int = 0
    """How many records from start to end are available; the same of the other states."""
    acquired: int = 0
    acknowledged: int = 0
    archiving: int = 0
    archived: int = 0
    held: tuple[MemberLocks, ...] = ()
    """The members with locks, at most 100, by their ids."""
    ranges: tuple[DeliveryRange, ...] = ()
    """From the start offset on."""
    has_more_ranges: bool = False
    """Whether further ranges were left out."""


class DescribeSharePartitionsResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(DESCRIBE_SHARE_PARTITIONS)
    __version__: ClassVar[int] = 0

    error_code: int = 0
    """Of the whole request; then there are no partitions."""
    partitions: tuple[SharePartitionState, ...] = ()


SLICE_ELEMENTS = 100
"""Of an array, so many are encoded in one step."""


class OwnApi:
    """One of Nilometer's own APIs. Implements :class:`~nilometer.wire.building.Api`, except for ``make`` and
    ``make_request``: use the classes of the parts."""

    def __init__(self, request_type: type[Any], response_type: type[Any]) -> None:
        """Key and version are those of the request type."""
        self.key = NilometerApiKey(request_type.__api_key__)
        self.version: int = request_type.__version__
        self.request_type = request_type
        self.response_type = response_type
        self.flexible = False
        self.flexible_response_header = False
        self._request_decoder = msgspec.json.Decoder(request_type)
        self._response_decoder = msgspec.json.Decoder(response_type)

    def __repr__(self) -> str:
        return f"OwnApi({self.key.name}, {self.version})"

    def has(self, name: str) -> bool:
        return False

    def response(self, **fields: object) -> Message:
        return self.response_type(**fields)

    def make(self, name: str, /, **fields: object) -> Message:
        raise KeyError(name)

    def request(self, **fields: object) -> Message:
        return self.request_type(**fields)

    def make_request(self, name: str, /, **fields: object) -> Message:
        raise KeyError(name)

    def read_request(self, body: bytes, position: int = 0) -> Message:
        return _decode(MalformedRequest, self._request_decoder, body, position)

    def read_response(self, body: bytes, position: int = 0) -> Message:
        return _decode(MalformedResponse, self._response_decoder, body, position)

    def write_request(self, request: Message) -> bytes:
        return msgspec.json.encode(request)

    def write_response(self, response: Message) -> bytes:
        return msgspec.json.encode(response)

    def response_slices(self, response: Message) -> Iterator[bytes]:
        values = [getattr(response, name) for name in response.__struct_fields__]
        if response.__struct_config__.omit_defaults or not any(map(_is_long, values)):
            yield self.write_response(response)
            return
        between = b"{"
        for name, value in zip(response.__struct_encode_fields__, values, strict=True):
            yield between + msgspec.json.encode(name) + b":"
            yield from _array_slices(value) if _is_long(value) else (msgspec.json.encode(value),)
            between = b","
        yield b"}"


def _is_long(value: object) -> bool:
    return isinstance(value, tuple) and len(cast("tuple[object, ...]", value)) > SLICE_ELEMENTS


def _array_slices(elements: tuple[object, ...]) -> Iterator[bytes]:
    between = b"["
    for first in range(0, len(elements), SLICE_ELEMENTS):
        yield between + msgspec.json.encode(elements[first : first + SLICE_ELEMENTS])[1:-1]
        between = b","
    yield b"]"


def _decode(
    failure: type[MalformedMessage], decoder: msgspec.json.Decoder[Any], body: bytes, position: int
) -> Message:
    try:
        return decoder.decode(memoryview(body)[position:])
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise failure(f"{decoder.type.__name__}: {error}") from None


_MESSAGES: tuple[tuple[type[Any], type[Any]], ...] = (
    (DescribeReplicasRequest, DescribeReplicasResponse),
    (ForfeitReplicasRequest, ForfeitReplicasResponse),
    (DescribeRebalancesRequest, DescribeRebalancesResponse),
    (ProveBrokerRequest, ProveBrokerResponse),
    (ForwardedRequest, ForwardedResponse),
    (DescribeSharePartitionsRequest, DescribeSharePartitionsResponse),
    (AskQuorumRequest, AskQuorumResponse),
)

OWN_APIS: Mapping[tuple[int, int], Api] = {
    (int(api.key), api.version): api for api in (OwnApi(request, response) for request, response in _MESSAGES)
}
"""Nilometer's APIs by (API key, version)."""

OWN_VERSIONS: Mapping[int, tuple[int, int]] = {
    int(key): (min(versions), max(versions))
    for key in NilometerApiKey
    for versions in [[version for known, version in OWN_APIS if known == key]]
}
