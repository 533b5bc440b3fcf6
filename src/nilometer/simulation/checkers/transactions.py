"""The ledger of transactions, and the check of what readers saw of them."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from nilometer.simulation.checkers.history import History, Outcome, Partition, check, find_cycle

# The ledger of transactions: the writes of each one, and the response to its commit. No I/O.
#
# A transaction is aborted if its commit was never requested, or certainly rejected: no reader may see its
# records. It is committed if the commit was acknowledged. If the outcome of the commit is unknown, readers
# may see all of its records, or none.
#
# No value is written twice, so that a value that a reader returns identifies the write.

NO_PRODUCER_ID = -1
"""Of a transaction whose producer keeps its id to itself."""


class Fate(enum.Enum):
    OPEN = "open"
    """Its commit was not requested yet; if it never is, the transaction is aborted."""
    UNKNOWN = "unknown"
    """Its commit was requested; the outcome is not known."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Its commit was rejected, and no earlier request can have succeeded."""


@dataclass(slots=True)
class Written:
    partition: Partition
    value: str
    offset: int | None = None
    """The acknowledged offset; None if the outcome is unknown."""


class Consumed(msgspec.Struct, frozen=True):
    """An input of the transaction: its offset is committed with it."""

    partition: Partition
    offset: int
    value: str


