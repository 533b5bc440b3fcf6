"""Formats a survey of replicas: as a table for people, and as a JSON document for programs. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nilometer.client.replicas.replica_survey import BrokerAnswer, ReplicaRow, Survey
from nilometer.wire.describe_replicas import LEADER, NOT_HELD, OFFLINE, LeaderState, ReplicaState

EPOCHS_SHOWN = 3

_COLUMNS = (
    ("topic", "left"),
    ("part", "right"),
    ("broker", "right"),
    ("role", "left"),
    ("epoch", "right"),
    ("start", "right"),
    ("LEO", "right"),
    ("HW", "right"),
    ("in sync", "left"),
    ("age", "right"),
    ("remote LEO", "left"),
    ("epochs", "left"),
    ("high watermark", "left"),
)


def picture(found: Survey) -> RenderableType:
    table = Table(header_style="bold", pad_edge=False, expand=False)
    for name, justify in _COLUMNS:
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    refusing = {one.broker_id for one in found.brokers if one.refuses}
    previous: tuple[str, int] | None = None
    for row in found.rows:
        if previous not in (None, (row.topic, row.partition)):
            table.add_section()
        previous = (row.topic, row.partition)
        table.add_row(*_cells(row, is_refused=row.broker_id in refusing), style=_style(row))
    return Group(table, *(_broker_line(broker, found.controller_id) for broker in found.brokers))


def document(found: Survey) -> dict[str, Any]:
    return {
        "cluster_id": found.cluster_id,
        "controller_id": found.controller_id,
        "complete": found.is_complete,
        "missing_topics": list(found.missing_topics),
        "brokers": [_broker_document(broker) for broker in found.brokers],
        "replicas": [_replica_document(row) for row in found.rows],
    }


# --- the table


def _cells(row: ReplicaRow, *, is_refused: bool) -> tuple[str | Text, ...]:
    place = (row.topic, str(row.partition), str(row.broker_id))
    state = row.state
    if state is None:
        remote = row.seen_by_leader
        end = "" if remote is None or remote.log_end_offset < 0 else f"({remote.log_end_offset})"
        what = "not described" if is_refused else "unreachable"
        return (*place, what, "", "", end, "", _in_sync(row), _age(row), "", "", row.failure or "")
    leader = state.leader
    return (
        *place,
        state.role,
        str(state.leader_epoch),
        _offset(state.log_start_offset),
        _offset(state.log_end_offset),
        _offset(state.high_watermark),
        _in_sync(row) + _pending(leader),
        _age(row),
        "" if leader is None else _remote_ends(leader),
        _epochs(state),
        _remark(state),
    )


def _style(row: ReplicaRow) -> str:
    if row.state is None or row.state.role == OFFLINE:
        return "red"
    if row.in_sync is False:
        return "yellow"
    return "green" if row.state.role == LEADER else ""


def _offset(offset: int) -> str:
    return "" if offset < 0 else str(offset)


def _in_sync(row: ReplicaRow) -> str:
    return {True: "yes", False: "no", None: ""}[row.in_sync]


def _pending(leader: LeaderState | None) -> str:
    if leader is None or leader.pending_isr is None:
        return ""
    return f" (ISR change pending: {','.join(map(str, leader.pending_isr))})"


def _age(row: ReplicaRow) -> str:
    remote = row.seen_by_leader
    if remote is None:
        return ""
    if remote.caught_up_age_ms is None:
        return "never"
    age = remote.caught_up_age_ms
    return f"{age} ms" if age < 1000 else f"{age / 1000:.1f} s"


def _remote_ends(leader: LeaderState) -> str:
    return " ".join(
        f"{one.broker_id}:{one.log_end_offset if one.log_end_offset >= 0 else '?'}"
        for one in leader.followers
    )


def _epochs(state: ReplicaState) -> str:
    shown = " ".join(f"{epoch}:{offset}" for epoch, offset in state.epoch_chain[-EPOCHS_SHOWN:])
    return f"… {shown}" if len(state.epoch_chain) > EPOCHS_SHOWN else shown


def _remark(state: ReplicaState) -> str:
    if state.problems:
        return "; ".join(state.problems)
    if state.role == OFFLINE:
        return "its log cannot be used; see the broker's output"
    leader = state.leader
    if leader is None:
        return ""
    if leader.hold.reason != NOT_HELD:
        return f"held: {leader.hold.text}"
    if len(leader.isr) < leader.needed_in_sync:  # acks=all is rejected, though all records are committed
        return f"under min ISR ({len(leader.isr)} of {leader.needed_in_sync})"
    return ""


def _broker_line(broker: BrokerAnswer, controller_id: int) -> Text:
    place = "" if broker.node is None else f" at {broker.node.host}:{broker.node.port}"
    if broker.answer is None:
        what = "running" if broker.refuses else "unreachable"
        return Text(f"broker {broker.broker_id}{place}: {what}, {broker.failure}", style="red")
    state = broker.answer.broker
    role = ", controller" if state.broker_id == controller_id else ""
    return Text(
        f"broker {state.broker_id}{place}{role}: broker epoch {state.broker_epoch}, metadata entry "
        f"{state.metadata_number}, controller {state.controller_id} in epoch {state.controller_epoch}, "
        f"{state.unclean_elections} unclean election{'' if state.unclean_elections == 1 else 's'}",
        style="dim",
    )


# --- the document


def _broker_document(broker: BrokerAnswer) -> dict[str, Any]:
    node = broker.node
    place = {"host": node.host, "port": node.port, "rack": node.rack} if node is not None else {}
    facts: dict[str, Any] = {} if broker.answer is None else msgspec.to_builtins(broker.answer.broker)
    return {
        "broker_id": broker.broker_id,
        **place,
        "reachable": broker.answer is not None or broker.refuses,
        "failure": broker.failure,
        **facts,
    }


def _replica_document(row: ReplicaRow) -> dict[str, Any]:
    state, remote = row.state, row.seen_by_leader
    known: dict[str, Any] = {} if state is None else msgspec.to_builtins(state)
    known.pop("segments", None)  # they are not requested
    leader = known.pop("leader", None)
    return {
        **known,
        "topic": row.topic,
        "partition": row.partition,
        "broker_id": row.broker_id,
        "reachable": state is not None,
        "failure": row.failure,
        "in_sync": row.in_sync,
        "caught_up_age_ms": None if remote is None else remote.caught_up_age_ms,
        "remote_log_end_offset": None if remote is None else remote.log_end_offset,
        "as_leader": leader,
    }
