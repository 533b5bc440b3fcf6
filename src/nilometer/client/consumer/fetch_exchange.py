"""What a consumer sends in Fetch requests and reads from their responses: the fetch session, the partitions,
their records. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple
from uuid import UUID

from typing_extensions import TypeVar

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import CorruptBatch, ErrorCode, KafkaError
from nilometer.wire.record_batch import BatchHeader, batches, check_batch
from nilometer.wire.records import Header, Record, decode_records

# The consumer's side of a fetch session (KIP-227): a request names only partitions that changed. Pure.
#
# In a session the broker remembers the requested partitions and their fetch offsets. The first request is
# full; later ones name the partitions that are new, whose offset changed, or that the broker must forget.
#
# Invariant: ``_remembered`` are the partitions of the broker's session, if it processed the last request.
# After a session error or a failed request that is unknown: the next request is full again.

NO_SESSION = 0
FULL_FETCH_EPOCH = 0
EPOCH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class WantedPartition:
    topic_id: UUID | None
    fetch_offset: int
    leader_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchPlan:
    session_id: int
    session_epoch: int
    send: Mapping[TopicPartition, WantedPartition]
    forget: Mapping[TopicPartition, UUID | None]
    wanted: Mapping[TopicPartition, WantedPartition]
    """All partitions of this fetch, named in the request or remembered by the broker."""


class FetchSessionHandler:
    """The fetch session with one broker."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FULL_FETCH_EPOCH
        self._remembered: dict[TopicPartition, WantedPartition] = {}

    def plan(self, wanted: Mapping[TopicPartition, WantedPartition]) -> FetchPlan:
        """Return the plan of the next request, which the caller must send.

        The caller then reports its outcome by :meth:`on_answer` or :meth:`on_disconnected`.
        """
        remembered = self._remembered
        if any(
            part in remembered and remembered[part].topic_id != one.topic_id for part, one in wanted.items()
        ):
            self.reset()  # a topic was deleted and created again, so its name has another id
        if self._epoch == FULL_FETCH_EPOCH:
            send, forget = dict(wanted), {}
        else:
            send = {part: one for part, one in wanted.items() if remembered.get(part) != one}
            forget = {part: one.topic_id for part, one in remembered.items() if part not in wanted}
        self._remembered = dict(wanted)
        return FetchPlan(self._session_id, self._epoch, send, forget, dict(wanted))

    def on_answer(self, code: ErrorCode, session_id: int) -> None:
        if code != ErrorCode.none:
            self.reset()
        elif session_id == NO_SESSION:
            self._session_id, self._epoch, self._remembered = NO_SESSION, FULL_FETCH_EPOCH, {}
        else:
            self._session_id = session_id
            self._epoch = self._epoch % EPOCH_MAX + 1

    def reset(self) -> None:
        """Open a new session with the next request, which also makes the broker drop the old one."""
        self._epoch = FULL_FETCH_EPOCH
        self._remembered = {}

    def on_disconnected(self) -> None:
        """Open a new session: it is unknown whether the broker processed the request."""
        self.reset()


# The records of one partition from one Fetch response, returned in portions. Pure.
#
# Batches are checked and decoded one at a time, when the first of their records is needed. Control records
# are never returned; with ``read_committed`` neither are the records of aborted transactions: the response
# lists their producer ids and first offsets, and the producer's abort marker ends each.

ABORT_MARKER = b"\x00\x00"
"""The type field (after a two-byte version) in the key of the control record of an aborted transaction."""


K = TypeVar("K", default=bytes | None)
V = TypeVar("V", default=bytes | None)


class ConsumerRecord(NamedTuple, Generic[K, V]):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    """0: set by the producer. 1: by the broker, when it appended the record."""
    key: K
    value: V
    headers: tuple[Header, ...]
    leader_epoch: int

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of this name; None if it is null, or there is none."""
        values = self.header_values(name)
        return values[-1] if values else None

    def header_values(self, name: str) -> list[bytes | None]:
        """Return the values of all headers of this name, in their order: a name may be repeated."""
        return [value for header, value in self.headers if header == name]


def record_bytes(record: ConsumerRecord) -> int:
    """Return how many bytes the record's key, value and headers have."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


