"""A run's history as a file that Jepsen's checkers read, and back: gzip, one operation a line, in EDN.

The operations are those of ``jepsen.tests.kafka``: ``:send`` and ``:txn`` with ``[:send KEY VALUE]``, which
becomes ``[:send KEY [OFFSET VALUE]]`` when it is acknowledged, ``:poll`` with
``[:poll {KEY [[OFFSET VALUE] …]}]``, and ``:assign``. A key is a partition, a value is unique. Beside them
stand, as ``:info`` of process ``:checker``, ``:read-to-end`` (the client ``:value`` has read all partitions
to their ends), and the faults of process ``:nemesis``, where they fell between the operations.

A process of Jepsen does one thing at a time, a producer does not: what it sends stands in the order in which
its client was given it, each directly followed by its outcome. ``:time`` counts the lines. ``:process`` is a
number, another one after an outcome that is not known, and ``:client`` the name. What consumers that are part
of a transaction have read stands in no history of these runs; :func:`judged` knows ``:poll`` in ``:txn``.
"""

from __future__ import annotations

import gzip
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nilometer.simulation.checkers.transactions import (
    NO_PRODUCER_ID,
    Fate,
    LoggedTransaction,
    TransactionLedger,
)

from ..simulation.history import History, Moved, Outcome, Poll, ReadToEnd, Seen, Send, check
from ..transactions.committed_history import NO_EPOCH, CommittedHistory
from .edn import Keyword, parsed, written

PADDING = "."
"""Values end with it, so that records have a size; the file leaves it out."""
SEND, POLL, TXN, ASSIGN = Keyword("send"), Keyword("poll"), Keyword("txn"), Keyword("assign")
INVOKE, OK, FAIL, INFO = Keyword("invoke"), Keyword("ok"), Keyword("fail"), Keyword("info")
READ_TO_END, NEMESIS, CHECKER = Keyword("read-to-end"), Keyword("nemesis"), Keyword("checker")
INDEX, TIME, PROCESS, TYPE, F, VALUE = map(Keyword, ("index", "time", "process", "type", "f", "value"))
CLIENT = Keyword("client")
_OUTCOMES = {Outcome.OK: OK, Outcome.FAILED: FAIL, Outcome.UNKNOWN: INFO}
_FATES = {Fate.COMMITTED: OK, Fate.ABORTED: FAIL, Fate.OPEN: FAIL, Fate.UNKNOWN: INFO}
"""A transaction whose commit was never asked for is aborted for certain."""
Fault = tuple[int, str]
"""How many operations the history had, and what was done."""


def lines(
    history: History, ledger: TransactionLedger | None = None, faults: Sequence[Fault] = ()
) -> Iterator[str]:
    """Yield the history's lines; a ledger's transactions come first, in the order in which they began."""
    processes, made = dict[str, int](), itertools.count()
    for count, operation in enumerate(_operations(history, ledger, faults)):
        whole = {INDEX: count, TIME: count, **operation}
        if (client := operation.get(CLIENT)) is not None:
            if client not in processes:
                processes[client] = next(made)
            whole[PROCESS] = processes[client]
            if operation[TYPE] == INFO:
                del processes[client]
        yield written(whole) + "\n"


