"""Does every state that a model can reach have its properties? If not, by which shortest path is the first
violation reached?

:func:`explore` visits the states of any model, breadth first. :func:`violation` has the properties of the
model of replication (:mod:`world`); the other models have theirs.

For each state only three numbers are kept: its own, that of the state it was reached from, and that of the
step between them. The states of a path are computed again by taking its steps from the first state.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from nilometer.invariants import InvariantBroken
from nilometer.simulation.model_check.tables import History, State, View
from nilometer.simulation.model_check.world import Step, World

# The properties that must hold in every state of the model, as named sentences.
#
# They are checked on the logs of the processes, on the controller's image and on the values that clients have
# seen, not on the internal state of the roles. So they are independent of the checks inside the roles.


class Violation(msgspec.Struct, frozen=True):
    sentence: str
    detail: str

    def __str__(self) -> str:
        return f"{self.sentence}: {self.detail}"


HW_WITHIN_LOG = "high watermark <= log end offset"
LEADER_IN_ISR = "a leader is in the ISR"
ONE_LEADER = "one leader per epoch"
STRONG_ISR = "records below a leader's high watermark are on every member of the committed ISR"
NEVER_WITHDRAWN = "a record that a reader received is never withdrawn"
NEVER_LOST = "an acknowledged record (acks=all) is never lost"
SAME_RECORD = "an epoch has at most one record at an offset"


def violation(world: World, state: State) -> Violation | None:
    """Return the first property that does not hold in ``state``, or None."""
    views = world.views_of(state)
    return (
        _of_the_processes(views)
        or _of_the_cluster(world, state, views)
        or _of_the_outside(world, state, views, world.history_of(state))
    )


def loss(world: World, state: State) -> Violation | None:
    """Check NEVER_LOST only, for searches in which other properties are violated earlier."""
    return _of_the_acknowledged(world, state, world.views_of(state))


def _of_the_processes(views: list[View]) -> Violation | None:
    leaders: dict[int, int] = {}
    for view in views:
        if view.high_watermark > view.log_end_offset:
            return Violation(
                HW_WITHIN_LOG, f"broker {view.broker}: {view.high_watermark} > {view.log_end_offset}"
            )
        if view.is_leader:
            other = leaders.setdefault(view.leader_epoch, view.broker)
            if other != view.broker:
                return Violation(
                    ONE_LEADER, f"brokers {other} and {view.broker} in epoch {view.leader_epoch}"
                )
    return _differing_record(views)


def _differing_record(views: list[View]) -> Violation | None:
    for index, one in enumerate(views):
        for two in views[index + 1 :]:
            records = zip(one.epochs, two.epochs, one.values, two.values, strict=False)
            for offset, (epoch, other_epoch, value, other_value) in enumerate(records):
                if epoch == other_epoch and value != other_value:
                    where = f"epoch {epoch}, offset {offset}"
                    return Violation(SAME_RECORD, f"{where}: brokers {one.broker} and {two.broker}")
    return None


def _of_the_cluster(world: World, state: State, views: list[View]) -> Violation | None:
    registration, eligible = world.registration_of(state), world.eligible_in(state)
    if registration.leader >= 0 and registration.leader not in registration.isr:
        return Violation(LEADER_IN_ISR, f"leader {registration.leader}, ISR {registration.isr}")
    for leader in views:
        if not leader.is_leader:
            continue
        committed = leader.values[: leader.high_watermark]
        for member in registration.isr:
            view = views[member]
            if view.is_up and eligible.get(member) == view.broker_epoch:
                has = view.values[: leader.high_watermark]
                if has != committed:
                    detail = f"leader {leader.broker} committed {committed}, member {member} has {has}"
                    return Violation(STRONG_ISR, detail)
    return None


def _of_the_outside(world: World, state: State, views: list[View], history: History) -> Violation | None:
    exposed = history.exposed
    for view in views:
        if view.serves and view.values[: view.high_watermark] != exposed[: view.high_watermark]:
            shown = view.values[: view.high_watermark]
            return Violation(
                NEVER_WITHDRAWN, f"readers got {exposed}, broker {view.broker} now shows {shown}"
            )
    for leader in _leaders_of_newest_epoch(world, state, views):
        if leader.values[: len(exposed)] != exposed:
            return Violation(
                NEVER_WITHDRAWN, f"readers got {exposed}, leader {leader.broker} has {leader.values}"
            )
    return _of_the_acknowledged(world, state, views)


def _of_the_acknowledged(world: World, state: State, views: list[View]) -> Violation | None:
    acknowledged = world.history_of(state).acknowledged
    for leader in _leaders_of_newest_epoch(world, state, views):
        if missing := sorted(acknowledged.difference(leader.values)):
            return Violation(NEVER_LOST, f"values {missing} are not in the log of leader {leader.broker}")
    return None


def _leaders_of_newest_epoch(world: World, state: State, views: list[View]) -> list[View]:
    """Return the leaders of the newest epoch: their log decides which records are committed."""
    leader_epoch = world.registration_of(state).leader_epoch
    return [view for view in views if view.is_leader and view.leader_epoch == leader_epoch]


S = TypeVar("S", bound=Hashable)


class Explorable(Protocol[S]):
    """A model that :func:`explore` can visit: a first state, and the steps from each state."""

    def first_state(self) -> S: ...

    def steps(self, state: S) -> Iterator[tuple[Step, S]]:
        """Yield each possible next step with the state it leads to; no step occurs twice."""
        ...


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """The result of :func:`explore`. ``is_complete`` without a violation: all reachable states are good."""

    states: int
    transitions: int
    depth: int
    is_complete: bool
    violation: Violation | None = None
    counterexample: tuple[tuple[Step, Any], ...] = ()
    """The steps from the first state to the violation, each with the state after it."""


class Progress(msgspec.Struct, frozen=True):
    depth: int
    states: int
    frontier: int


class _Trail:
    """Records how each state was first reached: from which state (its number) and by which step.

    States are numbered in the order in which they were found.
    """

    __slots__ = ("_parents", "_step_numbers", "_steps", "_steps_taken")

    def __init__(self) -> None:
        self._parents = array("l")
        self._steps_taken = array("l")
        self._step_numbers: dict[Step, int] = {}
        self._steps: list[Step] = []

    def add(self, parent: int, step: Step) -> None:
        number = self._step_numbers.get(step)
        if number is None:
            number = self._step_numbers[step] = len(self._steps)
            self._steps.append(step)
        self._parents.append(parent)
        self._steps_taken.append(number)

    def steps_to(self, number: int) -> list[Step]:
        steps: list[Step] = []
        while number:
            steps.append(self._steps[self._steps_taken[number]])
            number = self._parents[number]
        return steps[::-1]


def explore(
    world: Explorable[S],
    *,
    depth_max: int | None = None,
    states_max: int | None = None,
    judge: Callable[[Any, S], Violation | None] = violation,
    on_level: Callable[[Progress], None] | None = None,
) -> Exploration:
    """Visit all states of ``world`` until the first violation, and return what was found.

    ``depth_max`` limits the steps from the first state, ``states_max`` the number of states. ``judge``
    returns the violation of a state, or None. ``on_level`` is called after all states of one depth.
    """
    first = world.first_state()
    numbers: dict[S, int] = {first: 0}
    trail = _Trail()
    trail.add(0, ("begin", 0, 0))
    frontier, depth, transitions = [first], 0, 0

    def seen(found: Violation | None = None, counterexample: tuple[tuple[Step, S], ...] = ()) -> Exploration:
        return Exploration(
            states=len(numbers),
            transitions=transitions,
            depth=depth,
            is_complete=not frontier,
            violation=found,
            counterexample=counterexample,
        )

    while frontier and (depth_max is None or depth < depth_max):
        depth += 1
        level: list[S] = []
        for state in frontier:
            parent = numbers[state]
            try:
                for step, after in world.steps(state):
                    transitions += 1
                    if after in numbers:
                        continue
                    trail.add(parent, step)
                    numbers[after] = len(numbers)
                    level.append(after)
                    if states_max is not None and len(numbers) >= states_max:
                        return seen()
                    if (found := judge(world, after)) is not None:
                        return seen(found, replay(world, trail.steps_to(numbers[after])))
            except InvariantBroken as broken:
                found = Violation(broken.sentence, f"checked by the code itself: {broken.values}")
                return seen(found, replay(world, trail.steps_to(parent)))
        frontier = level
        if on_level is not None:
            on_level(Progress(depth, len(numbers), len(frontier)))
    return seen()


def replay(world: Explorable[S], steps: list[Step]) -> tuple[tuple[Step, S], ...]:
    """Take ``steps`` from the first state; return each with the state after it."""
    state = world.first_state()
    counterexample: list[tuple[Step, S]] = []
    for wanted in steps:
        state = next(after for step, after in world.steps(state) if step == wanted)
        counterexample.append((wanted, state))
    return tuple(counterexample)
