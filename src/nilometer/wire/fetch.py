"""Fetch by hand-written code: a broker decodes requests and encodes responses (versions 4 to 18), a follower
the reverse (15 to 18).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
)
from nilometer.steps import at_once
from nilometer.wire.body_reader import SLICE_ELEMENTS, BodyReader, begin, compact_size, end
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, MalformedMessage, MalformedRequest, MalformedResponse
from nilometer.wire.frames import FrameWriter
from nilometer.wire.primitives import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    array_size,
    bytes_size,
    node_endpoints,
    null_array,
    tagged_fields,
    topic,
    unsigned,
)

# Decoding the body of a Fetch request, versions 4 to 18, by hand-written code.
#
# In-sync followers fetch after every append, so this is as frequent as Produce; nearly all these fetches have
# one layout, which is decoded at once. Any bytes decode to a value or
# raise MalformedRequest; memory is not allocated according to a count in the request.
#
# Version notes: 5 log start offset, 7 sessions, 9 leader epoch, 11 rack, 12 flexible and the last fetched
# epoch, 13 topic ids, 15 the follower's broker epoch, in a tagged field.

VERSION_MIN, VERSION_MAX = 4, 18

_FIRST_WITH_LOG_START = 5
_FIRST_WITH_SESSION = 7
_FIRST_WITH_LEADER_EPOCH = 9
_FIRST_WITH_RACK = 11
_FIRST_FLEXIBLE = 12
_FIRST_WITH_TOPIC_ID = 13
_FIRST_WITH_REPLICA_STATE = 15

_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iq")
_REPLICA_STATE_TAG = 1
_NO_SESSION = (0, -1)
_NO_REPLICA = (BrokerId(-1), NO_BROKER_EPOCH)

_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
_PARTITION_12 = struct.Struct(">iiqiqi")

_USUAL = struct.Struct(">BiiibiiB16sBiiqiqi7Biqb")
_USUAL_OF_CLIENT = struct.Struct(">BiiibiiB16sBiiqiqi5B")
_USUAL_MARKS_OF_CLIENT = (0, 2, 2, 0, 0, 1, 1, 0)
"""As those of a follower, but with no tagged field at the end."""
_USUAL_MARKS = (0, 2, 2, 0, 0, 1, 1, 1, _REPLICA_STATE_TAG, _REPLICA_STATE.size + 1, 0)
"""No tags of the header, one topic, one partition; then no tags of these two, no forgotten topics, no rack,
one tagged field, which is the replica's state and has no tags."""


class WantedPartition(NamedTuple):
    partition: int
    current_leader_epoch: LeaderEpoch
    fetch_offset: int
    last_fetched_epoch: LeaderEpoch
    log_start_offset: int
    partition_max_bytes: int


class WantedTopic(NamedTuple):
    topic: str | bytes
    """The topic's name, or from version 13 on the bytes of its id."""
    partitions: list[WantedPartition]


class ForgottenTopic(NamedTuple):
    topic: str | bytes
    partitions: list[int]


class FetchBody(NamedTuple):
    replica_id: BrokerId
    replica_epoch: BrokerEpoch
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[WantedTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str


Slices = Generator[int, None, FetchBody]
P = TypeVar("P")
T = TypeVar("T")


def decode_fetch_body(version: int, frame: memoryview, position: int) -> FetchBody:
    """Decode the body of a request; ``position`` is the end of the client id in the header.

    Raises MalformedRequest.
    """
    return end(begin_fetch_body(version, frame, position))


def begin_fetch_body(version: int, frame: memoryview, position: int) -> FetchBody | Slices:
    """Decode the body of a request, or the first slice of a large one.

    Raises MalformedRequest, as the slices do.
    """
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ValueError(f"no Fetch request of version {version} can be decoded")
    if version >= _FIRST_WITH_REPLICA_STATE:
        size, body = len(frame) - position, None
        if size == _USUAL_OF_CLIENT.size:
            body = _usual_body_of_client(frame, position)
        elif size == _USUAL.size:
            body = _usual_body(frame, position)
        if body is not None:
            return body
    return begin(_checked(BodyReader(frame, position, flexible=version >= _FIRST_FLEXIBLE), version))


def _checked(reader: BodyReader, version: int) -> Slices:
    try:
        return (yield from _body(reader, version))
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"the Fetch request ends too early: {error}") from None
    except UnicodeDecodeError:
        raise MalformedRequest("a string is not UTF-8") from None