def save(path: Path, text: Iterable[str]) -> None:
    """Write the file; the same history has the same bytes."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
        for line in text:
            file.write(line.encode())


def load(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(file)


def _operations(
    history: History, ledger: TransactionLedger | None, faults: Sequence[Fault]
) -> Iterator[Mapping[Any, Any]]:
    for transaction in ledger.transactions if ledger is not None else ():
        yield from _of_transaction(transaction)
    partitions = sorted(
        {send.partition for send in history.sends}
        | {seen.partition for poll in history.polls for seen in poll.records}
    )
    waiting = iter([*faults, (len(history.operations), None)])
    at, what = next(waiting)
    for number, operation in enumerate(history.operations):
        while what is not None and at <= number:
            yield _fault(what)
            at, what = next(waiting)
        yield from _of(operation, partitions)
    while what is not None:
        yield _fault(what)
        at, what = next(waiting)


def _fault(what: str) -> Mapping[Any, Any]:
    return {TYPE: INFO, PROCESS: NEMESIS, F: Keyword("fault"), VALUE: what}


def _of(operation: object, partitions: Sequence[str]) -> Iterator[Mapping[Any, Any]]:
    match operation:
        case Send():
            value = operation.value.rstrip(PADDING)
            is_acknowledged = operation.outcome is Outcome.OK
            yield from _pair(
                operation.producer,
                SEND,
                [[SEND, operation.partition, value]],
                _OUTCOMES[operation.outcome],
                [[SEND, operation.partition, [operation.offset, value] if is_acknowledged else value]],
            )
        case Poll():
            found = defaultdict[str, list[Any]](list)
            for seen in operation.records:
                found[seen.partition].append([seen.offset, seen.value.rstrip(PADDING)])
            yield from _pair(operation.consumer, POLL, [[POLL]], OK, [[POLL, dict(found)]])
        case Moved():
            to = list(partitions) if operation.partition is None else [operation.partition]
            yield from _pair(operation.consumer, ASSIGN, to, OK, to)
        case ReadToEnd():
            yield {TYPE: INFO, PROCESS: CHECKER, F: READ_TO_END, VALUE: operation.consumer}
        case _:
            raise TypeError(f"Jepsen's histories have nothing for {operation!r}")


def _of_transaction(transaction: LoggedTransaction) -> Iterator[Mapping[Any, Any]]:
    sent = [[SEND, one.partition, one.value.rstrip(PADDING)] for one in transaction.writes]
    outcome = _FATES[transaction.fate]
    done = [[SEND, one.partition, [one.offset, one.value.rstrip(PADDING)]] for one in transaction.writes]
    yield from _pair(transaction.transactional_id, TXN, sent, outcome, done if outcome is OK else sent)


def _pair(
    client: str, f: Keyword, asked: object, outcome: Keyword, told: object
) -> Iterator[Mapping[Any, Any]]:
    yield {CLIENT: client, TYPE: INVOKE, F: f, VALUE: asked}
    yield {CLIENT: client, TYPE: outcome, F: f, VALUE: told}


def judged(text: Iterable[str]) -> list[str]:
    """Return the anomalies in a history's lines. Raises ValueError for lines that are none of a history."""
    history, ledger = History(), TransactionLedger()
    for line in text:
        _learn(parsed(line), history, ledger)
    if not ledger.transactions:
        return [str(one) for one in check(history)]
    sent = {one.partition for transaction in ledger.transactions for one in transaction.writes}
    return list(CommittedHistory(ledger, history).anomalies(sorted(sent)))


def _learn(line: Any, history: History, ledger: TransactionLedger) -> None:
    try:
        process, kind, f, value = line[PROCESS], line[TYPE], line[F], line[VALUE]
        client = process if isinstance(process, Keyword) else line[CLIENT]
    except (KeyError, TypeError):
        raise ValueError(f"no operation: {written(line)}") from None
    if kind == INVOKE or process == NEMESIS:
        return
    if f == SEND:
        for _, partition, sent in value:
            _settle(history.send(client, partition, _text(sent)), kind, sent)
    elif f == TXN:
        transaction = ledger.begin(client, NO_PRODUCER_ID, NO_EPOCH)
        transaction.fate = {OK: Fate.COMMITTED, FAIL: Fate.ABORTED, INFO: Fate.UNKNOWN}[kind]
        for micro in value:
            if micro[0] == SEND:
                noted = transaction.write(micro[1], _text(micro[2]))
                noted.offset = micro[2][0] if isinstance(micro[2], list) else None
            else:
                transaction.read += [seen.value for seen in _polled([micro])]
    elif f == POLL:
        history.poll(client, _polled(value))
    elif f == ASSIGN:
        history.moved(client, value[0] if len(value) == 1 else None)
    elif f == READ_TO_END:
        history.read_to_end(value)
    else:
        raise ValueError(f"no operation of these histories: {f}")


def _polled(value: Any) -> list[Seen]:
    return [
        Seen(partition, offset, text)
        for _, found in value
        for partition, records in found.items()
        for offset, text in records
    ]


def _text(sent: Any) -> str:
    return sent[1] if isinstance(sent, list) else sent


def _settle(send: Send, kind: Keyword, sent: Any) -> None:
    if kind == OK:
        send.outcome, send.offset = Outcome.OK, sent[0]
    elif kind == FAIL:
        send.failed()
