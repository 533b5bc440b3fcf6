"""``nilometer status``: the health of a cluster, once or repeatedly; as text, or as a JSON document."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from msgspec.structs import asdict
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nilometer.cli import commands
from nilometer.cli.cluster import quorum_document
from nilometer.cli.cluster_options import (
    COMMAND_CONFIG,
    DEFAULT_DATA_DIR,
    client_config,
    command_config_option,
    data_dir_option,
    elsewhere_option,
    in_full,
    json_option,
    print_json,
    run_async,
    stop_on_signals,
)
from nilometer.cli.commands import watch_options
from nilometer.cli.console import OutputConsole
from nilometer.client.admin.cluster_health import (
    RUNNING,
    BrokerHealth,
    ClusterHealth,
    Findings,
    Grade,
    PartitionHealth,
    Tier,
    cluster_health,
    ids,
    named,
    problems,
)
from nilometer.client.admin.health_check import HealthCheck
from nilometer.client.admin.quorum_admin import quorum_member
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.local.local_cluster import LocalCluster
from nilometer.runtime import Runtime
from nilometer.wire.own_apis import TierState

# The fields of the document are described in ``docs/operations.md``: fields may be added, none changes.

_STYLES = {
    Grade.HEALTHY: "bold green",
    Grade.DEGRADED: "bold yellow",
    Grade.UNAVAILABLE: "bold red",
    Grade.UNKNOWN: "bold yellow",
}

LONG_TURN_US = 10_000
"""No request and no task holds the event loop of a broker for longer, or it is shown."""


def picture(found: ClusterHealth) -> RenderableType:
    table = Table("id", "pid", "host", "port", "state")
    for one in found.brokers:
        table.add_row(str(one.id), str(one.pid or ""), one.host, str(one.port), one.state)
    own = (_quorum, _moves, _compactions, _tiers, _strays, _turns)
    lines = [*problems(found), *(line for lines_of in own for line in lines_of(found))]
    return Group(_head(found), table, *(Text(line) for line in lines))


def document(found: ClusterHealth) -> dict[str, Any]:
    return {
        "health": found.grade.value,
        "problems": problems(found),
        "cluster_id": found.cluster_id,
        "controller": (
            None
            if found.controller_id < 0
            else {"id": found.controller_id, "epoch": _known(found.controller_epoch)}
        ),
        "metadata_number": found.metadata_number,
        "brokers": [_broker_document(one) for one in found.brokers],
        "partitions": {
            "count": len(found.partitions),
            "offline": _partition_documents(found.offline),
            "under_min_isr": _partition_documents(found.under_min_isr),
            "under_replicated": _partition_documents(found.under_replicated),
        },
        "failed_log_directories": [
            {"broker_id": one.broker_id, "path": one.path, "reason": one.reason}
            for one in found.failed_directories
        ],
        "stopped_replicas": [
            {**_place(one.partition), "broker_id": one.broker_id, "reason": one.reason}
            for one in found.stopped
        ],
        "reassignments": [
            {
                **_place(partition),
                "replicas": list(move.replicas),
                "adding": list(move.adding),
                "removing": list(move.removing),
            }
            for partition, move in sorted(found.moves.items())
        ],
        "hanging_transactions": [
            {
                **_place(one.partition),
                "producer_id": one.producer.producer_id,
                "producer_epoch": one.producer.producer_epoch,
                "start_offset": one.producer.start_offset,
                "last_timestamp_ms": one.producer.last_timestamp_ms,
            }
            for one in found.hanging
        ],
        "compactions": [
            {**_place(one.partition), "broker_id": one.broker_id, **asdict(one.state)}
            for one in found.compactions
        ],
        "tiers": [
            {**_place(one.partition), "broker_id": one.broker_id, **tier_document(one.state)}
            for one in found.tiers
        ],
        "stray_logs": [{"broker_id": one.broker_id, "folders": list(one.folders)} for one in found.strays],
        "longest_turns": [
            {"broker_id": one.broker_id, "cpu_us": one.cpu_us, "work": one.work}
            for one in found.longest_turns
        ],
        "quorum": quorum_document(found.quorum),
        "unknown": list(found.unknown),
        "refused": found.refused,
    }


# --- text


def _head(found: ClusterHealth) -> Text:
    text = Text(f"Cluster {found.cluster_id or '(id not known)'} is ")
    grade = "in an unknown state" if found.grade is Grade.UNKNOWN else found.grade.value
    text.append(grade, _STYLES[found.grade])
    if found.controller_id >= 0:
        text.append(f"; controller {found.controller_id}")
    if found.controller_epoch >= 0:
        text.append(f" in epoch {found.controller_epoch}")
    if found.metadata_number >= 0:
        text.append(f", metadata entry {found.metadata_number}, {len(found.partitions)} partitions")
    return text


def _quorum(found: ClusterHealth) -> list[str]:
    quorum = found.quorum
    if quorum is None or isinstance(quorum, str):
        return []
    voters = ", ".join(map(quorum_member, quorum.voters))
    observers = f"; observers {', '.join(map(quorum_member, quorum.observers))}" if quorum.observers else ""
    return [
        f"Metadata quorum: node {quorum.leader_id} leads in epoch {quorum.epoch}; voters {voters}{observers}"
    ]


def _moves(found: ClusterHealth) -> list[str]:
    if not found.moves:
        return []
    moves = sorted(found.moves.items())
    places = named(moves, lambda one: f"{one[0]} (adding {ids(one[1].adding) or 'none'})")
    return [f"{len(moves)} partitions are being reassigned: {places}"]


def _compactions(found: ClusterHealth) -> list[str]:
    current = [one for one in found.compactions if one.state.in_progress]
    if not current:
        return []
    places = named(
        current, lambda one: f"{one.partition} on broker {one.broker_id} ({one.state.progress:.0%})"
    )
    return [f"{len(current)} logs are being compacted: {places}"]


def _tiers(found: ClusterHealth) -> list[str]:
    known = [one for one in found.tiers if one.state.end_offset >= 0]
    lines = list[str]()
    if unknown := [one for one in found.tiers if one.state.end_offset < 0]:
        places = named(unknown, lambda one: str(one.partition))
        lines.append(f"What remote storage has of {len(unknown)} partitions is not known yet: {places}")
    if not known:
        return lines
    size = sum(one.state.size_bytes for one in known)
    missing = [one for one in known if one.state.missing_records]
    records = sum(one.state.missing_records for one in missing)
    text = f"Remote storage has {size:,} bytes of {len(known)} partitions; not there yet: {records:,} records"
    if missing:
        missing.sort(key=lambda one: (one.state.missing_ms, one.state.missing_records), reverse=True)
        text += f" of {len(missing)} partitions, {named(missing, _missing)}"
    return [*lines, text]


def _missing(one: Tier) -> str:
    state = one.state
    age = "all of it" if state.missing_ms < 0 else f"the last {state.missing_ms / 1000:,.0f} s"
    return f"{one.partition} ({state.missing_records:,} records, {state.missing_bytes:,} bytes, {age})"


def _strays(found: ClusterHealth) -> list[str]:
    return [
        f"Broker {one.broker_id} keeps {len(one.folders)} stray logs, which are no replicas: "
        f"{named(one.folders, str)} (`nilometer log strays` shows their sizes)"
        for one in found.strays
    ]


def _turns(found: ClusterHealth) -> list[str]:
    return [
        f"The longest turn of the event loop of broker {one.broker_id} took {one.cpu_us / 1000:.0f} ms of "
        f"processor time: {one.work}"
        for one in found.longest_turns
        if one.cpu_us > LONG_TURN_US
    ]


# --- JSON


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _broker_document(one: BrokerHealth) -> dict[str, Any]:
    reason = {} if one.reason is None else {"reason": one.reason}
    return {"id": one.id, "pid": one.pid, "host": one.host, "port": one.port, "state": one.state, **reason}


def tier_document(state: TierState) -> dict[str, Any]:
    """Return what remote storage has of a partition; None for what is not known."""
    known = state.end_offset >= 0
    return {
        "end_offset": _known(state.end_offset),
        "size_bytes": state.size_bytes if known else None,
        "newest_timestamp_ms": _known(state.newest_ms),
        "lag_segments": state.lag_segments if known else None,
        "lag_bytes": state.lag_bytes if known else None,
        "oldest_segment": _known(state.oldest_segment),
        "missing_records": state.missing_records if known else None,
        "missing_bytes": state.missing_bytes if known else None,
        "missing_ms": _known(state.missing_ms),
        "error": state.error or None,
        "failing_ms": state.failing_ms if state.error else None,
    }


def _place(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _partition_documents(found: Sequence[PartitionHealth]) -> list[dict[str, Any]]:
    return [
        {
            **_place(one.partition),
            "leader": one.leader,
            "leader_responds": one.leader_responds,
            "replicas": list(one.replicas),
            "isr": list(one.isr),
            "needed_in_sync": one.needed_in_sync,
        }
        for one in found
    ]


# Exit codes: 0 healthy; 1 degraded, or there is no cluster; 3 unavailable; 4 the brokers refuse to say.
# (2 is wrong usage.)

EXIT_CODES = {Grade.HEALTHY: 0, Grade.DEGRADED: 1, Grade.UNAVAILABLE: 3, Grade.UNKNOWN: 4}
NO_CLUSTER = 1


@commands.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="The folder of `nilometer up`: shows its processes too.",
)
@elsewhere_option
@command_config_option
@json_option
@watch_options(
    interval_s=2.0,
    timeout_help="Seconds that each broker gets to respond. A check takes at most about five times as long.",
)
def status(
    data_dir: Path,
    bootstrap: str,
    as_json: bool,
    watch: bool,
    interval: float,
    times: int | None,
    timeout: float,
) -> None:
    """Show a cluster's health: its brokers and why one is not there, the controller, and its problems.

    Problems are partitions that are under-replicated, under min.insync.replicas or offline, failed log
    directories, replicas that stopped, hanging transactions. Reassignments are listed too.

    By default the cluster is that of --data-dir; with --bootstrap-server any other one. The brokers of
    --data-dir are connected to as `nilometer up` made them, unless --command-config is given on the command
    line.

    The exit code is 0 if the cluster is healthy; 1 if it is degraded (everything is served, but there is a
    problem) or the folder has no brokers; 3 if it is unavailable (a partition cannot be read or written, or
    no broker responds); 4 if the brokers run and refuse to say it: to this user, or to a client without one.
    With --watch it is that of the last check.
    """
    cluster = _local_cluster(data_dir)
    if cluster is not None and not cluster.broker_ids():
        _say_no_cluster(data_dir, as_json)
    connection = client_config(bootstrap) if _has_connection(cluster) else _own_connection(cluster)
    checks = _Checks(cluster, bootstrap.split(","), timeout, connection)
    if watch:
        grade = run_async(_watch(checks, interval, times, as_json))
    else:
        found = run_async(checks.once())
        if as_json:
            print_json(document(found))
        else:
            OutputConsole().print(picture(found))
        grade = found.grade
        if found.refused is not None:
            click.echo(f"Error: the brokers refuse this client: {found.refused}", err=True)
    raise click.exceptions.Exit(EXIT_CODES[grade])


def _local_cluster(data_dir: Path) -> LocalCluster | None:
    """Return the cluster of the data folder; None if bootstrap servers are given instead.

    Servers of the environment variable count only where there is no data folder. Raises UsageError.
    """
    given = click.get_current_context().get_parameter_source
    if given("bootstrap") is ParameterSource.COMMANDLINE:
        if given("data_dir") is ParameterSource.COMMANDLINE:
            raise click.UsageError("give either --data-dir or --bootstrap-server")
        return None
    cluster = LocalCluster(data_dir)
    is_elsewhere = given("bootstrap") is ParameterSource.ENVIRONMENT and not cluster.broker_ids()
    return None if is_elsewhere and given("data_dir") is ParameterSource.DEFAULT else cluster


def _own_connection(cluster: LocalCluster | None) -> dict[str, str]:
    """Return the settings that clients of the data folder's brokers need."""
    return cluster.security.admin_settings() if cluster is not None and cluster.security.exists else {}


