"""The result of a decision: records to append, and the response to send once they are accepted.

The response must not be sent before the entries with the decision's records have been applied to the image
*and accepted*. That the append succeeded is not enough, since a deposed controller can append an entry, too.
If an entry is not accepted, the response is NOT_CONTROLLER.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from typing import Generic, ParamSpec, TypeVar

import msgspec

from nilometer.cluster.entries import Unit
from nilometer.cluster.records import Record
from nilometer.steps import at_once
from nilometer.wire.errors import ErrorCode, KafkaError

R = TypeVar("R", covariant=True)
P = ParamSpec("P")


class Outcome(msgspec.Struct, frozen=True):
    """The result of one item of a request."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is ErrorCode.none


OK = Outcome()


class Decision(msgspec.Struct, Generic[R], frozen=True):
    units: tuple[Unit, ...]
    """The records to append, in order; the records of one unit are applied together or not at all."""
    reply: R

    @property
    def records(self) -> Iterator[Record]:
        return (record for unit in self.units for record in unit)

    def __bool__(self) -> bool:
        """Whether there are records to append."""
        return bool(self.units)


Steps = Generator[int, None, Decision[R]]
"""A decision that takes long, in steps; each yields how many items of the request it was about. The image may
change between two steps: then the decision is not appended, but made again."""


class Stepwise(Generic[P, R]):
    """A decorator of a decision that takes long: call it to decide at once, or its ``steps`` to decide in
    :data:`Steps`."""

    def __init__(self, steps: Callable[P, Steps[R]]) -> None:
        self.steps = steps
        functools.update_wrapper(self, steps)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Decision[R]:
        return at_once(self.steps(*args, **kwargs))


class Refusal(KafkaError):
    """Raised in a decision to reject one item of a request; converted to its :attr:`outcome`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.code, self.message)
