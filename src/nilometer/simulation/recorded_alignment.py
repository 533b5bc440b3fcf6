"""Which recordings follow each other, and which connections of two recordings are the two sides of one.

A wall clock may be set back between two starts of a broker, and the address and port of a connection may be
used again. What decides is what cannot lie: within one boot of a machine its monotonic clock; between boots
the number of the start, which the broker took from the recordings that were in its folder. Where these say
nothing, or another thing than the wall clocks, there is a doubt, and it is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from nilometer.recorder import tape as kinds
from nilometer.recorder.replaying import made_of
from nilometer.recorder.tape import Header, TapeReader

Link = tuple[Any, Any]
"""The address of the side that connected, and that of the other side."""


def link_of(extra: Mapping[str, Any], *, is_own: bool) -> Link:
    near, far = extra["sockname"], extra["peername"]
    return (near, far) if is_own else (far, near)


class Opened(NamedTuple):
    """A connection of a recording."""

    number: int
    link: Link
    is_own: bool
    """Whether the broker made it."""
    at_ms: int
    """When it was made, by the event loop's clock."""


class Survey(NamedTuple):
    """What a recording has in it, found without a replay."""

    connections: Sequence[Opened]
    ended_ms: int
    """The time of its last event, by the event loop's clock."""


def survey_of(frames: Iterator[bytes]) -> Survey:
    """Raises NotARecording."""
    tape, own, found, now_ms = TapeReader(frames), set[int](), list[Opened](), 0
    while (head := tape.head) is not None and head.kind != kinds.END:
        if head.is_event:
            now_ms += tape.event_head()[1]
            if head.kind == kinds.CONNECTION:
                number, origin = tape.number(), tape.number()
                if not origin & 1:
                    own.add(number)
            elif head.kind == kinds.MADE:
                number = tape.number()
                is_own = number in own
                link = link_of(made_of(tape.packed()), is_own=is_own)
                found.append(Opened(number, link, is_own, now_ms))
            tape.back()
        tape.skip()
    return Survey(found, now_ms)


class Start(Protocol):
    """A recorded start of a broker."""

    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def header(self) -> Header: ...

    @property
    def survey(self) -> Survey: ...


S = TypeVar("S", bound=Start)


def shifts_of(starts: Sequence[Start]) -> list[int]:
    """Return how many milliseconds each start's wall clock must be moved, to go on within its boot from the
    first recorded start there: a clock that was set meanwhile changes no order."""
    firsts: dict[str, int] = {}
    shifts = [0] * len(starts)
    for index in sorted(range(len(starts)), key=lambda one: starts[one].header.started_monotonic_ms):
        header = starts[index].header
        if header.boot:
            ahead_ms = header.started_ms - header.started_monotonic_ms
            shifts[index] = firsts.setdefault(header.boot, ahead_ms) - ahead_ms
    return shifts


def in_order(starts: Sequence[S], doubt: Callable[[str], object]) -> list[S]:
    """Return the starts of one broker, the first one first; ``doubt`` is told what is not certain."""
    boots: dict[object, list[S]] = {}
    for index, one in enumerate(starts):
        boots.setdefault(one.header.boot or index, []).append(one)
    groups = [sorted(one, key=lambda start: start.header.started_monotonic_ms) for one in boots.values()]
    groups.sort(key=lambda group: (group[0].header.number, group[0].header.started_ms))
    for before, after in itertools.pairwise(groups):
        earlier, later = before[-1].header, after[0].header
        if not (earlier.number < later.number and earlier.started_ms <= later.started_ms):
            doubt(
                f"Broker {after[0].id}: whether {before[-1].name} or {after[0].name} was first cannot be "
                f"known: by their numbers ({earlier.number} and {later.number}) and their clocks it is not "
                "the same, because a clock was set or a folder was emptied between them. They are replayed "
                "in this order."
            )
    return [one for group in groups for one in group]


