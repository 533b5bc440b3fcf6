"""Why a partition's high watermark does not advance, in sentences. Pure.

The rule is the leader's (:mod:`nilometer.replication.shell_interface`), and the leader names the reason in
DescribeReplicas. Here that reason is explained with what the survey knows of the replicas it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.client.admin.replica_survey import ReplicaRow
from nilometer.identifiers import NO_LEADER
from nilometer.wire.own_apis import (
    LEADER,
    NOT_HELD,
    UNDER_MIN_ISR,
    WAITING_FOR_FLUSH,
    WAITING_FOR_REPLICAS,
    LeaderState,
    ReplicaState,
)

NO_LEADER_KNOWN = "no-leader"
LEADER_UNREACHABLE = "leader-unreachable"
UNEXPLAINED = "unexplained"


class Hold(msgspec.Struct, frozen=True):
    """Why the high watermark is where it is."""

    reason: str
    """That of DescribeReplicas, or ``no-leader``, ``leader-unreachable``."""
    is_held: bool
    summary: str
    details: tuple[str, ...] = ()
    """One sentence for each replica that it waits for, then what follows."""
    replicas: tuple[int, ...] = ()
    """The replicas that it waits for."""


def why_held(rows: Sequence[ReplicaRow], leader_id: int) -> Hold:
    """Return why the high watermark of a partition is held. ``rows``: the replicas of that partition."""
    if leader_id == NO_LEADER:
        return _no_leader(rows)
    led = next((row for row in rows if row.broker_id == leader_id), None)
    state = None if led is None else led.state
    if led is None or state is None or state.role != LEADER or state.leader is None:
        return _no_answer(led, leader_id)
    leader = state.leader
    match leader.hold.reason:
        case reason if reason == NOT_HELD:
            return _not_held(state, leader)
        case reason if reason == UNDER_MIN_ISR:
            return _under_min_isr(rows, state, leader)
        case reason if reason == WAITING_FOR_REPLICAS:
            return _waiting(rows, state, leader)
        case reason if reason == WAITING_FOR_FLUSH:
            return _flush(state)
        case _:
            return Hold(UNEXPLAINED, True, f"The leader reports: {leader.hold.text}.")


def _no_leader(rows: Sequence[ReplicaRow]) -> Hold:
    away = tuple(row.broker_id for row in rows if row.state is None)
    details = tuple(f"Broker {row.broker_id}: {row.failure}." for row in rows if row.state is None)
    return Hold(
        NO_LEADER_KNOWN, True, "The partition has no leader: nothing can be read or written.", details, away
    )


def _no_answer(led: ReplicaRow | None, leader_id: int) -> Hold:
    if led is not None and led.state is not None:
        text = f"Broker {leader_id} was elected leader and has not taken the role yet."
        return Hold(LEADER_UNREACHABLE, True, text, (), (leader_id,))
    reason = "it does not respond" if led is None or led.failure is None else led.failure
    text = f"Broker {leader_id}, the leader, does not describe the partition."
    return Hold(LEADER_UNREACHABLE, True, text, (f"Broker {leader_id}: {reason}.",), (leader_id,))


def _not_held(state: ReplicaState, leader: LeaderState) -> Hold:
    if len(leader.isr) < leader.needed_in_sync:
        text = (
            f"Every record is committed, but only {len(leader.isr)} of {leader.needed_in_sync} needed "
            "replicas are in sync: the next record will not be, and acks=all is rejected."
        )
        return Hold(NOT_HELD, False, text)
    if state.log_end_offset == state.log_start_offset:
        return Hold(NOT_HELD, False, "Not held: the log is empty.")
    return Hold(NOT_HELD, False, "Not held: every record is on all in-sync replicas.")


def _under_min_isr(rows: Sequence[ReplicaRow], state: ReplicaState, leader: LeaderState) -> Hold:
    missing = tuple(row.broker_id for row in rows if row.broker_id not in leader.isr)
    text = (
        f"Held at {state.high_watermark}: {len(leader.isr)} of {leader.needed_in_sync} replicas that "
        "min.insync.replicas needs are in sync."
    )
    details = [_lack(row, state) for row in rows if row.broker_id in missing]
    details.append(
        f"{_records(_uncommitted(state))} above it can be read once enough replicas are in sync again."
    )
    return Hold(UNDER_MIN_ISR, True, text, tuple(details), missing)


def _waiting(rows: Sequence[ReplicaRow], state: ReplicaState, leader: LeaderState) -> Hold:
    waited = leader.hold.replicas
    names = _names(waited)
    text = f"Held at {state.high_watermark}: {names} {_verb(waited)} the record with this offset."
    details = [_lack(row, state) for row in rows if row.broker_id in waited]
    joining = [one for one in waited if one not in leader.isr]
    if joining:
        details.append(
            f"{_names(joining)} {'is' if len(joining) == 1 else 'are'} not in the ISR yet, but may be next: "
            "such a replica counts from the moment it has caught up or its addition is requested."
        )
    in_isr = [one for one in waited if one in leader.isr]
    if in_isr:
        details.append(
            f"{_names(in_isr)} must catch up, or leave{'s' if len(in_isr) == 1 else ''} the ISR "
            "after replica.lag.time.max.ms."
        )
    return Hold(WAITING_FOR_REPLICAS, True, text, tuple(details), waited)


def _flush(state: ReplicaState) -> Hold:
    text = (
        f"Held at {state.high_watermark}: the topic counts flushed records only (flush.messages=1), and the "
        f"leader has flushed up to {state.flushed_offset}."
    )
    return Hold(WAITING_FOR_FLUSH, True, text)


def _lack(row: ReplicaRow, leader: ReplicaState) -> str:
    """Return what a replica lacks, as its leader knows it, and why if its broker does not respond."""
    seen = row.seen_by_leader
    if row.state is None:
        remote = -1 if seen is None else seen.log_end_offset
        end = "" if remote < 0 else f"; the leader knows its log end offset as {remote}"
        return f"Broker {row.broker_id} does not describe it ({row.failure}){end}."
    if seen is None or seen.log_end_offset < 0:
        return f"Broker {row.broker_id} has not fetched from this leader yet."
    lack = leader.log_end_offset - seen.log_end_offset
    if lack <= 0:
        return f"Broker {row.broker_id} has every record and is about to join the ISR."
    since = "" if seen.caught_up_age_ms is None else f", last caught up {duration(seen.caught_up_age_ms)} ago"
    return f"Broker {row.broker_id} lacks {_records(lack).lower()}, from offset {seen.log_end_offset}{since}."


def _uncommitted(state: ReplicaState) -> int:
    return state.log_end_offset - state.high_watermark


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def _names(brokers: Sequence[int]) -> str:
    if len(brokers) == 1:
        return f"Broker {brokers[0]}"
    return f"Brokers {', '.join(map(str, brokers[:-1]))} and {brokers[-1]}"


def _verb(brokers: Sequence[int]) -> str:
    return "lacks" if len(brokers) == 1 else "lack"


def duration(ms: int) -> str:
    """Return a duration as text, such as ``320 ms``, ``4.2 s`` or ``3 min``."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms // 60_000:,} min"
