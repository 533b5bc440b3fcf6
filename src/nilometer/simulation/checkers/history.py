"""A history of the clients' sends, polls and transactions, and the check of it: anomalies, each with the
operations that show it.

For long runs :class:`LongHistory` stores each record once.
"""

from __future__ import annotations

import enum
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TypeVar

# A history of clients' sends, polls and transactions.
#
# Values are unique per partition. Every send is ok, certainly failed, or unknown (timed out, disconnected,
# NOT_LEADER_OR_FOLLOWER): an unknown one may or may not be in the log, but not twice.

Partition = str
"""`topic-number`."""


class Outcome(enum.Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One record passed to a producer; ``number`` is its index in the history."""

    number: int
    producer: str
    partition: Partition
    value: str
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    transaction: str | None = None
    may_repeat: bool = False
    """Whether its producer retries without idempotence: it may be in the log twice, and after later ones."""
    at_ms: int = 0
    """When it was sent, by the producer's wall clock."""

    def acknowledged(self, offset: int) -> None:
        self.outcome, self.offset = Outcome.OK, offset

    def acknowledged_somewhere(self) -> None:
        """Record an acknowledgement without offset: of a duplicate whose offset the broker no longer has."""
        self.outcome = Outcome.OK

    def failed(self) -> None:
        self.outcome = Outcome.FAILED

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at {self.offset}"
        sends = f"#{self.number} {self.producer} sends {self.value} to {self.partition}"
        return f"{sends}{place}: {self.outcome.value}"


@dataclass(frozen=True, slots=True)
class Seen:
    partition: Partition
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Poll:
    number: int
    consumer: str
    records: tuple[Seen, ...]
    transaction: str | None = None

    def __str__(self) -> str:
        return f"#{self.number} {self.consumer} polls {len(self.records)} records"


@dataclass(frozen=True, slots=True)
class Moved:
    """A consumer's position was changed other than by a poll: by an assignment, a rebalance, a seek."""

    number: int
    consumer: str
    partition: Partition | None = None


@dataclass(frozen=True, slots=True)
class ReadToEnd:
    """A consumer read every partition from its start to its end after all faults were healed."""

    number: int
    consumer: str


@dataclass(frozen=True, slots=True)
class LogStart:
    """Records below ``offset`` were deleted, which was allowed."""

    number: int
    partition: Partition
    offset: int


Operation = Send | Poll | Moved | ReadToEnd | LogStart
T = TypeVar("T", bound=Operation)


@dataclass(slots=True)
class History:
    """Operations in the order of their invocation; recording is thread-safe."""

    operations: list[Operation] = field(default_factory=list[Operation])
    log_starts: dict[Partition, int] = field(default_factory=dict[Partition, int])
    """Below these offsets records were deleted, which was allowed: none has to be found there."""
    _lock: Lock = field(default_factory=Lock)

    def _record(self, make: Callable[[int], T]) -> T:
        with self._lock:
            operation = make(len(self.operations))
            self.operations.append(operation)
            return operation

    def send(
        self,
        producer: str,
        partition: Partition,
        value: str,
        transaction: str | None = None,
        *,
        may_repeat: bool = False,
        at_ms: int = 0,
    ) -> Send:
        return self._record(
            lambda number: Send(
                number,
                producer,
                partition,
                value,
                transaction=transaction,
                may_repeat=may_repeat,
                at_ms=at_ms,
            )
        )

    def may_be_gone(self, send: Send) -> bool:
        """Return whether the record may be deleted: its offset, if known, is below the log start offset."""
        start = self.log_starts.get(send.partition, 0)
        return start > 0 and (send.offset is None or send.offset < start)

    def poll(self, consumer: str, records: Iterable[Seen], transaction: str | None = None) -> None:
        seen = tuple(records)
        self._record(lambda number: Poll(number, consumer, seen, transaction))

    def moved(self, consumer: str, partition: Partition | None = None) -> None:
        self._record(lambda number: Moved(number, consumer, partition))

    def log_starts_at(self, partition: Partition, offset: int) -> None:
        self.log_starts[partition] = offset
        self._record(lambda number: LogStart(number, partition, offset))

    def read_to_end(self, consumer: str) -> None:
        self._record(lambda number: ReadToEnd(number, consumer))

    @property
    def sends(self) -> list[Send]:
        return [each for each in self.operations if isinstance(each, Send)]

    @property
    def polls(self) -> list[Poll]:
        return [each for each in self.operations if isinstance(each, Poll)]

    def lines(self) -> Iterator[str]:
        """Yield each operation as a line of JSON, for the analysis of a failure."""
        for each in self.operations:
            fields = {"is": type(each).__name__, **asdict(each)}
            yield json.dumps(fields, default=lambda value: value.value) + "\n"

    def save(self, path: Path) -> None:
        with path.open("w") as file:
            file.writelines(self.lines())


# A history for long runs: every record is stored once, however often it is read.
#
# Of each poll only the records with new information are kept: the first one read at an offset, a different
# one, and the steps that did not lead to the next offset. The check of the history has the same result as
# with all records. Memory grows with the number of written records, not with that of read ones.

FIRST_SEEN = "first seen by {}"
"""The consumer name for records that are kept for their content, without the order of reading."""


@dataclass(slots=True)
class LongHistory(History):
    kept_whole: frozenset[str] = frozenset()
    """Consumers of which every poll is kept, because they must read all records."""
    _values: dict[Partition, dict[int, str]] = field(default_factory=dict[Partition, dict[int, str]])
    _last: dict[str, dict[Partition, int]] = field(default_factory=dict[str, dict[Partition, int]])

    def moved(self, consumer: str, partition: Partition | None = None) -> None:
        """Forget the consumer's position: its next record starts a new sequence."""
        if consumer in self.kept_whole:
            History.moved(self, consumer, partition)
        elif partition is None:
            self._last.pop(consumer, None)
        else:
            self._last.get(consumer, {}).pop(partition, None)

    def poll(self, consumer: str, records: Iterable[Seen], transaction: str | None = None) -> None:
        if consumer in self.kept_whole:
            History.poll(self, consumer, records, transaction)
            return
        last = self._last.setdefault(consumer, {})
        unseen: list[Seen] = []
        for seen in records:
            values = self._values.setdefault(seen.partition, {})
            if seen.offset not in values:
                values[seen.offset] = seen.value
                if unseen and not _follows(seen, unseen[-1]):
                    self._keep(FIRST_SEEN.format(consumer), unseen, transaction)
                    unseen = []
                unseen.append(seen)
            elif values[seen.offset] != seen.value:
                self._keep(FIRST_SEEN.format(consumer), [seen], transaction)
            before = last.get(seen.partition)
            if before is not None and seen.offset != before + 1:
                self._keep(consumer, [Seen(seen.partition, before, values[before]), seen], transaction)
            last[seen.partition] = seen.offset
        if unseen:
            self._keep(FIRST_SEEN.format(consumer), unseen, transaction)

    def _keep(self, consumer: str, records: list[Seen], transaction: str | None) -> None:
        """Keep a sequence of records that does not continue an earlier one."""
        History.moved(self, consumer, records[0].partition)
        History.poll(self, consumer, records, transaction)


def _follows(seen: Seen, before: Seen) -> bool:
    return seen.partition == before.partition and seen.offset == before.offset + 1


# Checking a history: finding anomalies, each with the operations that show it.
#
# Offsets of a reader need not be contiguous, since transaction markers take offsets: a reader has skipped a
# record only if the history has one in between.


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    partition: Partition
    description: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.partition}: {self.description}"