def chains_of(starts: Sequence[S], doubt: Callable[[str], object]) -> list[list[S]]:
    """Return the starts of one broker as chains, in each of which one follows the other. A start that
    began while another one went on, such as one that found the log directories in use, is in a chain of its
    own. Of several recordings of a start the longest is taken."""
    chains: list[list[S]] = []
    for one in in_order(_without_copies(starts, doubt), doubt):
        chain = next((each for each in chains if not _overlap(each[-1], one)), None)
        if chain is not None:
            chain.append(one)
            continue
        if chains:
            doubt(
                f"Broker {one.id}: {one.name} began while {chains[0][-1].name} went on: there were two "
                "processes."
            )
        chains.append([one])
    return chains


def _without_copies(starts: Sequence[S], doubt: Callable[[str], object]) -> list[S]:
    found: dict[object, list[S]] = {}
    for index, one in enumerate(starts):
        header = one.header
        start = (header.boot, header.started_monotonic_ms, header.started_ms) if header.boot else index
        found.setdefault(start, []).append(one)
    for copies in found.values():
        if len(copies) > 1:  # one was made while the broker went on
            copies.sort(key=lambda copy: copy.survey.ended_ms, reverse=True)
            names = " and ".join(copy.name for copy in copies)
            doubt(
                f"Broker {copies[0].id}: {names} are of the same start: the longest is taken, "
                f"{copies[0].name}."
            )
    return [copies[0] for copies in found.values()]


def _overlap(before: Start, after: Start) -> bool:
    """Whether ``after`` began before the end of ``before``, as far as that can be known."""
    if not before.header.boot or before.header.boot != after.header.boot:
        return False
    return after.header.started_monotonic_ms < before.survey.ended_ms


def sides_of(starts: Sequence[S]) -> Iterator[tuple[tuple[S, int], tuple[S, int]]]:
    """Yield the connections between two brokers that are both recorded: start and number of the side that
    connected, and of the other side. ``starts``: those of each broker in their order.

    An address and port are used again by later connections: these are told apart by their times.
    """
    clients, servers = dict[Link, list[tuple[int, Opened]]](), dict[Link, list[tuple[int, Opened]]]()
    for index, one in enumerate(starts):
        for opened in one.survey.connections:
            (clients if opened.is_own else servers).setdefault(opened.link, []).append((index, opened))
    ahead_ms = [
        one.header.started_ms - one.header.started_monotonic_ms + shift_ms
        for one, shift_ms in zip(starts, shifts_of(starts), strict=True)
    ]
    for link, made in clients.items():
        ids = {starts[index].id for index, _ in made}  # a connection of a broker to itself is none of these
        taken = [use for use in servers.get(link, ()) if starts[use[0]].id not in ids]
        times = [[opened.at_ms + ahead_ms[index] for index, opened in uses] for uses in (made, taken)]
        for near, far in paired(*times):
            (client, own), (server, accepted) = made[near], taken[far]
            yield (starts[client], own.number), (starts[server], accepted.number)


def paired(these: Sequence[int], those: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of indices: each of the fewer ones has a partner, both in their order, so that the times
    of partners differ the least."""
    if len(these) > len(those):
        return [(one, other) for other, one in paired(those, these)]
    spare = len(those) - len(these)
    # Row n: the least sum for the first n, and how many of the others were left out, for each number of them.
    sums, choices = [0] * (spare + 1), list[list[int]]()
    for number, at in enumerate(these):
        costs = [total + abs(at - those[number + left]) for left, total in enumerate(sums)]
        best, chosen = 0, list[int]()
        for left, cost in enumerate(costs):
            best = left if cost < costs[best] else best
            chosen.append(best)
        choices.append(chosen)
        sums = [costs[left] for left in chosen]
    left, found = spare, list[tuple[int, int]]()
    for number in reversed(range(len(these))):
        left = choices[number][left]
        found.append((number, number + left))
    return found[::-1]
