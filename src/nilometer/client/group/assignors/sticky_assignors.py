"""``sticky`` and ``cooperative-sticky``: an even assignment that moves as few partitions as possible. Pure.

Both use :mod:`~nilometer.client.group.assignors.sticky_balance`. The eager one reads the members' previous
partitions from their user data, since they own none during a rebalance; the cooperative one reads them from
the subscriptions, and assigns no partition that another member still owns: the next rebalance does (KIP-429).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from nilometer.client.group.assignors.assignor import (
    Assignments,
    AssignmentTask,
    MemberId,
    MemberSubscription,
    RebalanceProtocol,
)
from nilometer.client.group.assignors.sticky_balance import balanced
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.consumer_protocol import NO_GENERATION, decode_assignment, encode_assignment
from nilometer.wire.consumer_protocol import Assignment as WireAssignment
from nilometer.wire.errors import MalformedMessage

_GENERATION = struct.Struct(">i")
_VERSION_BYTES = 2
_EMPTY_USER_DATA_BYTES = 4

OwnedClaim = tuple[int, Sequence[TopicPartition]]
"""A generation, and the partitions that a member owned in it."""


class StickyAssignor:
    name = "sticky"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, task: AssignmentTask) -> Assignments:
        claims = {member: read_claim(said.user_data) for member, said in task.members.items()}
        return balanced(task, settle_claims(claims))

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return write_claim((generation, owned)) if owned or generation != NO_GENERATION else None


class CooperativeStickyAssignor:
    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE)

    def assign(self, task: AssignmentTask) -> Assignments:
        claims = {member: (_generation(said), said.owned) for member, said in task.members.items()}
        target = balanced(task, settle_claims(claims))
        held = {partition for said in task.members.values() for partition in said.owned}
        return {
            member: [
                partition
                for partition in partitions
                if partition not in held or partition in task.members[member].owned
            ]
            for member, partitions in target.items()
        }

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return _GENERATION.pack(generation)


def _generation(said: MemberSubscription) -> int:
    """Return the generation of a member's owned partitions; older clients send it only in the user data."""
    if said.generation == NO_GENERATION and said.user_data and len(said.user_data) >= _GENERATION.size:
        return int(_GENERATION.unpack_from(said.user_data)[0])
    return said.generation


def settle_claims(claims: Mapping[MemberId, OwnedClaim]) -> dict[MemberId, list[TopicPartition]]:
    """Return the partitions that each member is regarded as owning.

    If several members claim a partition, the one with the newest generation owns it; if several have that
    generation, none does.
    """
    newest: dict[TopicPartition, tuple[int, MemberId | None]] = {}
    for member in sorted(claims):
        generation, partitions = claims[member]
        for partition in dict.fromkeys(partitions):
            known, _ = newest.get(partition, (generation - 1, None))
            if generation > known:
                newest[partition] = (generation, member)
            elif generation == known:
                newest[partition] = (generation, None)
    owned: dict[MemberId, list[TopicPartition]] = {member: [] for member in claims}
    for partition, (_, owner) in newest.items():
        if owner is not None:
            owned[owner].append(partition)
    return owned


def write_claim(claim: OwnedClaim) -> bytes:
    """Encode the user data of the eager sticky assignor: partitions by topic, then the generation."""
    generation, partitions = claim
    encoded = encode_assignment(WireAssignment(tuple(partitions)))
    return encoded[_VERSION_BYTES:-_EMPTY_USER_DATA_BYTES] + _GENERATION.pack(generation)


def read_claim(user_data: bytes | None) -> OwnedClaim:
    """Decode the user data of the eager sticky assignor.

    Malformed data is an empty claim: one member must not be able to stop its group.
    """
    if not user_data:
        return NO_GENERATION, ()
    for trailer in (_GENERATION.size, 0):  # before 2.1 there was no generation
        body, rest = user_data[: len(user_data) - trailer], user_data[len(user_data) - trailer :]
        try:
            found = decode_assignment(b"\0\0" + body + b"\xff\xff\xff\xff")
        except MalformedMessage:
            continue
        generation = int(_GENERATION.unpack(rest)[0]) if trailer else NO_GENERATION
        return generation, [TopicPartition(topic, number) for topic, number in found.partitions]
    return NO_GENERATION, ()
