"""What a decision is: records to append, and the reply to give once the fold has accepted them.

The reply must not leave before the entries with the decision's records have been folded *and accepted*:
the answer to the append says nothing, for a deposed controller can win a number too. Where an entry turns
out not to count, the reply is NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from nilometer.cluster.entries import Unit
from nilometer.cluster.records import Record
from nilometer.wire.errors import ErrorCode, KafkaError

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one item of a request."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is ErrorCode.none


OK = Outcome()


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    units: tuple[Unit, ...]
    """In order; the records of one unit are applied together or not at all."""
    reply: R

    @property
    def records(self) -> Iterator[Record]:
        return (record for unit in self.units for record in unit)

    def __bool__(self) -> bool:
        """Whether there is anything to append."""
        return bool(self.units)


class Refusal(KafkaError):
    """Raised inside a decision to end one item of a request; never leaves the controller."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.code, self.message)