class FetchedRecords:
    def __init__(
        self,
        partition: TopicPartition,
        generation: int,
        offset: int,
        data: bytes,
        *,
        aborted: Sequence[tuple[int, int]] = (),
        check_crcs: bool = True,
        read_committed: bool = False,
    ) -> None:
        self.partition = partition
        self.generation = generation
        self.next_offset = offset
        """The offset after the last returned record: the user's next position."""
        self.epoch = NO_LEADER_EPOCH
        """The leader epoch of the record before ``next_offset``."""
        self._data = data
        self._check_crcs = check_crcs
        self._read_committed = read_committed
        self._batches = list(batches(data))
        self._batch_index = 0
        self._aborted = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._aborted_producers: dict[int, None] = {}
        self._records: list[Record] = []
        self._record_index = 0
        self._header: BatchHeader | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the last batch: where to fetch next."""
        return self._batches[-1][1].next_offset if self._batches else self.next_offset

    @property
    def is_exhausted(self) -> bool:
        return self._record_index >= len(self._records) and self._batch_index >= len(self._batches)

    def take(self, count: int, bytes_max: int | None = None) -> list[ConsumerRecord]:
        """Return up to ``count`` records, none at the end. Each call at a corrupt batch raises KafkaError.

        ``bytes_max``: no further batch is decompressed once the records have so many bytes.
        """
        taken: list[ConsumerRecord] = []
        taken_bytes = 0
        topic, index = self.partition
        while len(taken) < count:
            if self._record_index >= len(self._records) and not self._next_batch(bool(taken)):
                break
            assert self._header is not None
            begin = self._record_index
            part = self._records[begin : begin + count - len(taken)]
            self._record_index += len(part)
            kind, epoch = self._header.timestamp_type, self._header.partition_leader_epoch
            taken += [
                ConsumerRecord(topic, index, offset, timestamp, kind, key, value, headers, epoch)
                for offset, timestamp, key, value, headers in part
            ]
            self.epoch = epoch
            if self._record_index >= len(self._records):
                self.next_offset = self._header.next_offset
            else:
                self.next_offset = part[-1].offset + 1
            if bytes_max is not None:
                taken_bytes += sum(map(record_bytes, taken[len(taken) - len(part) :]))
                if taken_bytes >= bytes_max:
                    break
        return taken

    def _next_batch(self, some_taken: bool) -> bool:
        """Advance to the next batch with records for the user; return False if there is none.

        Raises KafkaError for a corrupt batch; returns False instead if ``some_taken``: the next call raises.
        """
        while self._batch_index < len(self._batches):
            position, header = self._batches[self._batch_index]
            try:
                records = self._decode(position, header)
            except KafkaError as error:
                if some_taken:
                    return False  # return the good records first; the next call raises the error
                raise KafkaError(
                    error.code, f"{self.partition} at offset {header.base_offset}: {error.message}"
                ) from error
            self._batch_index += 1
            if records:
                self._records, self._record_index, self._header = records, 0, header
                return True
            self.next_offset = max(self.next_offset, header.next_offset)
            self.epoch = header.partition_leader_epoch
        return False

    def _decode(self, position: int, header: BatchHeader) -> list[Record]:
        if header.next_offset <= self.next_offset:
            return []
        if self._check_crcs:
            check_batch(self._data, position, header)
        if header.is_control:
            self._on_control(position, header)
            return []
        if self._read_committed and self._is_aborted(header):
            return []
        records = decode_records(self._data, position, header)
        if header.base_offset < self.next_offset:
            records = [record for record in records if record.offset >= self.next_offset]
        return records

    def _is_aborted(self, header: BatchHeader) -> bool:
        while self._aborted and self._aborted[-1][1] <= header.last_offset:
            self._aborted_producers[self._aborted.pop()[0]] = None
        return header.is_transactional and header.producer_id in self._aborted_producers

    def _on_control(self, position: int, header: BatchHeader) -> None:
        if not self._read_committed:
            return
        self._is_aborted(header)
        for record in decode_records(self._data, position, header):
            if record.key is None or len(record.key) < 4:
                raise CorruptBatch("control record without a type")
            if record.key[2:4] == ABORT_MARKER:
                self._aborted_producers.pop(header.producer_id, None)


def damaged(partition: TopicPartition, offset: int) -> KafkaError:
    """Return the error for a Fetch response that contains no whole batch."""
    return KafkaError(
        ErrorCode.corrupt_message,
        f"{partition} at offset {offset}: the fetch response is not a record batch",
    )


# Makes Fetch requests from fetch plans, and reads the responses per partition. Pure.

TOPIC_IDS_SINCE = 13
"""The first version of Fetch that names topics only by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    isolation_level: int
    rack: str


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """A Fetch response for one partition."""

    partition: TopicPartition
    code: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: bytes
    aborted: Sequence[tuple[int, int]]
    """(producer id, first offset) of the aborted transactions in ``records``; for read_committed only."""
    leader_id: int
    leader_epoch: int
    preferred_replica: int


