"""Does every state that a model can reach have its properties? If not, by which shortest path is the first
violation reached?

:func:`explore` visits the states of any model, breadth first. Each model has its own properties; those of the
model of replication (:mod:`world`) are in :mod:`properties`.

For each state only three numbers are kept: its own, that of the state it was reached from, and that of the
step between them. The states of a path are computed again by taking its steps from the first state.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from nilometer.invariants import InvariantBroken

Step = tuple[str, int, int]
"""(name, broker, detail): the detail is the index of a message, another broker, a value or a count."""


class Violation(msgspec.Struct, frozen=True):
    sentence: str
    detail: str

    def __str__(self) -> str:
        return f"{self.sentence}: {self.detail}"


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
    judge: Callable[[Any, S], Violation | None],
    depth_max: int | None = None,
    states_max: int | None = None,
    on_level: Callable[[Progress], None] | None = None,
) -> Exploration:
    """Visit all states of ``world`` until the first violation, and return what was found.

    ``judge`` returns the violation of a state, or None. ``depth_max`` limits the steps from the first state,
    ``states_max`` the number of states. ``on_level`` is called after all states of one depth.
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
