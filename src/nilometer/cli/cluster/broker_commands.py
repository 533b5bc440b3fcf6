"""``nilometer broker | up | down``: broker processes on this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from nilometer.broker.settings.metrics_listener import LOOPBACK, METRICS_LISTENER
from nilometer.cli.signals import exit_on_sigterm
from nilometer.local.broker_process import BrokerProcess
from nilometer.local.local_cluster import LocalCluster
from nilometer.local.readiness import LaunchFailed
from nilometer.local.replication import replication_settings

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATA_DIR = ".nilometer/data"
_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="The folder that holds the cluster.",
)
_override = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker setting KEY=VALUE, with Kafka's key; repeatable.",
)


def _parse_overrides(overrides: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in overrides:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--override takes KEY=VALUE, not {item!r}")
        values[key.strip()] = value.strip()
    return values


def _log_options(command: F) -> F:
    """Add --log-level and --log-format, which are settings of the broker."""
    command = click.option(
        "--log-format",
        type=click.Choice(("text", "json")),
        help="The format of the broker's log: text or json.",
    )(command)
    return click.option(
        "--log-level",
        "log_levels",
        multiple=True,
        metavar="[LOGGER=]LEVEL",
        help="The level of the broker's log, or of one logger: DEBUG, INFO, WARN, ERROR; repeatable.",
    )(command)


def _with_log_options(
    settings: dict[str, str], log_levels: tuple[str, ...], log_format: str | None
) -> dict[str, str]:
    levels = {"nilometer.log.level": ",".join(log_levels)} if log_levels else {}
    formats = {"nilometer.log.format": log_format} if log_format else {}
    return {**settings, **levels, **formats}


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A server.properties file.")
@_override
@_log_options
def broker(
    config: Path | None, overrides: tuple[str, ...], log_levels: tuple[str, ...], log_format: str | None
) -> None:
    """Run one broker in the foreground, until Ctrl-C or SIGTERM."""
    from nilometer.broker.process import run_broker

    settings = _with_log_options(_parse_overrides(overrides), log_levels, log_format)
    sys.exit(run_broker(config, settings, ready_fd=None))


@click.command()
@click.option(
    "--brokers", type=click.IntRange(1, 64), default=1, show_default=True, help="The number of brokers."
)
@_data_dir
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="The first broker's port."
)
@click.option(
    "--coordination",
    metavar="local|zookeeper://HOST:PORT,…",
    default="local",
    show_default=True,
    help="The coordination store: a folder next to the brokers' data, or ZooKeeper.",
)
@click.option("--detach", is_flag=True, help="Return when the cluster is ready. The brokers keep running.")
@_override
@_log_options
def up(
    brokers: int,
    data_dir: Path,
    host: str,
    port: int,
    coordination: str,
    detach: bool,
    overrides: tuple[str, ...],
    log_levels: tuple[str, ...],
    log_format: str | None,
) -> None:
    """Start a cluster on this machine. Brokers that already run are left alone."""
    settings = _with_log_options(_parse_overrides(overrides), log_levels, log_format)
    _refuse_ids(settings)
    cluster = LocalCluster(data_dir)
    for number in range(max(brokers, len(cluster.broker_ids()))):
        cluster.configure(number + 1, host, port + number, _cluster_properties(brokers, coordination))
    down_ids = [one.id for one in cluster.brokers() if one.state == "down"]
    listeners = (
        {one: f"PLAINTEXT://{host}:{port + one - 1}" for one in down_ids} if _is_given("port") else None
    )
    exit_on_sigterm()
    try:
        started = cluster.start(down_ids, settings, listeners)
    except LaunchFailed as error:
        raise click.ClickException(str(error)) from None
    _show_metrics(cluster.brokers())
    ready = "bootstrap.servers=" + ",".join(f"{one.host}:{one.port}" for one in cluster.brokers())
    if detach:
        click.echo(ready)
    else:
        _stay(cluster, started, ready)


def _refuse_ids(settings: dict[str, str]) -> None:
    """Raise UsageError for an override of the broker id: the ids are those of the brokers' folders."""
    for key in ("node.id", "broker.id"):
        if key in settings:
            raise click.UsageError(
                f"--override {key} cannot be given: the cluster assigns the ids of its brokers"
            )


def _is_given(parameter: str) -> bool:
    """Whether the user gave the option; without it, existing brokers keep their ports."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def _cluster_properties(brokers: int, coordination: str) -> dict[str, str]:
    agreed = {} if coordination == "local" else {"nilometer.coordination": coordination}
    return {**agreed, **replication_settings(brokers), METRICS_LISTENER: f"{LOOPBACK}:0"}


def _show_metrics(brokers: list[BrokerProcess]) -> None:
    """Print where the brokers serve their metrics: not on standard output, which programs read."""
    for one in brokers:
        if one.metrics is not None:
            click.echo(f"Metrics of broker {one.id}: {one.metrics}", err=True)


def _stay(cluster: LocalCluster, started: list[BrokerProcess], ready: str) -> None:
    """Print ``ready``, wait for Ctrl-C or SIGTERM, then stop the brokers that this command started."""
    both = {signal.SIGINT, signal.SIGTERM}
    try:
        click.echo(ready)
        click.echo("Press Ctrl-C to stop.", err=True)
        # Block the signals and wait for them: with signal.pause() one could be missed just before it.
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        signal.sigwait(both)
    except (KeyboardInterrupt, SystemExit):
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
    click.echo("Stopping ...", err=True)
    _stop(cluster, started)


def _stop(cluster: LocalCluster, brokers: list[BrokerProcess]) -> None:
    def report(one: BrokerProcess) -> None:
        click.echo(
            f"Broker {one.id} (process {one.pid}) has not stopped; see {cluster.broker_dir(one.id)}",
            err=True,
        )

    if not cluster.stop(brokers, report):
        sys.exit(1)


@click.command()
@_data_dir
def down(data_dir: Path) -> None:
    """Stop the brokers of a data folder."""
    cluster = LocalCluster(data_dir)
    running = [one for one in cluster.brokers() if one.state != "down"]
    _stop(cluster, running)
    click.echo(f"Stopped {len(running)} broker{'' if len(running) == 1 else 's'}.")