@dataclass(slots=True)
class LoggedTransaction:
    number: int
    """Counts the transactions in the order in which they began."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    fate: Fate = Fate.OPEN
    writes: list[Written] = field(default_factory=list[Written])
    inputs: tuple[Consumed, ...] = ()
    read: list[str] = field(default_factory=list[str])
    """Values that its program read, as a read_committed consumer, while it was open."""

    def write(self, partition: Partition, value: str) -> Written:
        written = Written(partition, value)
        self.writes.append(written)
        return written

    def __str__(self) -> str:
        producer = f"producer {self.producer_id}, epoch {self.producer_epoch}"
        return f"transaction {self.number} of {self.transactional_id} ({producer}; {self.fate.value})"


@dataclass(slots=True)
class TransactionLedger:
    transactions: list[LoggedTransaction] = field(default_factory=list[LoggedTransaction])

    def begin(self, transactional_id: str, producer_id: int, producer_epoch: int) -> LoggedTransaction:
        begun = LoggedTransaction(len(self.transactions), transactional_id, producer_id, producer_epoch)
        self.transactions.append(begun)
        return begun


# Checks of transactions: compares the records that read_committed readers saw with the producers' ledger.
#
# No I/O. It finds these anomalies:
#
# - *aborted read*: a reader saw a record of a transaction that was certainly aborted;
# - *torn transaction*: the last reader, which read to the end, saw some records of a transaction but not all;
# - *lost record*: a reader passed a committed record, or read to the end without it;
# - *G0*, dirty write: in a partition, a record of a later transaction is before a record of an earlier
#   transaction of the same transactional id. Records of different ids may be in any order;
# - *G1c*, circular information flow: each of two or more transactions in a circle has read, while it was
#   open, values that the next one wrote;
# - *exactly once*: each input has one committed output, and matches the committed offsets.

OUTPUT_MARK = ">"
"""Separates, in the value of an output, the input's value from the transaction's number."""


class Visible(msgspec.Struct, frozen=True):
    """The records that one reader has seen; here the last reader, which reads to the end."""

    values: Mapping[Partition, Mapping[int, str]]
    """Partition -> offset -> value."""

    def has(self, written: Written) -> bool:
        found = self.values.get(written.partition, {})
        return written.value in found.values() if written.offset is None else written.offset in found

    @classmethod
    def by(cls, history: History, consumer: str) -> Visible:
        values: dict[Partition, dict[int, str]] = defaultdict(dict)
        for poll in history.polls:
            if poll.consumer == consumer:
                for seen in poll.records:
                    values[seen.partition][seen.offset] = seen.value
        return cls(values)


def resolve(transaction: LoggedTransaction, read: Collection[str]) -> Fate:
    """Return the final fate of ``transaction``, where ``read`` are the values that any reader saw.

    A transaction without a requested commit is aborted; one with an unknown outcome is committed if any of
    its values was read.
    """
    if transaction.fate is Fate.OPEN:
        return Fate.ABORTED
    if transaction.fate is Fate.UNKNOWN and any(each.value in read for each in transaction.writes):
        return Fate.COMMITTED
    return transaction.fate


def judge(ledger: TransactionLedger, history: History, judged: Collection[Partition]) -> Iterator[str]:
    """Yield the anomalies in the reads of ``history``, for the partitions ``judged``.

    Adds the ledger's writes to ``history`` as sends.
    """
    read = values_read(history)
    for transaction in ledger.transactions:
        _note_sends(history, transaction, resolve(transaction, read), judged)
    yield from (f"transactions: {anomaly}" for anomaly in check(history))
    yield from information_cycles(ledger)


def values_read(history: History) -> set[str]:
    return {seen.value for poll in history.polls for seen in poll.records}


def _note_sends(
    history: History, transaction: LoggedTransaction, fate: Fate, judged: Collection[Partition]
) -> None:
    """Add the transaction's writes to ``history`` as sends, with the outcome that ``fate`` implies.

    Only committed records get their offset: readers pass the offsets of the others.
    """
    for written in transaction.writes:
        if written.partition not in judged:
            continue
        producer = f"{transaction.transactional_id} in transaction {transaction.number}"
        noted = history.send(producer, written.partition, written.value)
        if fate is Fate.ABORTED:
            noted.failed()
        elif fate is Fate.COMMITTED and written.offset is not None:
            noted.acknowledged(written.offset)
        elif fate is Fate.COMMITTED:
            noted.outcome = Outcome.OK


def torn(ledger: TransactionLedger, visible: Visible, judged: Collection[Partition]) -> Iterator[str]:
    for transaction in ledger.transactions:
        writes = [each for each in transaction.writes if each.partition in judged]
        missing = [each for each in writes if not visible.has(each)]
        if len(missing) == len(writes):
            continue
        if transaction.fate in (Fate.OPEN, Fate.ABORTED):
            yield f"aborted read: {transaction}: some of {writes} can be read"
        elif missing:
            yield f"torn transaction: {transaction}: {missing[0]} cannot be read, other records of it can"


def dirty_writes(ledger: TransactionLedger, visible: Visible) -> Iterator[str]:
    writer = {each.value: one for one in ledger.transactions for each in one.writes}
    for partition, values in sorted(visible.values.items()):
        last: dict[str, LoggedTransaction] = {}
        for offset in sorted(values):
            transaction = writer.get(values[offset])
            if transaction is None:
                continue
            before = last.get(transaction.transactional_id, transaction)
            if before.number > transaction.number:
                yield f"G0: {partition} has {values[offset]} of {transaction} at {offset}, after {before}"
            last[transaction.transactional_id] = transaction


def information_cycles(ledger: TransactionLedger) -> Iterator[str]:
    writer = {each.value: one.number for one in ledger.transactions for each in one.writes}
    read_by: defaultdict[str, set[str]] = defaultdict(set)
    for transaction in ledger.transactions:
        for value in (*transaction.read, *(each.value for each in transaction.inputs)):
            if (wrote := writer.get(value)) is not None:
                read_by[str(wrote)].add(str(transaction.number))
    cycle = find_cycle(read_by)
    if cycle:
        yield f"G1c: transactions {' → '.join(cycle)} have each read from the one before"


def exactly_once(
    ledger: TransactionLedger,
    visible: Visible,
    inputs: Iterable[Partition],
    target: Partition,
    committed: Mapping[Partition, int],
) -> Iterator[str]:
    """Yield inputs below the committed offset without exactly one output, and outputs of later inputs.

    ``target``: the partition of the outputs. ``committed``: the offsets that the group has at the end, by
    input partition.
    """
    outputs: defaultdict[str, list[str]] = defaultdict(list)
    for value in visible.values.get(target, {}).values():
        outputs[value.rpartition(OUTPUT_MARK)[0]].append(value)
    for partition in inputs:
        end = committed.get(partition, 0)
        for offset, value in sorted(visible.values.get(partition, {}).items()):
            found = outputs.get(value, [])
            if offset < end and len(found) != 1:
                yield f"exactly once: {value} at {offset} of {partition} has the outputs {found}"
            if offset >= end and found:
                yield f"exactly once: {found[0]} is there; {partition} is committed up to {end}, not {offset}"


def not_consumed(
    visible: Visible, inputs: Iterable[Partition], committed: Mapping[Partition, int]
) -> list[str]:
    """Return a description of each visible input at or above the committed offset."""
    return [
        f"{value} at {offset} of {partition} was not transformed"
        for partition in inputs
        for offset, value in sorted(visible.values.get(partition, {}).items())
        if offset >= committed.get(partition, 0)
    ]


def expected_table(
    ledger: TransactionLedger, partition: Partition, read: Collection[str]
) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return the expected contents of a compacted partition with values ``key=value``.

    The first mapping is key -> last committed value; the second is key -> later values of transactions with
    an unknown outcome, any of which may be the current one instead.
    """
    last: dict[str, tuple[int, str]] = {}
    unknown: list[tuple[str, int, str]] = []
    for transaction in ledger.transactions:
        fate = resolve(transaction, read)
        for written in transaction.writes:
            if written.partition != partition or written.offset is None:
                continue
            key = written.value.partition("=")[0]
            if fate is Fate.COMMITTED and written.offset > last.get(key, (-1, ""))[0]:
                last[key] = written.offset, written.value
            elif fate is Fate.UNKNOWN:
                unknown.append((key, written.offset, written.value))
    possible: defaultdict[str, set[str]] = defaultdict(set)
    for key, offset, value in unknown:
        if offset > last.get(key, (-1, ""))[0]:
            possible[key].add(value)
    return {key: value for key, (_, value) in last.items()}, possible


def compare_table(
    found: Mapping[str, str], expected: Mapping[str, str], possible: Mapping[str, set[str]]
) -> Iterator[str]:
    for key in sorted(found.keys() | expected.keys()):
        value = found.get(key)
        if value != expected.get(key) and value not in possible.get(key, ()):
            yield f"compaction: key {key} has {value}; committed last was {expected.get(key)}"
