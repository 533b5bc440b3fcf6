"""On which brokers replicas are placed: those of new partitions, and those of existing ones, spread evenly.

Both are deterministic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from nilometer.cluster.records import Replicas
from nilometer.identifiers import BrokerId

# Placing the replicas of new partitions on brokers.
#
# Goals, in this order: the replicas of a partition are on different brokers (required) and in different
# racks; leaders are spread evenly; the followers of one broker's partitions are spread over all other
# brokers, so that after its failure its load is spread. Leaders, and as many followers as possible, are
# placed on live brokers.
#
# The random values are two arguments, *start* (the index of the first leader) and *shift* (the
# distance of the first follower), as in Kafka.


class UsableBroker(msgspec.Struct, frozen=True):
    id: BrokerId
    rack: str | None = None
    live: bool = True


class CannotPlace(ValueError):
    """There are too few brokers for the replication factor."""


def place_replicas(
    brokers: Sequence[UsableBroker],
    *,
    partitions: int,
    replication_factor: int,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[Replicas]:
    """Return the assignments of ``partitions`` partitions, the first of which is number ``first_partition``.

    ``start`` and ``shift`` are random numbers, see above. Raises CannotPlace.
    """
    live = [broker for broker in brokers if broker.live]
    _refuse_too_few(len(brokers), len(live), replication_factor)
    circle = interleave_racks(live)
    absent = interleave_racks([broker for broker in brokers if not broker.live])
    on_live = min(replication_factor, len(circle))
    placed: list[Replicas] = []
    for index in range(first_partition, first_partition + partitions):
        rounds = index // len(circle)
        order = _order(circle, start + index, shift + rounds)
        chosen = _pick(order, on_live, [])
        if on_live < replication_factor:
            chosen = _pick(_rotated(absent, index), replication_factor, chosen)
        placed.append(tuple(broker.id for broker in chosen))
    return placed


def interleave_racks(brokers: Sequence[UsableBroker]) -> list[UsableBroker]:
    """Return the brokers by id, one of each rack in turn, so that adjacent ones are in different racks."""
    racks: dict[str | None, list[UsableBroker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, []).append(broker)
    in_turn = zip_longest(
        *(racks[rack] for rack in sorted(racks, key=lambda rack: (rack is None, rack or "")))
    )
    return [broker for turn in in_turn for broker in turn if broker is not None]


def _refuse_too_few(usable: int, live: int, replication_factor: int) -> None:
    if replication_factor <= 0:
        raise CannotPlace(f"Invalid replication factor {replication_factor}: it must be positive.")
    if live == 0:
        raise CannotPlace("All brokers are currently fenced.")
    if replication_factor > usable:
        raise CannotPlace(
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{usable} broker(s) are registered."
        )


def _order(circle: Sequence[UsableBroker], leader: int, shift: int) -> list[UsableBroker]:
    """Return the leader, then all other brokers in order, starting ``shift`` places after the leader."""
    count = len(circle)
    others = count - 1
    return [circle[leader % count]] + [
        circle[(leader + 1 + (shift + step) % others) % count] for step in range(others)
    ]


def _rotated(brokers: Sequence[UsableBroker], places: int) -> list[UsableBroker]:
    cut = places % len(brokers)
    return [*brokers[cut:], *brokers[:cut]]


def _pick(order: Sequence[UsableBroker], wanted: int, chosen: Sequence[UsableBroker]) -> list[UsableBroker]:
    """Return ``chosen`` extended to ``wanted`` brokers: first from racks not used yet, then from any."""
    picked = list(chosen)
    racks = {broker.rack for broker in picked}
    for broker in order:
        if len(picked) < wanted and (broker.rack is None or broker.rack not in racks):
            picked.append(broker)
            racks.add(broker.rack)
    for broker in order:
        if len(picked) < wanted and broker not in picked:
            picked.append(broker)
    return picked


# A new assignment for existing partitions: spread evenly over given brokers, with as few moves as possible.
#
# Its goals, in this order: the replicas of a partition are on different brokers, all among the
# given ones (required); they are spread evenly over racks, if every broker has a rack; the brokers have equal
# numbers of replicas of a topic (differing by at most one, if racks allow it) and lead equal numbers of its
# partitions. Replicas are moved only for one of these goals; leaders are changed by the order of replicas,
# which moves no data.

Assignments = Mapping[int, Replicas]
"""Partition → its replicas, the preferred leader first."""


class PlannedMove(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    before: Replicas
    after: Replicas

    @property
    def added(self) -> Replicas:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> Replicas:
        return tuple(broker for broker in self.before if broker not in self.after)


def plan_reassignment(
    topics: Mapping[str, Assignments],
    brokers: Sequence[UsableBroker],
    replication_factor: int | None = None,
) -> list[PlannedMove]:
    """Return the changed assignments, by topic and partition.

    ``replication_factor`` None keeps each partition's. Raises CannotPlace.
    """
    if not brokers:
        raise CannotPlace("No broker is given to place replicas on.")
    moves: list[PlannedMove] = []
    for topic, assignments in sorted(topics.items()):
        planned = _TopicPlan(assignments, brokers, replication_factor).solve()
        moves.extend(
            PlannedMove(topic, partition, before, planned[partition])
            for partition, before in sorted(assignments.items())
            if planned[partition] != before
        )
    return moves


class _RackLevel(NamedTuple):
    """How many replicas of a partition each rack may have (limited by its brokers), and how many racks may
    have one more."""

    each: int
    one_more: int


class _TopicPlan:
    """The planning of one topic. Invariant: ``_load`` is the number of replicas in ``_placed`` per broker."""

    def __init__(
        self, assignments: Assignments, brokers: Sequence[UsableBroker], replication_factor: int | None
    ) -> None:
        self._before = dict(sorted(assignments.items()))
        self._racks = {broker.id: broker.rack for broker in sorted(brokers, key=lambda one: one.id)}
        self._ignores_racks = None in self._racks.values()
        self._factor = {
            partition: len(replicas) if replication_factor is None else replication_factor
            for partition, replicas in self._before.items()
        }
        self._placed: dict[int, list[BrokerId]] = {}
        self._load: Counter[BrokerId] = Counter(dict.fromkeys(self._racks, 0))

    def solve(self) -> dict[int, Replicas]:
        for partition, factor in self._factor.items():
            if factor > len(self._racks):
                raise CannotPlace(f"{factor} replicas do not fit on {len(self._racks)} brokers.")
            self._placed[partition] = self._kept(partition)
            self._load.update(self._placed[partition])
        for partition in self._placed:
            self._fill(partition)
        self._even_out()
        self._spread_leaders()
        return {partition: tuple(replicas) for partition, replicas in self._placed.items()}

    # --- replicas

    def _kept(self, partition: int) -> list[BrokerId]:
        """Return the replicas that can stay: on a given broker, and within the limit of their rack."""
        kept: list[BrokerId] = []
        for broker in self._before[partition]:
            if len(kept) < self._factor[partition] and self._fits(partition, broker, kept):
                kept.append(broker)
        return kept

    def _fits(self, partition: int, broker: BrokerId, others: Sequence[BrokerId]) -> bool:
        """Whether ``broker`` may get a replica in addition to ``others`` within the limit of its rack."""
        if broker not in self._racks or broker in others:
            return False
        if self._ignores_racks:
            return True
        level = self._rack_level(self._factor[partition])
        counts = Counter(self._racks[other] for other in others)
        count = counts[self._racks[broker]]
        if count < level.each:
            return True
        return count == level.each and sum(one > level.each for one in counts.values()) < level.one_more

    def _rack_level(self, factor: int) -> _RackLevel:
        """Compute the limits by filling racks in rounds, one replica each, up to ``factor`` replicas."""
        sizes = Counter(self._racks.values())
        each, left = 0, factor
        while (roomy := sum(size > each for size in sizes.values())) < left:
            left -= roomy
            each += 1
        return _RackLevel(each, left)

    def _fill(self, partition: int) -> None:
        replicas = self._placed[partition]
        while len(replicas) < self._factor[partition]:
            candidates = [broker for broker in self._racks if self._fits(partition, broker, replicas)]
            chosen = min(candidates, key=lambda broker: (self._load[broker], broker))
            replicas.append(chosen)
            self._load[chosen] += 1

    def _even_out(self) -> None:
        """Move replicas from the brokers with most replicas to those with fewest, while they differ by more
        than one."""
        while (move := self._evening_move()) is not None:
            partition, giver, taker = move
            replicas = self._placed[partition]
            replicas[replicas.index(giver)] = taker
            self._load[giver] -= 1
            self._load[taker] += 1

    def _evening_move(self) -> tuple[int, BrokerId, BrokerId] | None:
        by_load = sorted(self._racks, key=lambda broker: (self._load[broker], broker))
        for giver in reversed(by_load):
            for taker in by_load:
                if self._load[giver] - self._load[taker] < 2:
                    break
                partition = self._movable(giver, taker)
                if partition is not None:
                    return partition, giver, taker
        return None

    def _movable(self, giver: BrokerId, taker: BrokerId) -> int | None:
        """Return a partition whose replica may move from ``giver`` to ``taker``, or None.

        Partitions whose replica is newly placed on ``giver`` are preferred: moving it costs nothing.
        """
        possible: list[tuple[bool, int]] = []
        for partition, replicas in self._placed.items():
            if giver not in replicas:
                continue
            others = [broker for broker in replicas if broker != giver]
            if self._fits(partition, taker, others):
                possible.append((giver in self._before[partition], partition))
        return min(possible)[1] if possible else None

    # --- leaders

    def _spread_leaders(self) -> None:
        """Move leaderships from the broker that leads most partitions, directly or over other brokers, to one
        that leads fewer, until the numbers are as even as possible."""
        while (chain := self._leader_chain()) is not None:
            for partition, leader in chain:
                replicas = self._placed[partition]
                replicas.remove(leader)
                replicas.insert(0, leader)

    def _leader_chain(self) -> list[tuple[int, BrokerId]] | None:
        """Return a chain of moves (partition, its new leader); None if leaders are as even as possible."""
        leads = Counter(dict.fromkeys(self._racks, 0))
        leads.update(replicas[0] for replicas in self._placed.values())
        for start in sorted(self._racks, key=lambda broker: (-leads[broker], broker)):
            reached: dict[BrokerId, tuple[int, BrokerId] | None] = {start: None}
            queue = deque([start])
            while queue:
                giver = queue.popleft()
                if leads[giver] <= leads[start] - 2:
                    return _links(reached, giver)
                for partition, replicas in self._placed.items():
                    if replicas[0] != giver:
                        continue
                    for taker in replicas[1:]:
                        if taker not in reached:
                            reached[taker] = (partition, giver)
                            queue.append(taker)
        return None


def _links(
    reached: Mapping[BrokerId, tuple[int, BrokerId] | None], end: BrokerId
) -> list[tuple[int, BrokerId]]:
    links: list[tuple[int, BrokerId]] = []
    broker = end
    while (step := reached[broker]) is not None:
        partition, giver = step
        links.append((partition, broker))
        broker = giver
    return links