def _usual_body(frame: memoryview, position: int) -> FetchBody | None:
    """Decode the Fetch request that a follower sends after every append: for one partition, nothing
    forgotten, no rack. None if the request is of another form."""
    fields = _USUAL.unpack_from(frame, position)
    if (fields[0], fields[7], fields[9], *fields[16:23], fields[25]) != _USUAL_MARKS:
        return None
    topic = WantedTopic(fields[8], [WantedPartition._make(fields[10:16])])
    return FetchBody._make((*fields[23:25], *fields[1:7], [topic], [], ""))


def _usual_body_of_client(frame: memoryview, position: int) -> FetchBody | None:
    """Decode a client's fetch of one partition, without a rack; None if this is another."""
    fields = _USUAL_OF_CLIENT.unpack_from(frame, position)
    if (fields[0], fields[7], fields[9], *fields[16:]) != _USUAL_MARKS_OF_CLIENT:
        return None
    topic = WantedTopic(fields[8], [WantedPartition._make(fields[10:16])])
    return FetchBody._make((*_NO_REPLICA, *fields[1:7], [topic], [], ""))


def _body(reader: BodyReader, version: int) -> Slices:
    reader.skip_tags()  # of the header
    replica_id, replica_epoch = _NO_REPLICA
    if version < _FIRST_WITH_REPLICA_STATE:
        replica_id = BrokerId(reader.int32())
    limits = reader.fixed(_LIMITS)
    session_id, session_epoch = reader.fixed(_SESSION) if version >= _FIRST_WITH_SESSION else _NO_SESSION
    topics = yield from _topics(reader, version, WantedTopic, _partition)
    forgotten: list[ForgottenTopic] = []
    if version >= _FIRST_WITH_SESSION:
        forgotten = yield from _topics(reader, version, ForgottenTopic, _index)
    rack = reader.string() if version >= _FIRST_WITH_RACK else ""
    if version >= _FIRST_WITH_REPLICA_STATE:
        replica_id, replica_epoch = _replica_state(reader)
    else:
        reader.skip_tags()
    max_wait_ms, min_bytes, max_bytes, isolation_level = limits
    return FetchBody(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
    )


def _topics(
    reader: BodyReader,
    version: int,
    make: Callable[[str | bytes, list[P]], T],
    read: Callable[[BodyReader, int], P],
) -> Generator[int, None, list[T]]:
    """Read an array of topics, each with an array of partitions."""
    topics: list[T] = []
    for _ in range(reader.count()):
        name = reader.raw_uuid() if version >= _FIRST_WITH_TOPIC_ID else reader.string()
        partitions: list[P] = []
        for _ in range(reader.count()):
            partitions.append(read(reader, version))
            if reader.ends_slice():
                yield SLICE_ELEMENTS
        reader.skip_tags()
        topics.append(make(name, partitions))
        if reader.ends_slice():
            yield SLICE_ELEMENTS
    return topics


def _partition(reader: BodyReader, version: int) -> WantedPartition:
    if version >= _FIRST_FLEXIBLE:
        wanted = WantedPartition._make(reader.fixed(_PARTITION_12))
        reader.skip_tags()
        return wanted
    leader_epoch, log_start = NO_LEADER_EPOCH, -1
    if version >= _FIRST_WITH_LEADER_EPOCH:
        index, leader_epoch, offset, log_start, max_bytes = reader.fixed(_PARTITION_9)
    elif version >= _FIRST_WITH_LOG_START:
        index, offset, log_start, max_bytes = reader.fixed(_PARTITION_5)
    else:
        index, offset, max_bytes = reader.fixed(_PARTITION_4)
    return WantedPartition(index, leader_epoch, offset, NO_LEADER_EPOCH, log_start, max_bytes)


def _index(reader: BodyReader, _version: int) -> int:
    return reader.int32()


def _replica_state(reader: BodyReader) -> tuple[BrokerId, BrokerEpoch]:
    value = reader.tagged_field(_REPLICA_STATE_TAG)
    if value is None:
        return _NO_REPLICA
    replica_id, replica_epoch = _REPLICA_STATE.unpack_from(value)
    return replica_id, replica_epoch


