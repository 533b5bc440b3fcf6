"""The parts of a state of the model, as values, and the tables that number them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from nilometer.replication import FollowerRole, LeaderRole, TruncationRule
from nilometer.simulation.model_check.process import Process

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The size of the model, and how many faults of each kind may happen in it."""

    brokers: int = 2
    min_insync_replicas: int = 1
    values: int = 2
    leader_epochs: int = 3
    crashes: int = 1
    """How often a broker's incarnation may end: by a crash, or by an expired session of a live process."""
    lag_expiries: int = 1
    message_faults: int = 1
    """How many messages may be repeated, or arrive after a newer one."""
    controller_changes: int = 0
    """How often a controller is deposed; it may still write one decision that it made on its old image."""
    rule: TruncationRule = TruncationRule.BY_LEADER_EPOCH
    fetches_are_atomic: bool = False
    """Whether a fetch is served and its response handled in one step: fewer states, for more replicas."""
    checkpoints_lag: bool = False
    """Whether a restart may also find no checkpointed high watermark."""
    unclean_restarts_forfeit: bool = False
    """Whether a restart without proof that no records were lost also occurs; it removes the replica from the
    ISR."""
    keeps_delayed_messages: bool = True
    """Whether messages that are too late stay in flight. If not, a message is dropped once the real code
    would ignore it."""

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
    """The numbers of the messages in flight from and to one broker, by kind, each newest last.

    ``requests`` are its AlterPartition requests.
    """

    fetches: tuple[int, ...] = ()
    replies: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    alter_replies: tuple[int, ...] = ()


class Metadata(NamedTuple):
    """The numbers of the controller's images, from the oldest that some broker has as its latest."""

    images: tuple[int, ...]
    learned: tuple[int, ...]
    """For each broker, the index in ``images`` of the latest image it has learned."""
    deposed: int = -1
    """The image on which a deposed controller may decide once more; -1 if there is none."""

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
    """The values that consumers and producers have seen."""

    exposed: tuple[int, ...] = ()
    """The values below the highest high watermark of any replica so far: a consumer may have read them."""
    acknowledged: frozenset[int] = frozenset()


class FaultBudgetUsed(NamedTuple):
    """How many of the events that :class:`Bounds` limits have happened."""

    values: int = 0
    crashes: int = 0
    lags: int = 0
    message_faults: int = 0
    controller_changes: int = 0
    without_tail: frozenset[int] = frozenset()
    """Replicas that lost records in a restart and are not yet back in the ISR."""


@dataclass(frozen=True, slots=True)
class View:
    """The state of one process as far as the properties read it: its role, epochs, offsets and log."""

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
    """Numbers values from 0; values with equal keys have one number."""

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