def _has_connection(cluster: LocalCluster | None) -> bool:
    """Whether --command-config counts; for a data folder the environment variable does not."""
    source = click.get_current_context().get_parameter_source(COMMAND_CONFIG)
    return cluster is None or source is ParameterSource.COMMANDLINE


def _say_no_cluster(data_dir: Path, as_json: bool) -> NoReturn:
    """Print that the folder has no brokers, and exit."""
    if as_json:
        print_json({"brokers": []})
    else:
        click.echo(
            f"No cluster in {in_full(data_dir)}; look where it was started, or start one with: "
            f"nilometer up{data_dir_option(data_dir)}",
            err=True,
        )
    raise click.exceptions.Exit(NO_CLUSTER)


class _Checks:
    """Checks one cluster: that of a data folder, whose processes are looked at first, or any other one."""

    def __init__(
        self,
        cluster: LocalCluster | None,
        bootstrap: Sequence[str],
        timeout_s: float,
        connection: Mapping[str, str],
    ) -> None:
        """``connection``: the settings of clients."""
        self._cluster = cluster
        self._bootstrap = tuple(bootstrap)
        self._timeout_ms = round(timeout_s * 1000)
        self._connection = connection
        self._check: HealthCheck | None = None

    async def once(self) -> ClusterHealth:
        try:
            return await self.again()
        finally:
            self.close()

    async def again(self) -> ClusterHealth:
        local = self._local()
        if self._cluster is not None:
            servers = tuple(_server(one) for one in local if one.state == RUNNING)
            if servers != self._bootstrap:
                self.close()
                self._bootstrap = servers
        if not self._bootstrap:
            return cluster_health(Findings(survey=None), local)
        if self._check is None:
            self._check = HealthCheck(
                Runtime.system(), self._bootstrap, self._timeout_ms, connection=self._connection
            )
        return cluster_health(await self._check.check(), local)

    def close(self) -> None:
        if self._check is not None:
            self._check.close()
            self._check = None

    def _local(self) -> tuple[BrokerHealth, ...]:
        return tuple(
            BrokerHealth(
                id=one.id, host=one.host, port=one.port, state=one.state, reason=one.reason, pid=one.pid
            )
            for one in (self._cluster.brokers() if self._cluster is not None else ())
        )


def _server(broker: BrokerHealth) -> str:
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host or '127.0.0.1'}:{broker.port}"


async def _watch(checks: _Checks, interval_s: float, times: int | None, as_json: bool) -> Grade:
    """Check until a signal or ``times`` checks; return the last grade."""
    stop = asyncio.Event()
    stop_on_signals(stop.set)
    console = OutputConsole()
    live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
    drawn_in_place = console.is_terminal and not as_json
    grade, left = Grade.HEALTHY, times
    if drawn_in_place:
        live.start()
    try:
        while not stop.is_set():
            found = await checks.again()
            grade = found.grade
            if as_json:
                click.echo(json.dumps(document(found)))
                sys.stdout.flush()
            elif drawn_in_place:
                live.update(picture(found), refresh=True)
            else:
                console.print(picture(found))
            left = None if left is None else left - 1
            if left == 0:
                break
            await _pause(stop, interval_s)
    finally:
        checks.close()
        if drawn_in_place:
            live.stop()
    return grade


async def _pause(stop: asyncio.Event, interval_s: float) -> None:
    try:
        async with asyncio.timeout(interval_s):
            await stop.wait()
    except TimeoutError:
        return
