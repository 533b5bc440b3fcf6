"""How each part of a state changes: functions from numbers to a number, whose results are cached.

A part of a state (a process, the messages in flight of a broker, …) is represented by its number in a table.
How the *real code* changes a process depends only on the process and the event, and likewise for every other
part, so each change is computed once. That makes millions of states cheap. :mod:`world` has the steps.
"""

from __future__ import annotations

import copy
import enum
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from typing import Any, Generic, NamedTuple, TypeVar, TypeVarTuple

import msgspec
from msgspec.structs import replace

from nilometer.replication.follower import FollowerRole, TruncationRule
from nilometer.replication.isr import AlterPartition
from nilometer.replication.leader import LeaderRole
from nilometer.replication.shell_interface import EligibleBrokers, FollowerFetch, Registration
from nilometer.simulation.model_check.processes import (
    DELAYED,
    Acknowledged,
    AlterReply,
    Controller,
    FetchReply,
    Message,
    Process,
)

# Copies and fingerprints of processes and their roles, by reflection on their fields.
#
# The model check branches from one state into many, and must recognise a state it has visited. ``clone`` and
# ``fingerprint`` visit the whole object, so a field that is added to a role needs no change here.
#
# Frozen structs and dataclasses, numbers, strings and enum members are values and are shared. Everything else
# consists of fields, lists and dicts.

# The walk is over objects of any type.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false


_VALUES = (int, str, bytes, tuple, frozenset, type(None), enum.Enum)