# Encoding Fetch responses, versions 4 to 18, by hand-written code.
#
# The general encoder is not used because the record sets of a response must not be copied, and because
# a follower's fetch may have thousands of partitions.
#
# Version notes: 5 log start offset, 7 sessions, 11 preferred read replica, 12 flexible and the tagged fields
# of KIP-595 (diverging epoch, current leader, snapshot id), 13 topic ids, 16 node endpoints.

RESPONSE_VERSION_MIN, RESPONSE_VERSION_MAX = 4, 18

_RESPONSE_FIRST_WITH_LOG_START = 5
_RESPONSE_FIRST_WITH_SESSION = 7
_FIRST_WITH_PREFERRED_REPLICA = 11
_RESPONSE_FIRST_FLEXIBLE = 12
_FIRST_WITH_NODE_ENDPOINTS = 16

_OLD_PARTITION = struct.Struct(">ihqq").pack
_PARTITION = struct.Struct(">ihqqq").pack
_WITHOUT_ABORTED = struct.Struct(">ihqqqBi").pack
_INT32 = struct.Struct(">i").pack
_RESPONSE_SESSION = struct.Struct(">hi").pack
_ABORTED = struct.Struct(">qq").pack
_EPOCH_END = struct.Struct(">iqx").pack
_LEADER = struct.Struct(">iix").pack
_SNAPSHOT = struct.Struct(">qix").pack


