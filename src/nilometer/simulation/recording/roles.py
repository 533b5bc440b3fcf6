"""The recorded state of a replica, from its role and its log. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable

from nilometer.identifiers import UNKNOWN_OFFSET, BrokerId
from nilometer.replication import FollowerRole, LeaderRole, NoRole
from nilometer.simulation.recording.format import Role
from nilometer.simulation.recording.replica_state import ReplicaState


def state_of(
    role: LeaderRole | FollowerRole | NoRole,
    log: tuple[int, int],
    epochs: tuple[tuple[int, int], ...],
    number: Callable[[BrokerId], int] = int,
) -> ReplicaState:
    """``log``: its start and end offset; ``number``: the number of a broker in the recording."""
    start, end = log
    match role:
        case LeaderRole():
            kind = Role.LEADER
        case FollowerRole():
            kind = Role.FOLLOWER
        case NoRole():
            kind = Role.NONE
    leader = role if isinstance(role, LeaderRole) else None
    return ReplicaState(
        role=kind,
        leader_epoch=-1 if isinstance(role, NoRole) else role.leader_epoch,
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=role.high_watermark,
        epochs=epochs,
        isr=() if leader is None else tuple(number(one) for one in leader.isr),
        followers={} if leader is None else _followers(leader, number),
    )


def _followers(leader: LeaderRole, number: Callable[[BrokerId], int]) -> dict[int, int]:
    return {
        number(one.broker_id): one.log_end_offset
        for one in leader.remote_replicas
        if one.log_end_offset != UNKNOWN_OFFSET
    }