def _is_value(thing: Any) -> bool:
    if isinstance(thing, _VALUES):
        return True
    if isinstance(thing, msgspec.Struct):
        return thing.__struct_config__.frozen
    parameters = getattr(thing, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def clone(thing: Any, copies: dict[int, Any] | None = None) -> Any:
    """Return a deep copy of ``thing``; an object that occurs twice in it is copied once."""
    if _is_value(thing):
        return thing
    copies = {} if copies is None else copies
    if (known := copies.get(id(thing))) is not None:
        return known
    if isinstance(thing, list):
        copies[id(thing)] = copied = [clone(item, copies) for item in thing]
        return copied
    if isinstance(thing, dict):
        copies[id(thing)] = copied = {key: clone(item, copies) for key, item in thing.items()}
        return copied
    if isinstance(thing, msgspec.Struct):
        copied = copy.copy(thing)
    else:
        copied = type(thing).__new__(type(thing))  # pyright: ignore[reportCallIssue]
    copies[id(thing)] = copied
    for name in _fields(thing):
        setattr(copied, name, clone(getattr(thing, name), copies))
    return copied


def fingerprint(thing: Any, met: set[int] | None = None) -> Hashable:
    """Return a value that is equal for two objects exactly if their contents are equal."""
    if _is_value(thing):
        return thing
    met = set() if met is None else met
    if id(thing) in met:
        return "met before"
    met.add(id(thing))
    if isinstance(thing, list):
        return tuple(fingerprint(item, met) for item in thing)
    if isinstance(thing, dict):
        return tuple(sorted((key, fingerprint(item, met)) for key, item in thing.items()))
    return (type(thing).__name__, *(fingerprint(getattr(thing, name), met) for name in _fields(thing)))


def _fields(thing: Any) -> Iterable[str]:
    if isinstance(thing, msgspec.Struct):
        return thing.__struct_fields__
    slots = getattr(type(thing), "__slots__", None)
    return vars(thing) if slots is None else slots


# The parts of a state of the model, as values, and the tables that number them.

T = TypeVar("T")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
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


class View(msgspec.Struct, frozen=True):
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
    """Numbers values from 0; values with equal keys have one number. Without a key, a value is its own."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[T] = []

    def number_of(self, value: T, key: Hashable = None) -> int:
        key = value if key is None else key
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number


State = tuple[int, ...]

FETCHES, REPLIES, REQUESTS, ALTER_REPLIES = range(4)

A = TypeVarTuple("A")
R = TypeVar("R")
M = TypeVar("M", bound=Message)


class _Reaction(NamedTuple):
    """The result of one event in one process: the process after it, and the messages it sent."""

    process: int
    sent: tuple[tuple[int, int, int], ...]
    """(broker whose :class:`InFlightMessages` it is put in, kind, number of the message)"""
    acknowledged: tuple[int, ...]


_UNKNOWN: Any = object()


def remembered(work: Callable[[Any, *A], R]) -> Callable[[Any, *A], R]:
    """Decorate a method so that its results are kept in ``answers`` of its object. A result must depend on
    the arguments only."""
    name = work.__name__

    @wraps(work)
    def answer(tables: Any, *arguments: *A) -> R:
        answers = tables.answers[name]
        known = answers.get(arguments, _UNKNOWN)
        if known is _UNKNOWN:
            known = answers[arguments] = work(tables, *arguments)
        return known

    return answer


class Tables:
    def __init__(self, bounds: Bounds, controller: Controller[Any]) -> None:
        self.views: list[View] = []
        self.processes: Table[Process] = Table()
        self.images: Table[Any] = Table()
        self.registered: list[tuple[Registration, EligibleBrokers]] = []
        """For each image, what brokers learn from it: the registration, and the eligible broker epochs."""
        self.messages: Table[Message] = Table()
        self.in_flight: Table[InFlightMessages] = Table()
        self.metadata: Table[Metadata] = Table()
        self.histories: Table[History] = Table()
        self.budgets_used: Table[FaultBudgetUsed] = Table()
        self.answers: defaultdict[str, dict[tuple[Any, ...], Any]] = defaultdict(dict)
        self._reactions: dict[tuple[int, str, Any], _Reaction] = {}
        self._bounds = bounds
        self._controller = controller
        self._brokers = range(bounds.brokers)

    # ── one process ─────────────────────────────────────────────────────────────────────────────
    def number_of(self, process: Process) -> int:
        process.normalise()
        number = self.processes.number_of(process, fingerprint(process))
        if number == len(self.views):
            self.views.append(View.of(process))
        return number

    def happens(self, parts: list[int], broker: int, event: str, detail: Any) -> bool:
        """Change ``parts`` for an event in the process of ``broker``; return whether it sent a fetch.

        The messages it sends are put in flight, and the history gets the values it exposes or acknowledges.
        ``detail`` depends on ``event``: the number of an image or a message, a value, a broker, ….
        """
        reaction = self._reaction_to(parts[broker], event, detail)
        before, parts[broker] = parts[broker], reaction.process
        asked = False
        for owner, kind, message in reaction.sent:
            self.put(parts, owner, kind, message)
            asked = asked or kind == FETCHES
        if reaction.process != before or reaction.acknowledged:
            parts[-2] = self.witnessed(parts[-2], reaction.process, reaction.acknowledged)
        return asked

    def _reaction_to(self, process: int, event: str, detail: Any) -> _Reaction:
        key = (process, event, detail)
        reaction = self._reactions.get(key)
        if reaction is None:
            reaction = self._reactions[key] = self._reaction(*key)
        return reaction

    def _learnt_from(self, image: int) -> tuple[Registration, EligibleBrokers]:
        return self.registered[image]

    def _message(self, kind: type[M], number: int) -> M:
        message = self.messages.values[number]
        assert isinstance(message, kind)
        return message

    def _reaction(self, number: int, event: str, detail: Any) -> _Reaction:
        process: Process = clone(self.processes.values[number])
        match event:
            case "learn":
                process.learn(*self._learnt_from(detail))
            case "produce":
                process.produce(detail)
            case "ask":
                process.ask()
            case "serve":
                process.serve(self._message(FollowerFetch, detail))
            case "take":
                process.take(self._message(FetchReply, detail))
            case "take-alter":
                process.take_alter_reply(self._message(AlterReply, detail))
            case "lag":
                process.find_lagging(detail)
            case "crash":
                process.crash()
            case "restart":
                kept, forgets, image = detail
                process.restart(process.broker_epoch + 1, kept, forgets)
                process.learn(*self._learnt_from(image))
            case _:
                raise ValueError(event)
        outputs, process.outbox = process.outbox, []
        sent = tuple(
            self._addressed(process.broker, it) for it in outputs if not isinstance(it, Acknowledged)
        )
        acknowledged = tuple(it.value for it in outputs if isinstance(it, Acknowledged))
        return _Reaction(self.number_of(process), sent, acknowledged)

    def _addressed(self, sender: int, message: Message) -> tuple[int, int, int]:
        number = self.messages.number_of(message, message)
        match message:
            case FollowerFetch():
                return sender, FETCHES, number
            case FetchReply(fetch):
                return fetch.replica, REPLIES, number
            case AlterPartition():
                return sender, REQUESTS, number
            case AlterReply(request):
                return request.leader, ALTER_REPLIES, number

    def addressee(self, number: int) -> int:
        fetch = self.messages.values[number]
        assert isinstance(fetch, FollowerFetch)
        return fetch.leader

    # ── decisions of the controller: the image after each ────────────────────────────────────────
    @remembered
    def stale_append(self, image: int, decided: int) -> int:
        before, other = self.images.values[image], self.images.values[decided]
        return self.image(self._controller.on_stale_append(before, other))

    def image(self, image: Any) -> int:
        number = self.images.number_of(image, image)
        if number == len(self.registered):
            self.registered.append((self._controller.registration(image), self._controller.eligible(image)))
        return number

    @remembered
    def wanted(self, image: int, broker: int) -> int:
        return self.image(self._controller.on_leader_wanted(self.images.values[image], broker))

    @remembered
    def gone(self, image: int, broker: int) -> int:
        return self.image(self._controller.on_broker_gone(self.images.values[image], broker))

    @remembered
    def joined(self, image: int, broker: int, broker_epoch: int, lost_nothing: bool) -> int:
        before = self.images.values[image]
        return self.image(self._controller.on_broker_registered(before, broker, broker_epoch, lost_nothing))

    @remembered
    def altered(self, image: int, number: int) -> tuple[int, int]:
        request = self.messages.values[number]
        assert isinstance(request, AlterPartition)
        after, answer = self._controller.on_alter_partition(self.images.values[image], request)
        reply = AlterReply(request, answer)
        return self.image(after), self.messages.number_of(reply, reply)

    # ── the other parts ─────────────────────────────────────────────────────────────────────────
    def put(self, parts: list[int], owner: int, kind: int, message: int) -> None:
        at = self._bounds.brokers + owner
        parts[at] = self.replaced(parts[at], kind, message)

    @remembered
    def replaced(self, in_flight: int, kind: int, message: int) -> int:
        """Put ``message`` in flight in place of the older one of its kind; a fetch also replaces the reply.

        Messages that are delayed already stay in flight.
        """
        kinds = list(self.in_flight.values[in_flight])
        kinds[kind] = (*self._delayed_of(kinds[kind]), message)
        if kind == FETCHES:
            kinds[REPLIES] = self._delayed_of(kinds[REPLIES])
        return self._number_of_in_flight(*kinds)

    def _delayed_of(self, messages: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number for number in messages if _is_delayed(self.messages.values[number]))

    @remembered
    def removed(self, in_flight: int, kind: int, index: int) -> int:
        kinds = list(self.in_flight.values[in_flight])
        kinds[kind] = kinds[kind][:index] + kinds[kind][index + 1 :]
        return self._number_of_in_flight(*kinds)

    @remembered
    def delayed_beside(self, old: int, new: int) -> int:
        """Return the messages ``new``, plus the fetches and replies of ``old`` as delayed messages."""
        before, after = self.in_flight.values[old], self.in_flight.values[new]
        fetches = tuple(self._delayed(number) for number in before.fetches)
        replies = tuple(self._delayed(number) for number in before.replies)
        return self._number_of_in_flight(
            (*fetches, *after.fetches[-1:]),
            (*replies, *(number for number in after.replies if number not in before.replies)),
            after.requests,
            after.alter_replies,
        )

    def _delayed(self, number: int) -> int:
        match self.messages.values[number]:
            case FollowerFetch() as fetch:
                message: Message = fetch._replace(number=DELAYED)
            case FetchReply(fetch) as reply:
                message = replace(reply, fetch=fetch._replace(number=DELAYED))
            case other:
                message = other
        return self.messages.number_of(message, message)

    def _number_of_in_flight(self, *kinds: tuple[int, ...]) -> int:
        in_flight = InFlightMessages(*kinds)
        return self.in_flight.number_of(in_flight, in_flight)

    @remembered
    def learned(self, metadata: int, broker: int, index: int) -> int:
        after = self.metadata.values[metadata].with_learned(broker, index)
        return self.metadata.number_of(after, after)

    @remembered
    def written(self, metadata: int, image: int, asleep: tuple[int, ...]) -> int:
        """Add ``image`` as the newest. The brokers ``asleep`` are down; they count as having learned it."""
        before = self.metadata.values[metadata]
        after = before._replace(images=(*before.images, image))
        for broker in asleep:
            after = after.with_learned(broker, len(after.images) - 1)
        return self.metadata.number_of(after, after)

    @remembered
    def witnessed(self, history: int, process: int, acknowledged: tuple[int, ...]) -> int:
        view, before = self.views[process], self.histories.values[history]
        exposed = before.exposed
        if view.serves and view.high_watermark > len(exposed):
            exposed = exposed + view.values[len(exposed) : view.high_watermark]
        after = History(exposed, before.acknowledged.union(acknowledged))
        return self.histories.number_of(after, after)

    @remembered
    def after_message_fault(self, used: int) -> int:
        before = self.budgets_used.values[used]
        after = before._replace(message_faults=before.message_faults + 1)
        return self.budgets_used.number_of(after, after)

    # ── messages that arrive too late to have an effect ────────────────────────────────────────
    def without_late_messages(self, parts: list[int]) -> State:
        """Return the state made of ``parts``; unless the bounds keep them, without messages that are late."""
        if not self._bounds.keeps_delayed_messages:
            processes = tuple(parts[: self._bounds.brokers])
            for broker in self._brokers:
                at = self._bounds.brokers + broker
                parts[at] = self.without_ignored(parts[at], broker, processes)
        return tuple(parts)

    @remembered
    def without_ignored(self, in_flight: int, broker: int, processes: tuple[int, ...]) -> int:
        fetches, replies, requests, alter_replies = self.in_flight.values[in_flight]
        process = processes[broker]
        return self._number_of_in_flight(
            tuple(it for it in fetches if not self._is_refused(it, processes)),
            tuple(it for it in replies if not self._is_ignored(process, "take", it)),
            requests,
            tuple(it for it in alter_replies if not self._is_ignored(process, "take-alter", it)),
        )

    def _is_ignored(self, process: int, event: str, message: int) -> bool:
        """Whether the message is late by its number or epoch, and the real code ignores it."""
        if not self.processes.values[process].is_past(self.messages.values[message]):
            return False
        return self._reaction_to(process, event, message) == _Reaction(process, (), ())

    def _is_refused(self, message: int, processes: tuple[int, ...]) -> bool:
        """Whether the fetch has an older epoch than its leader, and the real code rejects it unchanged."""
        leader = processes[self.addressee(message)]
        if not self.processes.values[leader].is_past(self.messages.values[message]):
            return False
        reaction = self._reaction_to(leader, "serve", message)
        return reaction.process == leader and not reaction.sent


def _is_delayed(message: Message) -> bool:
    match message:
        case FollowerFetch(number=number) | FetchReply(FollowerFetch(number=number)):
            return number == DELAYED
        case _:
            return False