SLICE_PIECES = 1024
"""A slice of a response ends after so many pieces, some of a partition each."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    end_offset: int
    epoch: int


class FetchedPartition(NamedTuple):
    partition_index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Bytes] = ()
    """Complete batches, in one or several buffers."""
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    """None for a fetch with isolation level READ_UNCOMMITTED."""
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None


class FetchedTopic(NamedTuple):
    name: str | UUID | bytes
    """The id from version 13 on, perhaps as bytes; the name before."""
    partitions: Sequence[FetchedPartition]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[FetchedTopic],
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Bytes]:
    """Return the frame, with its length, as a list of buffers to send in order."""
    return at_once(
        fetch_response_slices(version, correlation_id, throttle_ms, error, session_id, topics, endpoints)
    )


def fetch_response_slices(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[FetchedTopic],
    endpoints: Sequence[NodeEndpoint] = (),
) -> Generator[int, None, list[Bytes]]:
    """Encode a response slice by slice: yields the number of partitions of each slice but the last, and
    returns the frame, with its length, as a list of buffers to send in order."""
    if not RESPONSE_VERSION_MIN <= version <= RESPONSE_VERSION_MAX:
        raise ValueError(f"no Fetch response of version {version} can be encoded")
    flexible = version >= _RESPONSE_FIRST_FLEXIBLE
    frame = FrameWriter()
    small = frame.small
    small.append(_INT32(correlation_id) + (b"\x00" if flexible else b"") + _INT32(throttle_ms))
    if version >= _RESPONSE_FIRST_WITH_SESSION:
        small.append(_RESPONSE_SESSION(error, session_id))
    small.append(array_size(len(topics), flexible))
    write_partition = _flexible_partition if flexible else _legacy_partition
    for name, partitions in topics:
        small.append(topic(name, flexible))
        small.append(array_size(len(partitions), flexible))
        for partition in partitions:
            write_partition(frame, partition, version)
            if len(small) >= SLICE_PIECES:
                yield frame.end_slice()
        if flexible:
            small.append(b"\x00")
        if len(small) >= SLICE_PIECES:
            yield frame.end_slice()
    if flexible:
        small.append(_response_tags(version, endpoints))
    return frame.finish()


def _flexible_partition(frame: FrameWriter, partition: FetchedPartition, version: int) -> None:
    small = frame.small
    records = partition.records
    if partition.aborted_transactions is None:
        small.append(_WITHOUT_ABORTED(*partition[:5], 0, partition.preferred_read_replica))
    else:
        small.append(_PARTITION(*partition[:5]))
        small.append(_aborted(partition.aborted_transactions, flexible=True))
        small.append(_INT32(partition.preferred_read_replica))
    small.append(bytes_size(sum(map(len, records)), True))
    for buffer in records:
        frame.add_records(buffer)
    if partition[_FIRST_TAGGED:] == _NO_TAGS:
        small.append(b"\x00")
    else:
        small.append(_partition_tags(partition))


def _legacy_partition(frame: FrameWriter, partition: FetchedPartition, version: int) -> None:
    small = frame.small
    if version >= _RESPONSE_FIRST_WITH_LOG_START:
        small.append(_PARTITION(*partition[:5]))
    else:
        small.append(_OLD_PARTITION(*partition[:4]))
    small.append(_aborted(partition.aborted_transactions, flexible=False))
    if version >= _FIRST_WITH_PREFERRED_REPLICA:
        small.append(_INT32(partition.preferred_read_replica))
    small.append(bytes_size(sum(map(len, partition.records)), False))
    for buffer in partition.records:
        frame.add_records(buffer)


def _aborted(transactions: Sequence[AbortedTransaction] | None, *, flexible: bool) -> bytes:
    if transactions is None:
        return null_array(flexible)
    end = b"\x00" if flexible else b""
    return array_size(len(transactions), flexible) + b"".join(_ABORTED(*item) + end for item in transactions)


_FIRST_TAGGED = FetchedPartition._fields.index("diverging_epoch")
_NO_TAGS = (None, None, None)


def _partition_tags(partition: FetchedPartition) -> bytes:
    fields: list[tuple[int, bytes]] = []
    if partition.diverging_epoch is not None:
        fields.append((0, _EPOCH_END(*partition.diverging_epoch)))
    if partition.current_leader is not None:
        fields.append((1, _LEADER(*partition.current_leader)))
    if partition.snapshot_id is not None:
        fields.append((2, _SNAPSHOT(*partition.snapshot_id)))
    return tagged_fields(fields)


def _response_tags(version: int, endpoints: Sequence[NodeEndpoint]) -> bytes:
    if version < _FIRST_WITH_NODE_ENDPOINTS or not endpoints:
        return b"\x00"
    return tagged_fields([(0, node_endpoints(endpoints))])


# The follower's side of Fetch, versions 15 to 18, by hand-written code: encode requests, decode responses.
#
# Their cost is part of the latency of every produce with acks=all. The records of a response are copied out
# of its frame, once.

FOLLOWER_VERSION_MIN, FOLLOWER_VERSION_MAX = 15, 18

_LIMITS_AND_SESSION = struct.Struct(">iiibii").pack
_FOLLOWER_PARTITION = struct.Struct(">iiqiqix").pack
_FOLLOWER_REPLICA_STATE = struct.Struct(">bbbiqx").pack
_FOLLOWER_REPLICA_STATE_TAG, _REPLICA_STATE_BYTES = 1, 13
_FOLLOWER_INT32 = struct.Struct(">i").pack
_NO_RACK = b"\x01"

_RESPONSE = struct.Struct(">ihi")
_FOLLOWER_USUAL = struct.Struct(">BihiB16sBihqqqBi")
_FOLLOWER_USUAL_MARKS = (0, 2, 2, 0)
"""No tags of the header, one topic, one partition, null for aborted transactions."""
_USUAL_END = b"\x00\x00\x00"
"""No tags of the partition, the topic and the response."""
_PARTITION_DATA = struct.Struct(">ihqqq")
_ABORTED_BYTES = 16
_DIVERGING_TAG = 0
_DIVERGING = struct.Struct(">iq").unpack_from
_NO_DIVERGENCE = (NO_LEADER_EPOCH, UNKNOWN_OFFSET)


class FetchedFromLeader(NamedTuple):
    """The leader's response for one partition."""

    topic_id: bytes
    """The bytes of the topic's id."""
    partition: int
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: bytes
    diverging: tuple[LeaderEpoch, Offset]
    """The diverging (epoch, end offset); (-1, -1) if the logs do not diverge."""


class LeaderAnswer(NamedTuple):
    error: ErrorCode
    session_id: int
    partitions: Sequence[FetchedFromLeader]


def encode_wanted(
    partition: int,
    leader_epoch: int,
    fetch_offset: int,
    last_fetched_epoch: int,
    log_start_offset: int,
    max_bytes: int,
) -> bytes:
    """Encode one partition of a request."""
    return _FOLLOWER_PARTITION(
        partition, leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, max_bytes
    )


