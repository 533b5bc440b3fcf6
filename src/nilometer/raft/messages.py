"""The quorum's requests and responses on the wire: Kafka's messages, and the core's values.

Each message is about one partition, ``__cluster_metadata-0``; another one is an INVALID_REQUEST. Only the
newest version of each is spoken (:data:`VERSIONS`), for all voters are brokers of ours. A request carries the
cluster id and the voter that is asked, which :func:`refusal` compares; a response carries where the leader
listens. There are no fetch sessions: the session id is the round of the leader's reads, which Kafka leaves 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from nilometer.identifiers import (
    NO_LEADER,
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    LeaderEpoch,
)
from nilometer.raft.control_records import Endpoint, directory_text, directory_uuid
from nilometer.raft.exchange import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochResponse,
    QuorumFetch,
    QuorumFetchResponse,
    SnapshotFetch,
    SnapshotFetchResponse,
    VoteRequest,
    VoteResponse,
)
from nilometer.raft.recovery import METADATA_LOG, TOPIC_ID
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import VoterKey
from nilometer.replication.epochs import NO_DIVERGENCE, EpochEnd
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import NONE, ErrorCode, KafkaError
from nilometer.wire.messages import Message, api

VERSIONS: Final = {
    ApiKey.VOTE: 2,
    ApiKey.BEGIN_QUORUM_EPOCH: 1,
    ApiKey.END_QUORUM_EPOCH: 1,
    ApiKey.FETCH: 18,
    ApiKey.FETCH_SNAPSHOT: 1,
}
"""The version of each message."""

_VOTE = api(ApiKey.VOTE, VERSIONS[ApiKey.VOTE])
_BEGIN = api(ApiKey.BEGIN_QUORUM_EPOCH, VERSIONS[ApiKey.BEGIN_QUORUM_EPOCH])
_END = api(ApiKey.END_QUORUM_EPOCH, VERSIONS[ApiKey.END_QUORUM_EPOCH])
_FETCH = api(ApiKey.FETCH, VERSIONS[ApiKey.FETCH])
_SNAPSHOT = api(ApiKey.FETCH_SNAPSHOT, VERSIONS[ApiKey.FETCH_SNAPSHOT])

T = TypeVar("T")


class NodeAddress(NamedTuple):
    """Where the leader listens, in a response."""

    node_id: BrokerId
    host: str
    port: int


class FetchTerms(NamedTuple):
    """What a fetch asks for beside its position."""

    max_wait_ms: int = 0
    """How long the leader may wait for records, or for a higher high watermark than the fetch has."""
    max_bytes: int = 0
    high_watermark: int = UNKNOWN_OFFSET
    """The one that the follower knows."""


class Received(NamedTuple, Generic[T]):
    """A request, and what comes with it."""

    request: T
    cluster_id: str | None
    to: VoterKey | None = None
    """Who is asked; None if the request does not say so."""
    endpoints: tuple[Endpoint, ...] = ()
    """Where the leader that sent it listens."""
    terms: FetchTerms = FetchTerms()


def refusal(received: Received[Any], own: VoterKey, cluster_id: str | None) -> ErrorCode:
    """Return why a replica must not answer: the request is for another cluster or folder; or ``none``.
    ``cluster_id``: None if it is not known yet."""
    if None not in (received.cluster_id, cluster_id) and received.cluster_id != cluster_id:
        return ErrorCode.inconsistent_cluster_id
    if received.to is not None and received.to != own:
        return ErrorCode.invalid_voter_key
    return NONE


def refused(key: ApiKey, error: ErrorCode) -> Message:
    """Return the response to a request that is not answered because of :func:`refusal`."""
    spoken = api(key, VERSIONS[key])
    if key is ApiKey.FETCH:
        return spoken.response(
            throttle_time_ms=0, error_code=error, session_id=0, responses=(), node_endpoints=()
        )
    if key is ApiKey.FETCH_SNAPSHOT:
        return spoken.response(throttle_time_ms=0, error_code=error, topics=(), node_endpoints=())
    return spoken.response(error_code=error, topics=(), node_endpoints=())


# ── Vote ────────────────────────────────────────────────────────────────────────────────────────
def vote_request(request: VoteRequest, cluster_id: str | None) -> Message:
    partition = _VOTE.make_request(
        "PartitionData",
        partition_index=METADATA_LOG.partition,
        replica_epoch=request.epoch,
        replica_id=request.candidate.node_id,
        replica_directory_id=directory_uuid(request.candidate.directory_id),
        voter_directory_id=directory_uuid(request.voter.directory_id),
        last_offset_epoch=request.last_epoch,
        last_offset=request.end_offset,
        pre_vote=request.pre_vote,
    )
    topics = _topics(_VOTE.make_request, partition)
    return _VOTE.request(cluster_id=cluster_id, voter_id=request.voter.node_id, topics=topics)


def read_vote_request(message: Any) -> Received[VoteRequest]:
    """Raises KafkaError."""
    one = _partition(message.topics)
    voter = VoterKey(message.voter_id, directory_text(one.voter_directory_id))
    request = VoteRequest(
        epoch=one.replica_epoch,
        candidate=VoterKey(one.replica_id, directory_text(one.replica_directory_id)),
        voter=voter,
        last_epoch=one.last_offset_epoch,
        end_offset=one.last_offset,
        pre_vote=one.pre_vote,
    )
    return Received(request, message.cluster_id, voter)


def vote_response(response: VoteResponse, leader: NodeAddress | None = None) -> Message:
    partition = _VOTE.make(
        "PartitionData",
        partition_index=METADATA_LOG.partition,
        error_code=response.error,
        leader_id=response.leader,
        leader_epoch=response.epoch,
        vote_granted=response.granted,
    )
    return _response(_VOTE, partition, leader)


def read_vote_response(message: Any) -> VoteResponse:
    """Raises KafkaError."""
    if message.error_code is not NONE:
        return VoteResponse(message.error_code, NO_LEADER_EPOCH, NO_LEADER)
    one = _partition(message.topics)
    return VoteResponse(one.error_code, one.leader_epoch, one.leader_id, one.vote_granted)


# ── BeginQuorumEpoch and EndQuorumEpoch ─────────────────────────────────────────────────────────
def begin_request(
    request: BeginEpochRequest, to: VoterKey, cluster_id: str | None, endpoints: Sequence[Endpoint]
) -> Message:
    partition = _BEGIN.make_request(
        "PartitionData",
        partition_index=METADATA_LOG.partition,
        voter_directory_id=directory_uuid(to.directory_id),
        leader_id=request.leader,
        leader_epoch=request.epoch,
    )
    return _BEGIN.request(
        cluster_id=cluster_id,
        voter_id=to.node_id,
        topics=_topics(_BEGIN.make_request, partition),
        leader_endpoints=_endpoints(_BEGIN, endpoints),
    )


def read_begin_request(message: Any) -> Received[BeginEpochRequest]:
    """Raises KafkaError."""
    one = _partition(message.topics)
    voter = VoterKey(message.voter_id, directory_text(one.voter_directory_id))
    request = BeginEpochRequest(one.leader_epoch, one.leader_id)
    return Received(request, message.cluster_id, voter, _read_endpoints(message))


def end_request(request: EndEpochRequest, cluster_id: str | None, endpoints: Sequence[Endpoint]) -> Message:
    candidates = tuple(
        _END.make_request(
            "ReplicaInfo",
            candidate_id=one.node_id,
            candidate_directory_id=directory_uuid(one.directory_id),
        )
        for one in request.successors
    )
    partition = _END.make_request(
        "PartitionData",
        partition_index=METADATA_LOG.partition,
        leader_id=request.leader,
        leader_epoch=request.epoch,
        preferred_candidates=candidates,
    )
    topics = _topics(_END.make_request, partition)
    return _END.request(cluster_id=cluster_id, topics=topics, leader_endpoints=_endpoints(_END, endpoints))


def read_end_request(message: Any) -> Received[EndEpochRequest]:
    """Raises KafkaError."""
    one = _partition(message.topics)
    successors = tuple(
        VoterKey(each.candidate_id, directory_text(each.candidate_directory_id))
        for each in one.preferred_candidates
    )
    request = EndEpochRequest(one.leader_epoch, one.leader_id, successors)
    return Received(request, message.cluster_id, endpoints=_read_endpoints(message))


def begin_response(response: EpochResponse, leader: NodeAddress | None = None) -> Message:
    return _epoch_response(_BEGIN, response, leader)


def end_response(response: EpochResponse, leader: NodeAddress | None = None) -> Message:
    return _epoch_response(_END, response, leader)


def _epoch_response(spoken: Any, response: EpochResponse, leader: NodeAddress | None) -> Message:
    partition = spoken.make(
        "PartitionData",
        partition_index=METADATA_LOG.partition,
        error_code=response.error,
        leader_id=response.leader,
        leader_epoch=response.epoch,
    )
    return _response(spoken, partition, leader)


def read_epoch_response(message: Any) -> EpochResponse:
    """To either request. Raises KafkaError."""
    if message.error_code is not NONE:
        return EpochResponse(message.error_code, NO_LEADER_EPOCH, NO_LEADER)
    one = _partition(message.topics)
    return EpochResponse(one.error_code, one.leader_epoch, one.leader_id)


# ── Fetch ───────────────────────────────────────────────────────────────────────────────────────
def fetch_request(request: QuorumFetch, cluster_id: str | None, terms: FetchTerms) -> Message:
    partition = _FETCH.make_request(
        "FetchPartition",
        partition=METADATA_LOG.partition,
        current_leader_epoch=request.epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        log_start_offset=UNKNOWN_OFFSET,
        partition_max_bytes=terms.max_bytes,
        replica_directory_id=directory_uuid(request.replica.directory_id),
        high_watermark=terms.high_watermark,
    )
    topic = _FETCH.make_request("FetchTopic", topic_id=TOPIC_ID, partitions=(partition,))
    state = _FETCH.make_request("ReplicaState", replica_id=request.replica.node_id, replica_epoch=-1)
    return _FETCH.request(
        cluster_id=cluster_id,
        replica_state=state,
        max_wait_ms=terms.max_wait_ms,
        min_bytes=1 if terms.max_wait_ms else 0,
        max_bytes=terms.max_bytes,
        isolation_level=0,
        session_id=request.round,
        session_epoch=-1,
        topics=(topic,),
        forgotten_topics_data=(),
        rack_id="",
    )


def read_fetch_request(message: Any) -> Received[QuorumFetch]:
    """Raises KafkaError."""
    one = _partition(message.topics, by_id=True)
    if one.fetch_offset < 0:
        raise KafkaError(ErrorCode.invalid_request, f"fetch of the metadata log from {one.fetch_offset}")
    replica = VoterKey(message.replica_state.replica_id, directory_text(one.replica_directory_id))
    request = QuorumFetch(
        replica,
        one.current_leader_epoch,
        NO_LEADER,
        one.fetch_offset,
        one.last_fetched_epoch,
        round=message.session_id,
    )
    bytes_max = min(message.max_bytes, one.partition_max_bytes)
    wait_ms = int(message.max_wait.total_seconds() * 1_000)
    terms = FetchTerms(wait_ms, bytes_max, one.high_watermark)
    return Received(request, message.cluster_id, terms=terms)


def fetch_response(
    response: QuorumFetchResponse,
    records: Bytes,
    log_start_offset: int,
    leader: NodeAddress | None = None,
) -> Message:
    epoch, end_offset = response.diverging
    snapshot = response.snapshot or SnapshotId(UNKNOWN_OFFSET, NO_LEADER_EPOCH)
    partition = _FETCH.make(
        "PartitionData",
        partition_index=METADATA_LOG.partition,
        error_code=response.error,
        high_watermark=response.high_watermark,
        last_stable_offset=response.high_watermark,
        log_start_offset=log_start_offset,
        diverging_epoch=_FETCH.make("EpochEndOffset", epoch=epoch, end_offset=end_offset),
        current_leader=_leader(_FETCH, response.leader, response.epoch),
        snapshot_id=_FETCH.make("SnapshotId", end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        aborted_transactions=(),
        preferred_read_replica=-1,
        records=records,
    )
    topic = _FETCH.make("FetchableTopicResponse", topic_id=TOPIC_ID, partitions=(partition,))
    return _FETCH.response(
        throttle_time_ms=0,
        error_code=NONE,
        session_id=response.round,
        responses=(topic,),
        node_endpoints=_node_endpoints(_FETCH, leader),
    )


def read_fetch_response(message: Any) -> tuple[QuorumFetchResponse, bytes]:
    """Return the response and its records; where these end is read from them. Raises KafkaError."""
    if message.error_code is not NONE:
        return QuorumFetchResponse(message.error_code, LeaderEpoch(NO_LEADER_EPOCH), NO_LEADER), b""
    one = _partition(message.responses, by_id=True)
    epoch, end_offset = one.diverging_epoch.epoch, one.diverging_epoch.end_offset
    snapshot = SnapshotId(one.snapshot_id.end_offset, one.snapshot_id.epoch)
    response = QuorumFetchResponse(
        one.error_code,
        one.current_leader.leader_epoch,
        one.current_leader.leader_id,
        diverging=NO_DIVERGENCE if end_offset < 0 else EpochEnd(epoch, end_offset),
        high_watermark=one.high_watermark,
        snapshot=None if snapshot.end_offset < 0 else snapshot,
        round=message.session_id,
    )
    return response, bytes(one.records or b"")


# ── FetchSnapshot ───────────────────────────────────────────────────────────────────────────────
def snapshot_request(request: SnapshotFetch, cluster_id: str | None, max_bytes: int) -> Message:
    end_offset, epoch = request.snapshot
    partition = _SNAPSHOT.make_request(
        "PartitionSnapshot",
        partition=METADATA_LOG.partition,
        current_leader_epoch=request.epoch,
        snapshot_id=_SNAPSHOT.make_request("SnapshotId", end_offset=end_offset, epoch=epoch),
        position=request.position,
        replica_directory_id=directory_uuid(request.replica.directory_id),
    )
    topic = _SNAPSHOT.make_request("TopicSnapshot", name=METADATA_LOG.topic, partitions=(partition,))
    return _SNAPSHOT.request(
        cluster_id=cluster_id,
        replica_id=request.replica.node_id,
        max_bytes=max_bytes,
        topics=(topic,),
    )


def read_snapshot_request(message: Any) -> Received[SnapshotFetch]:
    """Raises KafkaError."""
    one = _partition(message.topics)
    request = SnapshotFetch(
        VoterKey(message.replica_id, directory_text(one.replica_directory_id)),
        one.current_leader_epoch,
        NO_LEADER,
        SnapshotId(one.snapshot_id.end_offset, one.snapshot_id.epoch),
        one.position,
    )
    return Received(request, message.cluster_id, terms=FetchTerms(max_bytes=message.max_bytes))


def snapshot_response(
    response: SnapshotFetchResponse, part: Bytes, leader: NodeAddress | None = None
) -> Message:
    end_offset, epoch = response.snapshot or SnapshotId(UNKNOWN_OFFSET, NO_LEADER_EPOCH)
    partition = _SNAPSHOT.make(
        "PartitionSnapshot",
        index=METADATA_LOG.partition,
        error_code=response.error,
        snapshot_id=_SNAPSHOT.make("SnapshotId", end_offset=end_offset, epoch=epoch),
        current_leader=_leader(_SNAPSHOT, response.leader, response.epoch),
        size=response.size,
        position=response.position,
        unaligned_records=part,
    )
    topic = _SNAPSHOT.make("TopicSnapshot", name=METADATA_LOG.topic, partitions=(partition,))
    return _SNAPSHOT.response(
        throttle_time_ms=0,
        error_code=NONE,
        topics=(topic,),
        node_endpoints=_node_endpoints(_SNAPSHOT, leader),
    )


def read_snapshot_response(message: Any) -> tuple[SnapshotFetchResponse, bytes]:
    """Return the response and its bytes. Raises KafkaError."""
    if message.error_code is not NONE:
        return SnapshotFetchResponse(message.error_code, LeaderEpoch(NO_LEADER_EPOCH), NO_LEADER), b""
    one = _partition(message.topics)
    part = bytes(one.unaligned_records or b"")
    snapshot = SnapshotId(one.snapshot_id.end_offset, one.snapshot_id.epoch)
    response = SnapshotFetchResponse(
        one.error_code,
        one.current_leader.leader_epoch,
        one.current_leader.leader_id,
        None if snapshot.end_offset < 0 else snapshot,
        one.size,
        one.position,
        one.position + len(part),
    )
    return response, part


# ── parts of several messages ───────────────────────────────────────────────────────────────────
def leader_addresses(message: Any) -> tuple[NodeAddress, ...]:
    """Return where a response says that the leader listens."""
    return tuple(NodeAddress(one.node_id, one.host, one.port) for one in message.node_endpoints)


def _partition(topics: Sequence[Any], *, by_id: bool = False) -> Any:
    """Return the only partition of a message, which is the metadata log."""
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        topic = topics[0]
        if by_id:
            is_metadata = topic.topic_id == TOPIC_ID
        else:
            is_metadata = getattr(topic, "topic_name", getattr(topic, "name", "")) == METADATA_LOG.topic
        one = topic.partitions[0]
        index = getattr(one, "partition_index", getattr(one, "partition", getattr(one, "index", -1)))
        if is_metadata and index == METADATA_LOG.partition:
            return one
    raise KafkaError(ErrorCode.invalid_request, f"a message that is not about {METADATA_LOG} alone")


def _topics(make: Any, partition: Any) -> tuple[Any, ...]:
    return (make("TopicData", topic_name=METADATA_LOG.topic, partitions=(partition,)),)


def _response(spoken: Any, partition: Any, leader: NodeAddress | None) -> Message:
    return spoken.response(
        error_code=NONE,
        topics=_topics(spoken.make, partition),
        node_endpoints=_node_endpoints(spoken, leader),
    )


def _leader(spoken: Any, leader: BrokerId, epoch: LeaderEpoch) -> Any:
    return spoken.make("LeaderIdAndEpoch", leader_id=leader, leader_epoch=epoch)


def _node_endpoints(spoken: Any, leader: NodeAddress | None) -> tuple[Any, ...]:
    if leader is None:
        return ()
    return (spoken.make("NodeEndpoint", node_id=leader.node_id, host=leader.host, port=leader.port),)


def _endpoints(spoken: Any, endpoints: Sequence[Endpoint]) -> tuple[Any, ...]:
    return tuple(
        spoken.make_request("LeaderEndpoint", name=one.listener, host=one.host, port=one.port)
        for one in endpoints
    )


def _read_endpoints(message: Any) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port) for one in message.leader_endpoints)
