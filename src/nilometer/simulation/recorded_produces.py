"""Who wrote what: the Produce requests for some partitions, with what was answered, from the bytes between a
recorded broker and its clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from nilometer.identifiers import TopicId, topic_id_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.body_reader import end
from nilometer.wire.errors import CorruptBatch, ErrorCode, MalformedMessage, UnsupportedMagic
from nilometer.wire.frames import FrameSplitter, FrameTooLarge
from nilometer.wire.messages import (
    RequestHeader,
    decode_correlation_id,
    decode_request_header,
    decode_response,
)
from nilometer.wire.produce import (
    VERSION_MAX,
    VERSION_MIN,
    ProduceBody,
    ProducedRecords,
    begin_produce_body,
)
from nilometer.wire.record_batch import batches

Partition = tuple[str, int]
UNREADABLE = (MalformedMessage, UnicodeDecodeError, ValueError)


class Answer(NamedTuple):
    at_ms: int
    error: ErrorCode
    base_offset: int
    """-1 if nothing was written."""
    message: str | None


class Produce(NamedTuple):
    """The part of a Produce request for one partition. Times are the broker's wall times, in milliseconds."""

    partition: str
    client: str
    """Its address."""
    principal: str
    client_id: str | None
    version: int
    acks: int
    transactional_id: str | None
    arrived_ms: int
    records: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    """-1, as the two before, if the producer is not idempotent."""
    answer: Answer | None
    """None: the recording or the connection has ended before it, or acks=0, to which nothing is answered."""

    @property
    def offsets(self) -> range | None:
        """Return the offsets that the records have, if the client was told."""
        answer = self.answer
        if answer is None or answer.error is not ErrorCode.none or answer.base_offset < 0:
            return None
        return range(answer.base_offset, answer.base_offset + self.records)

    @property
    def text(self) -> str:
        """Return a line without its partition."""
        writer = (
            f", producer {self.producer_id} epoch {self.producer_epoch} sequence {self.base_sequence}"
            if self.producer_id >= 0
            else ""
        )
        records = "1 record" if self.records == 1 else f"{self.records} records"
        transaction = f", transaction {self.transactional_id!r}" if self.transactional_id is not None else ""
        return (
            f"Produce of {records} by client {self.client_id!r} "
            f"({self.principal} at {self.client}), acks={self.acks}{writer}{transaction}: {self._outcome}"
        )

    @property
    def _outcome(self) -> str:
        answer, offsets = self.answer, self.offsets
        if answer is None:
            return "nothing is answered with acks=0" if self.acks == 0 else "no response is recorded"
        after = f"after {answer.at_ms - self.arrived_ms} ms"
        if offsets:
            return f"offsets {offsets[0]} to {offsets[-1]}, answered {after}"
        message = f" ({answer.message})" if answer.message else ""
        return f"answered {answer.error.name.upper()}{message} {after}"


class ClientConnection:
    """The Produce requests of one connection for some partitions, and their responses."""

    def __init__(
        self,
        wanted: Collection[Partition],
        names: Mapping[TopicId, str],
        client: str,
        principal: Callable[[], str],
    ) -> None:
        self._wanted = wanted
        self._names = names
        self._client = client
        self._principal = principal
        self._requests = FrameSplitter()
        self._responses = FrameSplitter()
        self._unanswered: dict[int, deque[tuple[RequestHeader, list[Produce]]]] = {}
        self._is_readable = True

    def on_arrived(self, data: bytes, at_ms: int) -> Iterator[Produce]:
        """Yield the requests that ``data`` completes and to which there is no response: acks=0."""
        for frame in self._frames(self._requests, data):
            try:
                header = decode_request_header(frame)
                if header.api_key != ApiKey.PRODUCE or not VERSION_MIN <= header.api_version <= VERSION_MAX:
                    continue
                body = end(begin_produce_body(header.api_version, memoryview(frame), header.size))
                parts = list(self._parts(header, body, at_ms))
            except UNREADABLE:  # the broker refuses it
                continue
            if body.acks == 0:
                yield from parts
            elif parts:
                self._unanswered.setdefault(header.correlation_id, deque()).append((header, parts))

    def on_sent(self, data: bytes, at_ms: int) -> Iterator[Produce]:
        """Yield the requests to which ``data`` completes the responses."""
        for frame in self._frames(self._responses, data):
            try:
                asked = self._unanswered.get(decode_correlation_id(frame))
                if not asked:
                    continue
                header, parts = asked.popleft()
                answers = _answers(header, frame, self._names, at_ms)
            except UNREADABLE:  # no response, but what a login has instead
                continue
            yield from (part._replace(answer=answers.get(part.partition)) for part in parts)

    def on_lost(self) -> Iterator[Produce]:
        """Yield the requests to which there will be no response."""
        for asked in self._unanswered.values():
            for _, parts in asked:
                yield from parts
        self._unanswered.clear()

    def _frames(self, splitter: FrameSplitter, data: bytes) -> list[bytes]:
        if not self._is_readable:
            return []
        try:
            return splitter.feed(data)
        except FrameTooLarge:  # the broker closes the connection
            self._is_readable = False
            return []

    def _parts(self, header: RequestHeader, body: ProduceBody, at_ms: int) -> Iterator[Produce]:
        for topic in body.topics:
            name = _name_of(topic.topic, self._names)
            for one in topic.partitions:
                if name is not None and (name, one.partition) in self._wanted:
                    records, *producer = _described(one)
                    yield Produce(
                        f"{name}-{one.partition}",
                        self._client,
                        self._principal(),
                        header.client_id,
                        header.api_version,
                        body.acks,
                        body.transactional_id,
                        at_ms,
                        records,
                        *producer,
                        answer=None,
                    )


def _name_of(topic: str | UUID, names: Mapping[TopicId, str]) -> str | None:
    return topic if isinstance(topic, str) else names.get(topic_id_of(topic))


def _described(part: ProducedRecords) -> tuple[int, int, int, int]:
    """Return how many records there are, the producer's id and epoch, and the first sequence number."""
    try:
        headers = [header for _, header in batches(part.records or b"")]
    except (CorruptBatch, UnsupportedMagic):
        headers = []
    if not headers:
        return 0, -1, -1, -1
    first = headers[0]
    records = sum(each.records_count for each in headers)
    return records, first.producer_id, first.producer_epoch, first.base_sequence


def _answers(
    header: RequestHeader, frame: bytes, names: Mapping[TopicId, str], at_ms: int
) -> dict[str, Answer]:
    _, response = decode_response(ApiKey.PRODUCE, header.api_version, frame)
    found: dict[str, Answer] = {}
    for topic in response.responses:
        name = names.get(topic_id_of(topic.topic_id)) if header.api_version >= VERSION_MAX else topic.name
        for one in topic.partition_responses:
            message = getattr(one, "error_message", None)  # from version 8 on
            found[f"{name}-{one.index}"] = Answer(at_ms, one.error_code, one.base_offset, message)
    return found
