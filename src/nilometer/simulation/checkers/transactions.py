"""Whether each transaction became visible as a whole or not at all: by the ledger of its programs, to
readers, and in the logs.
"""

from __future__ import annotations

import enum
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from nilometer.broker.coordinator_shell import ShellState
from nilometer.broker.transactions.markers import Shell
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import TRANSACTION_STATE_TOPIC
from nilometer.invariants import check as check_logs
from nilometer.replication.leader import LeaderRole
from nilometer.simulation.checkers.history import History, Outcome, Partition, check, find_cycle
from nilometer.simulation.checkers.logs import StoredBatch, read_batches_from
from nilometer.simulation.checkers.tier import remote_batches
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import FileNode, FolderNode, HostDisk
from nilometer.transactions.shard import TransactionShard
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import decode_records

# The ledger of transactions, and the check of what readers saw of them.

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


# Transactions in the logs on the disks, read with separate parsers: records and markers in partitions, and
# the state in coordinators' logs.

# Checks the transactions in the partitions' logs, read from the disks with a separate parser.
#
# In a log that was never compacted, the epochs of a producer never decrease, no transaction begins inside
# another of the same producer, and at rest each has an end. The last stable offset of a leader was never
# above the first record of a transaction without a marker in the leader's log. (A restarted leader does not
# know which of its markers are not replicated; its last stable offset may pass these, as in Kafka. The
# coordinator writes the same markers again.)

_PRODUCER = struct.Struct(">hiqqqh")
_ATTRIBUTES_AT = 21
RECENT = 16
"""Number of latest transactions whose records may still be acknowledged."""
TRANSACTIONAL, CONTROL = 0x10, 0x20


class ProducerBatch(msgspec.Struct, frozen=True):
    """The producer of a batch, its offsets, and whether it is transactional or a marker."""

    first: int
    last: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool


def of_batch(batch: StoredBatch) -> ProducerBatch:
    attributes, _, _, _, producer_id, epoch = _PRODUCER.unpack_from(batch.data, _ATTRIBUTES_AT)
    return ProducerBatch(
        batch.base_offset,
        batch.last_offset,
        producer_id,
        epoch,
        bool(attributes & TRANSACTIONAL),
        bool(attributes & CONTROL),
    )


def judge_log(name: str, batches: Sequence[ProducerBatch]) -> Iterator[str]:
    """Yield the errors in a log at rest that was never compacted; ``name`` is the partition's."""
    epochs: dict[int, int] = {}
    opened: dict[int, ProducerBatch] = {}
    for batch in batches:
        if batch.producer_id < 0:
            continue
        epoch = epochs.get(batch.producer_id, -1)
        who = f"producer {batch.producer_id}"
        if batch.producer_epoch < epoch:
            yield f"G0: {name}: {who} wrote at {batch.first} in epoch {batch.producer_epoch}, after {epoch}"
        epochs[batch.producer_id] = max(epoch, batch.producer_epoch)
        if batch.is_control:
            opened.pop(batch.producer_id, None)
        elif batch.is_transactional:
            first = opened.setdefault(batch.producer_id, batch)
            if first.producer_epoch != batch.producer_epoch:
                yield f"G0: {name}: {who} has epochs {first.producer_epoch} and {batch.producer_epoch} open"
    for batch in opened.values():
        yield (
            f"hanging transaction: {name}: producer {batch.producer_id}, epoch {batch.producer_epoch}, "
            f"began at {batch.first}, and has no end"
        )


def read_leader(cluster: Cluster, partition: TopicPartition) -> list[ProducerBatch]:
    """Return the batches of the leader's log, from its disk and remote storage; empty without a leader."""
    return [of_batch(batch) for batch in stored_by_leader(cluster, partition)]


