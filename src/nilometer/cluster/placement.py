"""Placing the replicas of new partitions on brokers.

Goals, in this order: the replicas of a partition are on different brokers (required) and in different racks;
leaders are spread evenly; the followers of one broker's partitions are spread over all other brokers, so that
after its failure its load is spread. Leaders, and as many followers as possible, are placed on live brokers.

Deterministic: the random values are two arguments, *start* (the index of the first leader) and *shift* (the
distance of the first follower), as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from nilometer.cluster.records import Replicas
from nilometer.identifiers import BrokerId


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
