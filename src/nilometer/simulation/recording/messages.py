"""The messages between two brokers, from the bytes of their connection, as words for a recording.

Fetches are described by what they say of the recorded partitions, other messages by their names. Left out are
fetches and responses that concern no recorded partition (most of them only wait), and ApiVersions, by which
brokers connect and confirm that they are alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from nilometer.identifiers import NO_LEADER_EPOCH, TopicId, topic_id_of
from nilometer.wire import follower_fetch_body
from nilometer.wire.api_keys import ApiKey, any_api_key
from nilometer.wire.errors import CorruptBatch, ErrorCode, UnsupportedMagic
from nilometer.wire.fetch import WantedPartition, decode_fetch_body
from nilometer.wire.follower_fetch_body import FetchedFromLeader, decode_leader_answer
from nilometer.wire.frames import LENGTH_BYTES, FrameSplitter
from nilometer.wire.messages import (
    RequestHeader,
    decode_correlation_id,
    decode_request,
    decode_request_header,
)
from nilometer.wire.record_batch import batches

PARTITIONS_NAMED = 4
"""A message's text names at most this many partitions."""

Names = Mapping[TopicId, str]
"""The names of the recorded topics, by id."""


class Message(NamedTuple):
    text: str
    partitions: tuple[str, ...]


class Stream:
    """One direction of a connection: which messages were sent, and which of them have arrived.

    Invariant: messages arrive in the order in which they were sent.
    """

    def __init__(self, describe: Callable[[bytes], Message | None]) -> None:
        self._describe = describe
        self._frames = FrameSplitter()
        self._sent_bytes = 0
        self._arrived_bytes = 0
        self._in_flight: deque[tuple[int, int, Message]] = deque()
        """(the position of its end, number, message)"""

    def on_sent(self, data: bytes, next_number: Callable[[], int]) -> list[tuple[int, Message]]:
        """Return the messages that ``data`` completes, with their new numbers."""
        sent: list[tuple[int, Message]] = []
        for frame in self._frames.feed(data):
            self._sent_bytes += LENGTH_BYTES + len(frame)
            message = self._describe(frame)
            if message is not None:
                sent.append((next_number(), message))
                self._in_flight.append((self._sent_bytes, *sent[-1]))
        return sent

    def on_arrived(self, size: int) -> list[tuple[int, Message]]:
        """Return the messages whose last byte is among the next ``size`` bytes."""
        self._arrived_bytes += size
        arrived: list[tuple[int, Message]] = []
        while self._in_flight and self._in_flight[0][0] <= self._arrived_bytes:
            _, number, message = self._in_flight.popleft()
            arrived.append((number, message))
        return arrived

    def on_dropped(self) -> list[tuple[int, Message]]:
        """Return the messages that will not arrive any more."""
        dropped = [(number, message) for _, number, message in self._in_flight]
        self._in_flight.clear()
        return dropped


class Conversation:
    """The two directions of a connection between brokers; a response is described by its request."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._asked: dict[int, RequestHeader] = {}
        self.requests = Stream(self._request)
        self.responses = Stream(self._response)

    def _request(self, frame: bytes) -> Message | None:
        header = decode_request_header(frame)
        self._asked[header.correlation_id] = header
        match header.api_key:
            case ApiKey.FETCH:
                return fetch(header, frame, self._names)
            case ApiKey.ALTER_PARTITION:
                return _alter_partition(frame, self._names)
            case ApiKey.API_VERSIONS:
                return None
            case _:
                return Message(_name(header.api_key), ())

    def _response(self, frame: bytes) -> Message | None:
        header = self._asked.pop(decode_correlation_id(frame), None)
        if header is None:
            return Message("response", ())
        if header.api_key == ApiKey.FETCH:
            return fetch_response(header, frame, self._names)
        if header.api_key == ApiKey.API_VERSIONS:
            return None
        return Message(f"{_name(header.api_key)} response", ())


def fetch(header: RequestHeader, frame: bytes, names: Names) -> Message | None:
    body = decode_fetch_body(header.api_version, memoryview(frame), header.size)
    wanted = [
        (f"{name}-{one.partition}", one)
        for topic, partitions in body.topics
        if isinstance(topic, bytes) and (name := names.get(topic_id_of(UUID(bytes=topic)))) is not None
        for one in partitions
    ]
    return _listed("Fetch", wanted, _describe_wanted)


def fetch_response(header: RequestHeader, frame: bytes, names: Names) -> Message | None:
    """Return the description of a leader's response to a follower."""
    if not follower_fetch_body.VERSION_MIN <= header.api_version <= follower_fetch_body.VERSION_MAX:
        return Message("Fetch response", ())
    found = [
        (f"{name}-{one.partition}", one)
        for one in decode_leader_answer(memoryview(frame), 4).partitions
        if (name := names.get(topic_id_of(UUID(bytes=one.topic_id)))) is not None
    ]
    return _listed("Fetch response", found, _describe_found)


def _alter_partition(frame: bytes, names: Names) -> Message:
    _, request = decode_request(frame)
    wanted: list[tuple[str, Any]] = [
        (f"{name}-{one.partition_index}", one)
        for topic in request.topics
        if (name := names.get(topic_id_of(topic.topic_id))) is not None
        for one in topic.partitions
    ]
    return _listed("AlterPartition", wanted, _describe_isr) or Message("AlterPartition", ())


def _listed(name: str, parts: list[tuple[str, Any]], describe: Callable[[Any], str]) -> Message | None:
    if not parts:
        return None
    text = ", ".join(f"{partition} {describe(one)}" for partition, one in parts[:PARTITIONS_NAMED])
    more = f", and {len(parts) - PARTITIONS_NAMED} more" if len(parts) > PARTITIONS_NAMED else ""
    return Message(f"{name} {text}{more}", tuple(partition for partition, _ in parts))


def _describe_wanted(one: WantedPartition) -> str:
    epoch = f" (last epoch {one.last_fetched_epoch})" if one.last_fetched_epoch != NO_LEADER_EPOCH else ""
    return f"from {one.fetch_offset}{epoch}"


def _describe_found(one: FetchedFromLeader) -> str:
    if one.error is not ErrorCode.none:
        return one.error.name.upper()
    epoch, end_offset = one.diverging
    if epoch != NO_LEADER_EPOCH:
        return f"diverges: epoch {epoch} ends at {end_offset}"
    return f"{_records(one.records)}, HW {one.high_watermark}"


def _describe_isr(one: Any) -> str:
    members: Iterable[Any] = one.new_isr_with_epochs
    return f"ISR {', '.join(str(int(member.broker_id)) for member in members)}"


def _records(records: bytes) -> str:
    try:
        headers = [header for _, header in batches(records)]
    except (CorruptBatch, UnsupportedMagic):
        return "damaged records"
    return f"offsets {headers[0].base_offset} to {headers[-1].last_offset}" if headers else "no records"


def _name(api_key: int) -> str:
    return "".join(word.capitalize() for word in any_api_key(api_key).name.split("_"))
