"""``nilometer replicas``: shows the state of every replica, as its own broker reports it; once or repeatedly.

As a table for people, and as a JSON document for programs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click
import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nilometer.cli import commands
from nilometer.cli.cluster_clients import survey_of
from nilometer.cli.cluster_options import (
    connection_options,
    json_option,
    partitions_option,
    print_json,
    run_async,
    stop_on_signals,
)
from nilometer.cli.commands import BROKER_ID, watch_options
from nilometer.cli.console import OutputConsole
from nilometer.client.admin.replica_survey import BrokerAnswer, ReplicaRow, ReplicaSurvey, Survey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import LEADER, NOT_HELD, OFFLINE, LeaderState, ReplicaState

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


# Exit codes: 0 if every replica was reported by its broker, 1 if one was not (its row says why).


@commands.command()
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@partitions_option
@click.option(
    "--broker",
    "broker_ids",
    type=BROKER_ID,
    multiple=True,
    help="Only replicas on this broker; repeatable.",
)
@json_option
@watch_options(
    interval_s=1.0,
    timeout_help="Seconds after which a broker that does not respond is shown as unreachable.",
)
@connection_options
def replicas(
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    broker_ids: tuple[int, ...],
    as_json: bool,
    watch: bool,
    interval: float,
    times: int | None,
    timeout: float,
    bootstrap: str,
) -> None:
    """Show every replica: log start and end offset, high watermark, what that waits for.

    Each broker describes its own replicas; the responses are not from exactly the same moment. AGE is for how
    long a follower has lacked records of the leader. REMOTE LEO is each follower's log end offset as the
    leader knows it. EPOCHS lists the leader epochs with their start offsets.
    """
    survey = survey_of(bootstrap, round(timeout * 1000))
    looks = _SurveyLoop(survey, topics or None, partitions or None, broker_ids, interval)
    if watch:
        run_async(_watch(looks, times, as_json))
        return
    found = run_async(looks.once())
    if as_json:
        print_json(document(found))
    else:
        OutputConsole().print(picture(found))
    if not found.is_complete:
        raise click.exceptions.Exit(1)


class _SurveyLoop:
    """Makes surveys of the chosen replicas, once or repeatedly."""

    def __init__(
        self,
        survey: ReplicaSurvey,
        topics: Sequence[str] | None,
        partitions: Sequence[int] | None,
        broker_ids: Sequence[int],
        interval_s: float,
    ) -> None:
        self._survey = survey
        self._topics = topics
        self._partitions = partitions
        self._broker_ids = broker_ids
        self._interval_s = interval_s

    async def once(self) -> Survey:
        """Return one survey. Raises KafkaError if no broker responds, or a chosen topic does not exist."""
        async with self._survey:
            found = await self._look()
        if found.missing_topics:
            names = ", ".join(found.missing_topics)
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"no topic {names}")
        if absent := set(self._partitions or ()).difference(one.partition for one in found.rows):
            raise click.ClickException(f"there is no partition {', '.join(map(str, sorted(absent)))}")
        if absent := set(self._broker_ids).difference(one.broker_id for one in found.brokers):
            raise click.ClickException(f"no such broker: {', '.join(map(str, sorted(absent)))}")
        return found

    async def again(self, stop: asyncio.Event) -> AsyncIterator[Survey | KafkaError]:
        """Yield surveys until ``stop`` is set; yield the error while no broker responds."""
        async with self._survey:
            while not stop.is_set():
                try:
                    yield await self._look()
                except KafkaError as error:
                    yield error
                try:
                    async with asyncio.timeout(self._interval_s):
                        await stop.wait()
                except TimeoutError:
                    continue

    async def _look(self) -> Survey:
        found = await self._survey.look(self._topics, self._partitions)
        return found.of_brokers(self._broker_ids) if self._broker_ids else found


async def _watch(looks: _SurveyLoop, times: int | None, as_json: bool) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop.set)
    left = times
    with _Screen(as_json) as screen:
        async for found in looks.again(stop):
            screen.show(found)
            if left is not None:
                left -= 1
                if left == 0:
                    stop.set()


class _Screen:
    """Prints surveys: redrawn in place on a terminal, else one below the other; as JSON, one per line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = OutputConsole()
        self._live = (
            Live(console=self._console, auto_refresh=False, vertical_overflow="visible")
            if self._console.is_terminal and not as_json
            else None
        )

    def __enter__(self) -> _Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Survey | KafkaError) -> None:
        if self._as_json:
            click.echo(_json_line(found))
            sys.stdout.flush()
            return
        drawn = f"No broker responds: {found.message}" if isinstance(found, KafkaError) else picture(found)
        if self._live is not None:
            self._live.update(drawn, refresh=True)
        else:
            self._console.print(drawn)


def _json_line(found: Survey | KafkaError) -> str:
    return json.dumps({"error": str(found)} if isinstance(found, KafkaError) else document(found))