def check(history: History) -> list[Anomaly]:
    """Return all anomalies, in the order of the rules below."""
    knowledge = _Knowledge.of(history)
    return [
        *_inconsistent_offsets(knowledge),
        *_duplicates(history, knowledge),
        *_aborted_reads(history, knowledge),
        *_lost_writes(history, knowledge),
        *_nonmonotonic_sends(history),
        *_misread_order(history, knowledge),
        *_unseen(history),
        *_transaction_cycles(history),
    ]


@dataclass(slots=True)
class _Knowledge:
    """The content of each partition by acknowledgements and polls, with the operations that show it."""

    at: dict[tuple[Partition, int], dict[str, list[str]]]
    """(partition, offset) → value → operations."""
    places: dict[tuple[Partition, str], dict[int, list[str]]]
    """(partition, value) → offset → operations."""
    read: dict[tuple[Partition, str], list[str]]
    """(partition, value) → polls that returned it."""
    last_read: dict[Partition, int]
    """The highest offset that was read."""

    @classmethod
    def of(cls, history: History) -> _Knowledge:
        known = cls(
            defaultdict(lambda: defaultdict(list)),
            defaultdict(lambda: defaultdict(list)),
            defaultdict(list),
            {},
        )
        for send in history.sends:
            if send.offset is not None:
                known._learn(send.partition, send.offset, send.value, str(send))
        for poll in history.polls:
            for seen in poll.records:
                known._learn(seen.partition, seen.offset, seen.value, str(poll))
                known.read[seen.partition, seen.value].append(str(poll))
                known.last_read[seen.partition] = max(seen.offset, known.last_read.get(seen.partition, -1))
        return known

    def _learn(self, partition: Partition, offset: int, value: str, witness: str) -> None:
        self.at[partition, offset][value].append(witness)
        self.places[partition, value][offset].append(witness)