def fetch_request(api: Api, plan: FetchPlan, limits: FetchLimits) -> Message:
    by_topic: dict[tuple[str, UUID | None], list[Message]] = {}
    for partition, wanted in plan.send.items():
        part = api.make_request(
            "FetchPartition",
            partition=partition.partition,
            current_leader_epoch=wanted.leader_epoch,
            fetch_offset=wanted.fetch_offset,
            last_fetched_epoch=NO_LEADER_EPOCH,
            log_start_offset=-1,
            partition_max_bytes=wanted.max_bytes,
        )
        by_topic.setdefault((partition.topic, wanted.topic_id), []).append(part)
    forgotten: dict[tuple[str, UUID | None], list[int]] = {}
    for partition, topic_id in plan.forget.items():
        forgotten.setdefault((partition.topic, topic_id), []).append(partition.partition)
    topics = tuple(
        api.make_request("FetchTopic", topic=name, topic_id=topic_id, partitions=tuple(parts))
        for (name, topic_id), parts in by_topic.items()
    )
    gone = tuple(
        api.make_request("ForgottenTopic", topic=name, topic_id=topic_id, partitions=tuple(parts))
        for (name, topic_id), parts in forgotten.items()
    )
    fields: dict[str, object] = {"replica_id": -1} if api.version < 15 else {}
    return api.request(
        **fields,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=limits.isolation_level,
        session_id=plan.session_id,
        session_epoch=plan.session_epoch,
        topics=topics,
        forgotten_topics_data=gone,
        rack_id=limits.rack,
    )


def read_fetch_response(response: Message, names: Mapping[UUID, str]) -> list[FetchResponse]:
    """Return the response per partition; ``names`` maps the requested topic ids to names.

    Other topics of the response are dropped.
    """
    answers: list[FetchResponse] = []
    for topic in response.responses:
        name = topic.topic if hasattr(topic, "topic") else names.get(topic.topic_id)
        if name is None:
            continue
        for part in topic.partitions:
            leader = getattr(part, "current_leader", None)
            answers.append(
                FetchResponse(
                    partition=TopicPartition(name, part.partition_index),
                    code=part.error_code,
                    high_watermark=part.high_watermark,
                    log_start_offset=getattr(part, "log_start_offset", -1),
                    records=part.records or b"",
                    aborted=[(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()],
                    leader_id=leader.leader_id if leader is not None else -1,
                    leader_epoch=leader.leader_epoch if leader is not None else NO_LEADER_EPOCH,
                    preferred_replica=getattr(part, "preferred_read_replica", -1),
                )
            )
    return answers