def stored_by_leader(cluster: Cluster, partition: TopicPartition) -> list[StoredBatch]:
    image = cluster.newest_image
    state = image.partition(*partition) if image is not None else None
    if state is None or not state.has_leader:
        return []
    node = cluster.nodes[int(state.leader)]
    place = node.place_of(str(partition))
    local = [] if place is None else read_batches_from(node.host.disk, place, 0)
    remote = remote_batches(node, cluster.world.bucket, str(partition))
    return [*(batch for batch in remote if not local or batch.base_offset < local[0].base_offset), *local]


class _First(NamedTuple):
    offset: int
    producer_id: int


class _Passed(NamedTuple):
    partition: TopicPartition
    first: _First
    last_stable_offset: int
    end: int
    """The leader's log end offset at that time."""
    who: str


class LastStableOffsets:
    """Checks the leaders' last stable offsets: ``look`` samples them, ``judge`` returns the errors."""

    def __init__(
        self, cluster: Cluster, ledger: TransactionLedger, partitions: Sequence[TopicPartition]
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._names = {str(each): each for each in partitions}
        self._firsts: dict[tuple[int, TopicPartition], _First] = {}
        """(transaction, partition) -> its first record, until a last stable offset has passed it."""
        self._seen: set[tuple[int, TopicPartition]] = set()
        self._passed: list[_Passed] = []

    def look(self) -> None:
        self._learn()
        for node in self._cluster.nodes.values():
            for partition in node.partitions:
                watched = self._names.get(str(partition))
                if watched is not None and isinstance(partition.replica.role, LeaderRole):
                    offset = partition.log.last_stable_offset(partition.replica.high_watermark)
                    self._pass(watched, offset, partition.log.log_end_offset, node.name)

    def _learn(self) -> None:
        for transaction in self._ledger.transactions[-RECENT:]:
            for written in transaction.writes:
                partition = self._names.get(written.partition)
                if partition is None or written.offset is None or transaction.producer_id == NO_PRODUCER_ID:
                    continue
                key = transaction.number, partition
                if key not in self._seen:
                    self._seen.add(key)
                    self._firsts[key] = _First(written.offset, transaction.producer_id)

    def _pass(self, partition: TopicPartition, last_stable_offset: int, end: int, who: str) -> None:
        for key, first in list(self._firsts.items()):
            if key[1] == partition and first.offset < last_stable_offset:
                del self._firsts[key]
                self._passed.append(_Passed(partition, first, last_stable_offset, end, who))

    def judge(self) -> Iterator[str]:
        """Yield each transaction that a last stable offset passed without a marker in the leader's log.

        Called at rest, when all markers are in the logs.
        """
        markers: dict[TopicPartition, list[ProducerBatch]] = {}
        for partition in self._names.values():
            markers[partition] = [
                batch for batch in read_leader(self._cluster, partition) if batch.is_control
            ]
        for each in self._passed:
            if not any(
                marker.producer_id == each.first.producer_id and each.first.offset < marker.first < each.end
                for marker in markers[each.partition]
            ):
                yield (
                    f"last stable offset: {each.who} gave {each.last_stable_offset} of {each.partition}; "
                    f"producer {each.first.producer_id} had a transaction open since {each.first.offset}"
                )


# Checks the markers in the partitions' logs, and the index of aborted transactions beside them.
#
# In a log that was never compacted, the coordinator epochs in a producer's markers never decrease; if every
# end bumps the epoch (``transaction.version`` 2), all markers of one epoch say the same; and the index has
# just the transactions that end with an abort marker.

_ENTRY = struct.Struct(">hqqqq")
_VALUE = struct.Struct(">hi")
"""At the end of a marker's record: version, coordinator epoch; then the number of headers."""
_HEADERS = 1
_TYPE = struct.Struct(">h")
COMMIT = 1
INDEX_SUFFIX = ".txnindex"


class Marker(NamedTuple):
    offset: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


class Aborted(NamedTuple):
    producer_id: int
    first: int
    last: int


def read_marker(batch: StoredBatch) -> Marker:
    """Decode a control batch with one marker: key (version, type), value (version, coordinator epoch)."""
    producer = of_batch(batch)
    value_at = len(batch.data) - _HEADERS - _VALUE.size
    _, coordinator_epoch = _VALUE.unpack_from(batch.data, value_at)
    # The length of the value, one byte, is between the key and the value.
    (kind,) = _TYPE.unpack_from(batch.data, value_at - 1 - _TYPE.size)
    return Marker(
        producer.first, producer.producer_id, producer.producer_epoch, kind == COMMIT, coordinator_epoch
    )


def check_markers(name: str, batches: Sequence[StoredBatch], *, bumps: bool) -> Iterator[str]:
    """Yield the errors in the markers of a log. ``bumps``: whether every end has an epoch of its own."""
    coordinators: dict[int, int] = {}
    ends: dict[tuple[int, int], bool] = {}
    for marker in (read_marker(batch) for batch in batches if of_batch(batch).is_control):
        who = f"producer {marker.producer_id}, epoch {marker.producer_epoch}"
        newest = coordinators.setdefault(marker.producer_id, marker.coordinator_epoch)
        if marker.coordinator_epoch < newest:
            yield (
                f"old coordinator: {name}: the marker of {who} at {marker.offset} is of coordinator epoch "
                f"{marker.coordinator_epoch}, after one of {newest}"
            )
        coordinators[marker.producer_id] = max(newest, marker.coordinator_epoch)
        first = ends.setdefault((marker.producer_id, marker.producer_epoch), marker.is_commit)
        if bumps and first != marker.is_commit:
            yield f"two ends: {name}: {who} is committed and aborted; the second marker is at {marker.offset}"


def expected_index(batches: Sequence[StoredBatch]) -> set[Aborted]:
    """Return the aborted transactions in a log."""
    opened: dict[int, int] = {}
    aborted: set[Aborted] = set()
    for stored in batches:
        batch = of_batch(stored)
        if batch.is_control:
            first = opened.pop(batch.producer_id, None)
            if first is not None and not read_marker(stored).is_commit:
                aborted.add(Aborted(batch.producer_id, first, batch.first))
        elif batch.is_transactional:
            opened.setdefault(batch.producer_id, batch.first)
    return aborted


def read_index(disk: HostDisk, folder: str) -> set[Aborted]:
    """Return the entries of all ``.txnindex`` files in ``folder``."""
    found = disk.find(folder)
    entries: set[Aborted] = set()
    for name, file in found.entries.items() if isinstance(found, FolderNode) else ():
        if name.endswith(INDEX_SUFFIX) and isinstance(file, FileNode):
            for _, producer_id, first, last, _ in _ENTRY.iter_unpack(bytes(file.data)):
                entries.add(Aborted(producer_id, first, last))
    return entries


def compare_indexes(cluster: Cluster, partition: TopicPartition) -> Iterator[str]:
    """Yield the differences between the logs on all replicas' disks and the indexes beside them, at rest.

    A transaction may have begun in what is in remote storage only.
    """
    by_leader = stored_by_leader(cluster, partition)
    for node in cluster.nodes.values():
        for folder in node.places_of(str(partition)):
            local = read_batches_from(node.host.disk, folder, 0)
            start = local[0].base_offset if local else 0
            whole = [*(batch for batch in by_leader if batch.base_offset < start), *local]
            expected = {one for one in expected_index(whole) if one.last >= start}
            found = read_index(node.host.disk, folder)
            if found != expected:
                yield (
                    f"aborted index: {partition} on {node.name} lacks {sorted(expected - found)[:3]} and has "
                    f"{sorted(found - expected)[:3]} besides"
                )


# What transaction coordinators know, held against their logs, which are read with a parser of their own.
#
# A coordinator that has just taken over knows of each transactional id what its partition of
# ``__transaction_state`` says last. As long as a decision is not committed there, no partition has its
# marker. Only markers with an epoch that no record of the producer has are told apart from earlier ones.

# pyright: reportPrivateUsage=false
# The state that a coordinator must not lose is inside of it.


PREPARED, COMPLETE = (2, 3), (4, 5)
"""The numbers of the states that a transaction has while it ends, and afterwards."""
_HEAD = struct.Struct(">hqhib")
_NUMBER = struct.Struct(">i")
_FLEXIBLE = 1
VIOLATIONS_MAX = 20


class KnownTransaction(NamedTuple):
    """What a coordinator must not forget."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: int
    partitions: tuple[str, ...]


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str:
        size = self.varint() - 1
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def number(self) -> int:
        (value,) = _NUMBER.unpack_from(self._data, self._at)
        self._at += _NUMBER.size
        return value


def read_value(value: bytes) -> KnownTransaction:
    """Decode the value of a transaction record of version 1, the only version that brokers write."""
    version, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(value)
    check_logs(version == _FLEXIBLE, "brokers write transaction records of version 1", version)
    reader = _Reader(value, _HEAD.size)
    partitions: list[str] = []
    for _ in range(reader.varint() - 1):
        topic = reader.text()
        partitions += [f"{topic}-{reader.number()}" for _ in range(reader.varint() - 1)]
        check_logs(reader.varint() == 0, "a topic has no tagged fields")
    return KnownTransaction(producer_id, epoch, timeout_ms, state, tuple(sorted(partitions)))


class LogRecord(NamedTuple):
    offset: int
    leader_epoch: int
    transactional_id: str
    transaction: KnownTransaction | None


def records_of(batches: Iterable[StoredBatch]) -> Iterator[LogRecord]:
    for batch in batches:
        for record in decode_records(batch.data, 0, read_header(batch.data)):
            name = (record.key or b"")[4:].decode()
            value = None if record.value is None else read_value(record.value)
            yield LogRecord(record.offset, batch.epoch, name, value)


def fold(records: Iterator[LogRecord]) -> dict[str, KnownTransaction]:
    """Return the transactions after all ``records``, by transactional id; a tombstone removes its id."""
    table: dict[str, KnownTransaction] = {}
    for record in records:
        if record.transaction is None:
            table.pop(record.transactional_id, None)
        else:
            table[record.transactional_id] = record.transaction
    return table


def known_to(shard: TransactionShard) -> dict[str, KnownTransaction]:
    return {
        name: KnownTransaction(
            each.producer_id,
            each.producer_epoch,
            each.timeout_ms,
            int(each.state),
            tuple(sorted(str(partition) for partition in each.partitions)),
        )
        for name, each in shard._transactions.items()
    }


def compare(who: str, known: dict[str, KnownTransaction], logged: dict[str, KnownTransaction]) -> list[str]:
    return [
        f"coordinator state: {who} has {known.get(name)} of {name}, its log {logged.get(name)}"
        for name in sorted(known.keys() | logged.keys())
        if known.get(name) != logged.get(name)
    ]


def finished_by_another(records: Sequence[LogRecord], leaders: dict[int, int]) -> int:
    """Return how many transactions one coordinator prepared and another completed.

    ``leaders`` has the broker id of the partition's leader by leader epoch.
    """
    prepared: dict[str, int | None] = {}
    finished = 0
    for _, epoch, name, transaction in records:
        state = None if transaction is None else transaction.state
        if state in PREPARED:
            prepared[name] = leaders.get(epoch)
        elif state in COMPLETE:
            before, now = prepared.pop(name, None), leaders.get(epoch)
            finished += before is not None and now is not None and before != now
    return finished


def is_marked(batches: Iterable[ProducerBatch], producer_id: int, epoch: int) -> bool:
    """Whether there is a marker of that epoch, and nothing else."""
    found = {
        batch.is_control
        for batch in batches
        if (batch.producer_id, batch.producer_epoch) == (producer_id, epoch)
    }
    return found == {True}


def _parse(partition: str) -> TopicPartition:
    topic, _, index = partition.rpartition("-")
    return TopicPartition(topic, int(index))


class CoordinatorStates:
    """Compares the state of the active transaction coordinators with their partitions' logs.

    ``violations`` has all errors found so far, up to ``VIOLATIONS_MAX``.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: set[tuple[int, ...]] = set()
        self._leaders: dict[int, dict[int, int]] = {}
        """Broker id of the leader, by partition and leader epoch."""
        self.violations: list[str] = []
        self.takeovers = 0

    def look(self) -> None:
        for node, index, shell in self._active():
            load = node.id, node.incarnations, index, shell.leader_epoch, shell.loads
            self._leaders.setdefault(index, {})[shell.leader_epoch] = node.id
            if load not in self._seen:
                self._seen.add(load)
                self.takeovers += 1
                self._note(self._compare(node, index, shell))
            if shell.partition.replica.high_watermark < shell.partition.log.log_end_offset:
                self._note(self._marked_too_early(node, index, shell))

    def _note(self, found: Iterable[str]) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations += found

    def _marked_too_early(self, node: BrokerNode, index: int, shell: Shell) -> Iterator[str]:
        image, high_watermark = self._cluster.newest_image, shell.partition.replica.high_watermark
        state = image.partition(TRANSACTION_STATE_TOPIC, index) if image is not None else None
        if state is None or state.leader_epoch != shell.leader_epoch:
            return  # another one leads, which may have decided as much
        for offset, epoch, name, transaction in records_of(_batches(node, index, high_watermark)):
            if offset < high_watermark or epoch != shell.leader_epoch or transaction is None:
                continue
            for partition in transaction.partitions if transaction.state in PREPARED else ():
                batches = read_leader(self._cluster, _parse(partition))
                if is_marked(batches, transaction.producer_id, transaction.producer_epoch):
                    yield (
                        f"marker too early: {partition} has the end of the transaction of {name}, epoch "
                        f"{transaction.producer_epoch}; the decision at {offset} is not committed"
                    )

    def judge_at_rest(self) -> Iterator[str]:
        for node, index, shell in self._active():
            yield from self._compare(node, index, shell)

    def has_decided(self, node: BrokerNode) -> bool:
        """Whether a coordinator of ``node`` has a committed decision whose markers are not all written."""
        return any(
            transaction.state.is_prepared
            for found, _, shell in self._active()
            if found is node and isinstance(shard := shell._shard, TransactionShard)
            if shell.partition.replica.high_watermark == shell.partition.log.log_end_offset
            for transaction in shard._transactions.values()
        )

    def finished_by_another(self) -> int:
        """Return how many transactions one coordinator prepared and another completed, according to the
        coordinators' logs. Call it when the cluster is at rest."""
        finished = 0
        for node, index, _ in self._active():
            records = list(records_of(_batches(node, index)))
            finished += finished_by_another(records, self._leaders.get(index, {}))
        return finished

    def _active(self) -> Iterator[tuple[BrokerNode, int, Shell]]:
        for node in self._cluster.nodes.values():
            if node.broker is None or not node.is_running:
                continue
            for index, shell in node.broker.parts.coordinators.transactions._shells.items():
                if shell.state is ShellState.ACTIVE and self._cluster.leads(shell.partition):
                    yield node, index, shell

    def _compare(self, node: BrokerNode, index: int, shell: Shell) -> list[str]:
        shard = shell._shard
        if _place(node, index) is None or not isinstance(shard, TransactionShard):
            return []
        logged = fold(records_of(_batches(node, index)))
        return compare(f"{node.name}, partition {index},", known_to(shard), logged)


def _place(node: BrokerNode, index: int) -> str | None:
    return node.place_of(str(TopicPartition(TRANSACTION_STATE_TOPIC, index)))


def _batches(node: BrokerNode, index: int, offset: int = 0) -> list[StoredBatch]:
    """Return the batches with records at or above ``offset`` of a partition of the node's coordinator."""
    place = _place(node, index)
    return [] if place is None else read_batches_from(node.host.disk, place, offset)