def _inconsistent_offsets(known: _Knowledge) -> Iterator[Anomaly]:
    for (partition, offset), values in sorted(known.at.items()):
        if len(values) > 1:
            description = "; ".join(
                f"{value} ({witnesses[0]})" for value, witnesses in sorted(values.items())
            )
            yield Anomaly("inconsistent-offsets", partition, f"offset {offset} holds {description}")


def _duplicates(history: History, known: _Knowledge) -> Iterator[Anomaly]:
    """Yield the values that are at several offsets.

    Not if the log start offset passed the first one before: a replica that fetched the log after that has no
    state of the producer, and may accept a duplicate.
    """
    excused = {(send.partition, send.value) for send in history.sends if send.may_repeat}
    starts: dict[Partition, list[int]] = defaultdict(list)
    for each in history.operations:
        if isinstance(each, LogStart):
            starts[each.partition].append(each.offset)
    for (partition, value), places in sorted(known.places.items()):
        if len(places) < 2 or (partition, value) in excused:
            continue
        repeats = pairwise(sorted(places))
        if not all(any(first < start <= again for start in starts[partition]) for first, again in repeats):
            description = "; ".join(
                f"{offset} ({witnesses[0]})" for offset, witnesses in sorted(places.items())
            )
            yield Anomaly("duplicate", partition, f"{value} is at {description}")


def _aborted_reads(history: History, known: _Knowledge) -> Iterator[Anomaly]:
    for send in history.sends:
        witnesses = known.read.get((send.partition, send.value))
        if send.outcome is Outcome.FAILED and witnesses:
            yield Anomaly("aborted-read", send.partition, f"{send}; yet {witnesses[0]} returned it")


def _lost_writes(history: History, known: _Knowledge) -> Iterator[Anomaly]:
    for send in history.sends:
        if send.outcome is not Outcome.OK or send.offset is None or history.may_be_gone(send):
            continue
        read_to = known.last_read.get(send.partition, -1)
        if read_to > send.offset and (send.partition, send.value) not in known.read:
            yield Anomaly(
                "lost-write", send.partition, f"{send}; offset {read_to} was read, this record never was"
            )


