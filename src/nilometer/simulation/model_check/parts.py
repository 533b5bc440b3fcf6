"""The parts a state of the world is made of, as values, and the tables that number them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from nilometer.replication import FollowerRole, LeaderRole, TruncationRule
from nilometer.simulation.model_check.process import Process

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large the world is, and how many faults of each kind may happen in it."""

    brokers: int = 2
    min_insync_replicas: int = 1
    values: int = 2
    leader_epochs: int = 3
    crashes: int = 1
    """Ends of a broker's incarnation: of its process, or of its session while the process runs on."""
    lag_expiries: int = 1
    message_faults: int = 1
    """Messages repeated, or delayed beyond a newer one."""
    controller_changes: int = 0
    """How often a controller is deposed that may still write once what it decided on its old image."""
    rule: TruncationRule = TruncationRule.BY_LEADER_EPOCH
    fetches_are_atomic: bool = False
    """Whether a fetch is answered and its answer taken in one step. A smaller world, for more replicas."""
    checkpoints_lag: bool = False
    """Whether a restart may also find no checkpointed high watermark at all."""
    unclean_restarts_forfeit: bool = False
    """Whether a restart that lost nothing but cannot prove it costs a replica its place in the ISR."""
    keeps_delayed_messages: bool = True
    """Whether messages that are too late stay on their way. If not, they are dropped as soon as the real
    code has been seen to ignore them."""

    def __str__(self) -> str:
        parts = (
            f"{self.brokers} replicas",
            f"min.insync.replicas={self.min_insync_replicas}",
            f"{self.values} records",
            f"{self.leader_epochs} leader epochs",
            f"{self.crashes} crashes",
            f"{self.lag_expiries} lag expiries",
            f"{self.message_faults} message faults",
            f"{self.controller_changes} controller changes" if self.controller_changes else "",
            "atomic fetches" if self.fetches_are_atomic else "",
            "delayed messages kept" if self.keeps_delayed_messages else "",
        )
        return ", ".join(part for part in parts if part)


class InFlightMessages(NamedTuple):
    """What one broker has asked for, and what it has been answered, as far as that is on its way. Newest
    last.

    Messages are given by their numbers.
    """

    fetches: tuple[int, ...] = ()
    replies: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    alter_replies: tuple[int, ...] = ()


class Metadata(NamedTuple):
    """The controller's images by number, from the first that some broker has still to leave on."""

    images: tuple[int, ...]
    learned: tuple[int, ...]
    """For each broker, the index of the image it has learned last."""
    deposed: int = -1
    """The image that a deposed controller still has and may decide on once more."""

    @property
    def newest(self) -> int:
        return self.images[-1]

    def is_behind(self, broker: int) -> bool:
        return self.learned[broker] < len(self.images) - 1

    def with_learned(self, broker: int, index: int) -> Metadata:
        learned = (*self.learned[:broker], index, *self.learned[broker + 1 :])
        if (first := min(learned)) == 0:
            return self._replace(learned=learned)
        return self._replace(images=self.images[first:], learned=tuple(at - first for at in learned))


class History(NamedTuple):
    """What the outside world has seen."""

    exposed: tuple[int, ...] = ()
    """Values below the highest high watermark anywhere so far: a reader may have got them."""
    acknowledged: frozenset[int] = frozenset()


class FaultBudgetUsed(NamedTuple):
    """What has happened already that may happen only so often."""

    values: int = 0
    crashes: int = 0
    lags: int = 0
    message_faults: int = 0
    controller_changes: int = 0
    without_tail: frozenset[int] = frozenset()
    """Replicas that lost records in a restart and are not back in sync."""


@dataclass(frozen=True, slots=True)
class View:
    """What one process is and has: all that the properties look at."""

    broker: int
    broker_epoch: int
    is_up: bool
    is_leader: bool
    is_follower: bool
    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    values: tuple[int, ...]
    epochs: tuple[int, ...]

    @property
    def serves(self) -> bool:
        return self.is_leader or self.is_follower

    @classmethod
    def of(cls, process: Process) -> View:
        role, log = process.replica.role, process.log
        return cls(
            process.broker,
            process.broker_epoch,
            process.is_up,
            isinstance(role, LeaderRole),
            isinstance(role, FollowerRole),
            process.replica.leader_epoch,
            process.replica.high_watermark,
            log.log_end_offset,
            tuple(value for _, value in log.records),
            tuple(epoch for epoch, _ in log.records),
        )


class Table(Generic[T]):
    """Values and the numbers that stand for them."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[T] = []

    def number_of(self, value: T, key: Hashable) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number