def encode_follower_fetch(
    replica_id: int,
    replica_epoch: int,
    limits: tuple[int, int, int],
    session: tuple[int, int],
    wanted: Mapping[bytes, Sequence[bytes]],
    forgotten: Mapping[bytes, Sequence[int]],
) -> bytes:
    """Encode the body of a request, which is the same in all these versions.

    ``limits``: maximum wait (ms), minimum and maximum bytes; ``session``: fetch session id and epoch;
    ``wanted``: by the bytes of a topic's id, its partitions, from :func:`encode_wanted`; ``forgotten``:
    partitions to remove from the fetch session.
    """
    pieces = [_LIMITS_AND_SESSION(*limits, 0, *session), unsigned(len(wanted) + 1)]
    for topic_id, partitions in wanted.items():
        pieces += (topic_id, unsigned(len(partitions) + 1), *partitions, b"\x00")
    pieces.append(unsigned(len(forgotten) + 1))
    for topic_id, indexes in forgotten.items():
        pieces += (topic_id, unsigned(len(indexes) + 1), *map(_FOLLOWER_INT32, indexes), b"\x00")
    state = _FOLLOWER_REPLICA_STATE(
        1, _FOLLOWER_REPLICA_STATE_TAG, _REPLICA_STATE_BYTES, replica_id, replica_epoch
    )
    pieces += (_NO_RACK, state)
    return b"".join(pieces)


def decode_leader_answer(frame: memoryview, position: int) -> LeaderAnswer:
    """Decode a response; ``position`` is the end of the correlation id. Raises MalformedResponse."""
    try:
        return _usual_answer(frame, position) or _answer(BodyReader(frame, position, flexible=True))
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedResponse(f"malformed Fetch response: {error}") from None
    except MalformedMessage as error:
        raise MalformedResponse(f"malformed Fetch response: {error.message}") from None


def _usual_answer(frame: memoryview, position: int) -> LeaderAnswer | None:
    """Decode the Fetch response that a follower gets for most appends: for one partition, without tagged
    fields. None if the response is of another form."""
    if len(frame) - position < _FOLLOWER_USUAL.size or bytes(frame[-len(_USUAL_END) :]) != _USUAL_END:
        return None
    fields = _FOLLOWER_USUAL.unpack_from(frame, position)
    if (fields[0], fields[4], fields[6], fields[12]) != _FOLLOWER_USUAL_MARKS:
        return None
    size, start = compact_size(frame, position + _FOLLOWER_USUAL.size)
    end = start + max(size, 0)
    if end + len(_USUAL_END) != len(frame):
        return None
    records = bytes(frame[start:end])
    index, error, high_watermark, _last_stable, log_start = fields[7:12]
    found = FetchedFromLeader(
        fields[5], index, _error_of(error), high_watermark, log_start, records, _NO_DIVERGENCE
    )
    return LeaderAnswer(_error_of(fields[2]), fields[3], [found])


def _answer(reader: BodyReader) -> LeaderAnswer:
    reader.skip_tags()  # of the header
    _throttle_ms, code, session_id = reader.fixed(_RESPONSE)
    partitions = [found for _ in range(reader.count()) for found in _topic(reader)]
    reader.skip_tags()
    return LeaderAnswer(_error_of(code), session_id, partitions)


def _error_of(code: int) -> ErrorCode:
    return ErrorCode.none if code == 0 else ErrorCode(code)


def _topic(reader: BodyReader) -> Iterable[FetchedFromLeader]:
    topic_id = reader.raw_uuid()
    partitions = [_partition_follower(reader, topic_id) for _ in range(reader.count())]
    reader.skip_tags()
    return partitions


def _partition_follower(reader: BodyReader, topic_id: bytes) -> FetchedFromLeader:
    index, error, high_watermark, _last_stable, log_start = reader.fixed(_PARTITION_DATA)
    for _ in range(reader.length32()):
        reader.take(_ABORTED_BYTES)
        reader.skip_tags()
    reader.take(4)  # the preferred read replica
    records = bytes(reader.take(max(reader.length32(), 0)))
    diverging = _diverging(reader)
    return FetchedFromLeader(topic_id, index, _error_of(error), high_watermark, log_start, records, diverging)


def _diverging(reader: BodyReader) -> tuple[LeaderEpoch, Offset]:
    value = reader.tagged_field(_DIVERGING_TAG)
    if value is None:
        return _NO_DIVERGENCE
    epoch, end_offset = _DIVERGING(value)
    return epoch, end_offset
