"""A history of clients' sends, polls and transactions.

Values are unique per partition. Every send is ok, certainly failed, or unknown (timed out, disconnected,
NOT_LEADER_OR_FOLLOWER): an unknown one may or may not be in the log, but not twice.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import TypeVar

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
