"""A replica's state, and what has changed between two of them: the change, its kind, and a text about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from nilometer.identifiers import UNKNOWN_OFFSET, BrokerId
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole
from nilometer.simulation.recording.format import Change, Kind, Role, applied_fields


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """The fields are those of :class:`~nilometer.simulation.recording.format.Change`."""

    role: Role = Role.NONE
    leader_epoch: int = -1
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    isr: tuple[int, ...] = ()
    followers: dict[int, int] = msgspec.field(default_factory=dict[int, int])


class Difference(NamedTuple):
    kind: Kind
    text: str
    change: Change


def after(state: ReplicaState, change: Change) -> ReplicaState:
    return msgspec.structs.replace(state, **applied_fields(change))


def first_state(partition: str, state: ReplicaState) -> Difference:
    """Return the event of a replica that was not known before; its change has all fields."""
    text = (
        f"has {partition}: log start {state.log_start_offset}, LEO {state.log_end_offset}, "
        f"HW {state.high_watermark}, {_role(state)}"
    )
    return Difference(Kind.REPLICA, text, Change(**_fields(state)))


def difference(
    partition: str, before: ReplicaState, now: ReplicaState, name: Callable[[int], str] = str
) -> Difference | None:
    """Return what has changed; None if nothing has.

    The kind is that of the most important change, the text names all. ``name`` returns a broker's name.
    """
    if before == now:
        return None
    parts = list(_parts(before, now, name))
    old = _fields(before)
    changed = {name: value for name, value in _fields(now).items() if value != old[name]}
    kind = parts[0][0] if parts else Kind.ROLE
    text = "; ".join(text for _, text in parts) or _role(now)
    return Difference(kind, f"{partition}: {text}", Change(**changed))


def _parts(before: ReplicaState, now: ReplicaState, name: Callable[[int], str]) -> Iterator[tuple[Kind, str]]:
    """Yield each change, the most important one first."""
    end = before.log_end_offset
    if (cut := _truncated_to(before, now)) is not None:
        yield Kind.TRUNCATION, f"truncates its log from {end} to {cut}"
        end = cut
    if (before.role, before.leader_epoch) != (now.role, now.leader_epoch):
        yield Kind.ROLE, _role(now)
    if before.isr != now.isr and now.role is Role.LEADER:
        yield Kind.ISR, f"ISR {', '.join(map(name, now.isr))}"
    if now.log_start_offset != before.log_start_offset:
        yield Kind.LOG_START, f"log start {before.log_start_offset} → {now.log_start_offset}"
    if now.log_end_offset > end:
        count = now.log_end_offset - end
        yield (
            Kind.APPEND,
            f"appends {count} record{'s' if count > 1 else ''}, LEO {end} → {now.log_end_offset}",
        )
    if now.high_watermark != before.high_watermark:
        yield Kind.HIGH_WATERMARK, f"HW {before.high_watermark} → {now.high_watermark}"
    for follower, offset in now.followers.items():
        if before.followers.get(follower, -1) != offset:
            yield Kind.FOLLOWER_POSITION, f"knows that {name(follower)} ends at {offset}"


def _truncated_to(before: ReplicaState, now: ReplicaState) -> int | None:
    """Return the offset to which the log was truncated between the states, before any append; None: it was
    not.

    A new epoch that begins below the old end shows a truncation that appends have hidden.
    """
    known = {epoch for epoch, _ in before.epochs}
    begins = [start for epoch, start in now.epochs if epoch not in known]
    lowest = min([now.log_end_offset, *begins])
    return lowest if lowest < before.log_end_offset else None


def _role(state: ReplicaState) -> str:
    match state.role:
        case Role.LEADER:
            return f"leads in epoch {state.leader_epoch}"
        case Role.FOLLOWER:
            return f"follows in epoch {state.leader_epoch}"
        case Role.NONE:
            return "has no role"


def _fields(state: ReplicaState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}


# The recorded state of a replica, from its role and its log. Nothing is changed.


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