def _nonmonotonic_sends(history: History) -> Iterator[Anomaly]:
    acknowledged: dict[tuple[str, Partition], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.OK and send.offset is not None and not send.may_repeat:
            acknowledged[send.producer, send.partition].append(send)
    for (_, partition), sends in sorted(acknowledged.items()):
        for earlier, later in pairwise(sends):
            if (later.offset or 0) <= (earlier.offset or 0):
                yield Anomaly("nonmonotonic-send", partition, f"{earlier}; then {later}")


def _misread_order(history: History, known: _Knowledge) -> Iterator[Anomaly]:
    """Yield poll-skip and nonmonotonic-poll, between polls and inside one."""
    offsets: dict[Partition, list[int]] = defaultdict(list)
    for partition, offset in sorted(known.at):
        offsets[partition].append(offset)
    rank = {
        (partition, offset): index for partition in offsets for index, offset in enumerate(offsets[partition])
    }
    position: dict[tuple[str, Partition], int] = {}
    rises: dict[Partition, list[LogStart]] = defaultdict(list)
    for each in history.operations:
        if isinstance(each, LogStart):
            rises[each.partition].append(each)
    for operation in history.operations:
        match operation:
            case Moved(consumer=consumer, partition=None):
                position = {key: last for key, last in position.items() if key[0] != consumer}
            case Moved(consumer=consumer, partition=str(partition)):
                position.pop((consumer, partition), None)
            case Poll():
                for seen in operation.records:
                    last = position.get((operation.consumer, seen.partition))
                    if last is not None and not _was_out_of_range(rises[seen.partition], operation, last + 1):
                        step = rank[seen.partition, seen.offset] - rank[seen.partition, last]
                        start = history.log_starts.get(seen.partition, 0)
                        yield from _judge_step(operation, seen, last, step, offsets, start)
                    position[operation.consumer, seen.partition] = seen.offset
            case _:
                pass


def _was_out_of_range(rises: list[LogStart], poll: Poll, position: int) -> bool:
    """Return whether the records at the consumer's position were deleted by then or soon after.

    Then it restarts at the log start offset of its current leader, which may be lower if that leader has not
    deleted the records yet.
    """
    following = bisect_right(rises, poll.number, key=lambda rise: rise.number)
    return any(rise.offset > position for rise in rises[max(following - 1, 0) : following + 1])


def _judge_step(
    poll: Poll, seen: Seen, last: int, step: int, offsets: dict[Partition, list[int]], start: int
) -> Iterator[Anomaly]:
    if step <= 0:
        yield Anomaly("nonmonotonic-poll", seen.partition, f"{poll}: {last}, then {seen.offset}")
    elif step > 1:
        first = max(last + 1, start)
        jumped = [offset for offset in offsets[seen.partition] if first <= offset < seen.offset]
        description = f"{poll}: {last}, then {seen.offset}, over {jumped[:5]}{'…' if len(jumped) > 5 else ''}"
        if jumped:
            yield Anomaly("poll-skip", seen.partition, description)


def _unseen(history: History) -> Iterator[Anomaly]:
    finishers = sorted({each.consumer for each in history.operations if isinstance(each, ReadToEnd)})
    for consumer in finishers:
        read = {
            (seen.partition, seen.value)
            for poll in history.polls
            if poll.consumer == consumer
            for seen in poll.records
        }
        for send in history.sends:
            is_there = send.outcome is Outcome.OK and not history.may_be_gone(send)
            if is_there and (send.partition, send.value) not in read:
                yield Anomaly("unseen", send.partition, f"{send}; {consumer} read to the end without it")


def _transaction_cycles(history: History) -> Iterator[Anomaly]:
    """Yield G0 (a cycle of write-write order only) and G1c (of write-write and write-read order)."""
    writes: dict[Partition, list[tuple[int, str, str]]] = defaultdict(list)
    writer: dict[tuple[Partition, str], str] = {}
    for send in history.sends:
        if send.transaction is not None and send.outcome is Outcome.OK and send.offset is not None:
            writes[send.partition].append((send.offset, send.transaction, send.value))
            writer[send.partition, send.value] = send.transaction
    write_write: dict[str, set[str]] = defaultdict(set)
    for each in writes.values():
        for (_, before, _), (_, after, _) in pairwise(sorted(each)):
            if before != after:
                write_write[before].add(after)
    both = defaultdict(set, {before: set(after) for before, after in write_write.items()})
    for poll in history.polls:
        for seen in poll.records:
            wrote = writer.get((seen.partition, seen.value))
            if poll.transaction is not None and wrote is not None and wrote != poll.transaction:
                both[wrote].add(poll.transaction)
    g0 = find_cycle(write_write)
    if g0:
        yield Anomaly("G0", "transactions", " → ".join(g0))
    g1c = find_cycle(both)
    if g1c and not g0:
        yield Anomaly("G1c", "transactions", " → ".join(g1c))


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """Return one cycle of the graph, or an empty list (depth first search without recursion)."""
    done: set[str] = set()
    for root in sorted(edges):
        path: list[str] = []
        pending: list[tuple[str, Iterator[str]]] = [(root, iter(sorted(edges.get(root, ()))))]
        if root in done:
            continue
        path.append(root)
        while pending:
            node, following = pending[-1]
            successor = next(following, None)
            if successor is None:
                done.add(node)
                path.pop()
                pending.pop()
            elif successor in path:
                return [*path[path.index(successor) :], successor]
            elif successor not in done:
                path.append(successor)
                pending.append((successor, iter(sorted(edges.get(successor, ())))))
    return []
