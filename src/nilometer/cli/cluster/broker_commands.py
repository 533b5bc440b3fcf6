"""``nilometer broker | up | down``: broker processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from nilometer.broker.settings.metrics_listener import METRICS_LISTENER
from nilometer.cli import commands
from nilometer.cli.cluster.broker_admin_commands import broker_config, list_brokers
from nilometer.cli.cluster.console_command import console_port_type, serve_console
from nilometer.cli.cluster.up_options import (
    RACK,
    UpOptions,
    endpoint,
    ids,
    metrics_listener,
    settings_of_start,
    settings_of_topics,
    why_refused,
)
from nilometer.cli.cluster_options import json_option, parse_pairs, print_json
from nilometer.cli.signals import exit_on_sigterm
from nilometer.local.broker_process import BrokerProcess
from nilometer.local.local_cluster import LocalCluster
from nilometer.local.moved_folder import SETTINGS, CannotSettle
from nilometer.local.readiness import LaunchFailed
from nilometer.local.secure_cluster import PROTOCOL

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATA_DIR = ".nilometer/data"
_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="The folder that holds the cluster.",
)
_CONSOLE_HELP = "Serve the web console on this port of 127.0.0.1, too; 0 lets the system choose."
_override = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker setting KEY=VALUE, with Kafka's key; repeatable.",
)


def _number(name: str, least: int, most: int, text: str, *, default: int) -> Callable[[F], F]:
    """Return an option whose value is an integer from ``least`` to ``most``."""
    kind = click.IntRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def _parse_overrides(overrides: tuple[str, ...]) -> dict[str, str]:
    return {key: value.strip() for key, value in parse_pairs(overrides, "--override").items()}


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
    loggers = [text.rpartition("=")[0] for text in log_levels]
    if repeated := [name for name in loggers if loggers.count(name) > 1]:
        whose = f"of {repeated[0]}" if repeated[0] else "for all loggers"
        raise click.UsageError(f"--log-level is given twice {whose}")
    levels = {"nilometer.log.level": ",".join(log_levels)} if log_levels else {}
    formats = {"nilometer.log.format": log_format} if log_format else {}
    return {**settings, **levels, **formats}


@commands.group(invoke_without_command=True)
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A server.properties file.")
@_override
@_log_options
@click.pass_context
def broker(
    context: click.Context,
    config: Path | None,
    overrides: tuple[str, ...],
    log_levels: tuple[str, ...],
    log_format: str | None,
) -> None:
    """Run one broker in the foreground, until Ctrl-C or SIGTERM.

    The commands `list` and `config` are about the brokers of a running cluster.
    """
    if context.invoked_subcommand is not None:
        if config is not None or overrides or log_levels or log_format:
            raise click.UsageError("--config, --override and --log-… are for running a broker")
        return
    from nilometer.broker.process import run_broker

    settings = _with_log_options(_parse_overrides(overrides), log_levels, log_format)
    if config is not None:
        _refuse_moved(config)
    sys.exit(run_broker(config, settings, ready_fd=None))


broker.add_command(list_brokers)
broker.add_command(broker_config)


@commands.command()
@_number("--brokers", 1, 64, "The number of brokers.", default=1)
@_data_dir
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@_number("--port", 1, 65535, "The first broker's port.", default=9092)
@click.option(
    "--coordination",
    metavar="local|zookeeper://HOST:PORT,…",
    default="local",
    show_default=True,
    help="The coordination store: a folder next to the brokers' data, or ZooKeeper.",
)
@_number(
    "--metrics-port",
    0,
    65535,
    "The port of the first broker's metrics on 127.0.0.1; the next have the next ports. 0: the system "
    "chooses.",
    default=0,
)
@_number(
    "--first-id",
    1,
    2**31 - 65,
    "The id of the first broker, where other machines have brokers of the same cluster.",
    default=1,
)
@click.option(
    "--rack",
    metavar="NAME",
    help="The rack of this machine's brokers, e.g. its name: replicas of a partition are spread over racks.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Create the cluster with TLS, users and ACLs, in ZooKeeper too. It stays so: later starts need no "
    "option.",
)
@click.option("--detach", is_flag=True, help="Return when the cluster is ready. The brokers keep running.")
@click.option("--console", "console_port", type=console_port_type, metavar="PORT", help=_CONSOLE_HELP)
@_override
@_log_options
@json_option
def up(
    brokers: int,
    data_dir: Path,
    host: str,
    port: int,
    coordination: str,
    metrics_port: int,
    first_id: int,
    rack: str | None,
    secure: bool,
    detach: bool,
    console_port: int | None,
    overrides: tuple[str, ...],
    log_levels: tuple[str, ...],
    log_format: str | None,
    as_json: bool,
) -> None:
    """Start a cluster on this machine. Brokers that already run are left alone.

    A folder that has brokers already keeps their number, ids, ports and coordination store: --brokers adds
    to them, --host, --port, --metrics-port and --rack change those that do not run, for this start.
    """
    if detach and console_port is not None:
        raise click.UsageError("--console serves until Ctrl-C; with --detach run `nilometer console` instead")
    settings = _with_log_options(_parse_overrides(overrides), log_levels, log_format)
    _refuse_ids(settings)
    cluster = LocalCluster(data_dir)
    try:
        former = cluster.settle()
    except CannotSettle as error:
        raise click.ClickException(str(error)) from None
    if former is not None:
        click.echo(f"The cluster was in {former} before: the paths in its files are corrected.", err=True)
    existing = cluster.brokers()
    configured = cluster.configured_coordination()
    store = cluster.coordination if coordination == "local" else coordination
    given = UpOptions(
        brokers if _is_given("brokers") else None,
        host if _is_given("host") else None,
        port if _is_given("port") else None,
        store if _is_given("coordination") else None,
        metrics_port if _is_given("metrics_port") else None,
        secure,
        first_id if _is_given("first_id") else None,
        rack,
    )
    is_secure = cluster.security.exists
    if console_port is not None and (secure or is_secure):
        raise click.UsageError(
            "--console: it shows a cluster without users, and a secure one has some. `nilometer console "
            "--command-config FILE` acts with the rights of one of them, or lets each log in (--login)"
        )
    if reason := why_refused(existing, configured, given, os.fspath(data_dir), is_secure=is_secure):
        raise click.UsageError(reason)
    if (secure or is_secure) and not existing:
        from nilometer.cli.cluster.secure_up import create_secure  # loads the controller and the store

        create_secure(cluster.security, store)
    listener = PROTOCOL.value if cluster.security.exists else "PLAINTEXT"
    numbers = ids(existing, given)
    at = {one: endpoint(one, existing, given, host, port, listener) for one in numbers}
    properties = {
        "nilometer.coordination": configured or store,
        **settings_of_topics(given, numbers[-1]),
        **({RACK: rack} if rack is not None else {}),
    }
    for broker_id, where in at.items():
        own = {METRICS_LISTENER: metrics_listener(broker_id - numbers[0], metrics_port)}
        cluster.configure(broker_id, where, {**properties, **own})
    down_ids = [one.id for one in cluster.brokers() if one.state == "down"]
    if (settings or rack) and (running := ", ".join(str(one.id) for one in existing if one.state != "down")):
        click.echo(f"Warning: settings have no effect on brokers that run: {running}", err=True)
    of_start = {one: settings_of_start(one, existing, given, host, port, listener) for one in down_ids}
    if cluster.security.exists:
        for one in down_ids:
            cluster.security.issue(one, at[one].host)
    exit_on_sigterm()
    try:
        started = cluster.start(down_ids, settings, of_start)
    except LaunchFailed as error:
        raise click.ClickException(str(error)) from None
    _show_metrics(cluster.brokers())
    ready = _ready_text(cluster, as_json)
    if detach:
        click.echo(ready)
    else:
        _stay(cluster, started, ready, console_port)


def _refuse_moved(config: Path) -> None:
    """Raise ClickException for the settings of a data folder that was moved or copied: they name the former
    place."""
    cluster = LocalCluster(config.absolute().parent.parent)
    ids = [one for one in cluster.broker_ids() if cluster.broker_dir(one) / SETTINGS == config.absolute()]
    if ids and (former := cluster.former_place()) is not None:
        raise click.ClickException(
            f"{config} has paths in {former}, where its folder was before. "
            f"`nilometer up --data-dir {cluster.data_dir}` corrects them, and starts the cluster"
        )


def _ready_text(cluster: LocalCluster, as_json: bool) -> str:
    brokers = cluster.brokers()
    servers = ",".join(f"{one.host}:{one.port}" for one in brokers)
    config = os.fspath(cluster.security.client_path) if cluster.security.exists else None
    if as_json:
        documents = [{"id": one.id, "host": one.host, "port": one.port, "pid": one.pid} for one in brokers]
        secure = {} if config is None else {"command_config": config}
        return json.dumps({"bootstrap_servers": servers, **secure, "brokers": documents})
    lines = [f"bootstrap.servers={servers}"]
    if config is not None:
        use = f"nilometer topic create demo-1 --bootstrap-server {servers} --command-config {config}"
        lines += [f"command.config={config}", f"To use it as the user demo: {use}"]
    return "\n".join(lines)


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


def _show_metrics(brokers: list[BrokerProcess]) -> None:
    """Print where the brokers serve their metrics: not on standard output, which programs read."""
    for one in brokers:
        if one.metrics is not None:
            click.echo(f"Metrics of broker {one.id}: {one.metrics}", err=True)


def _stay(cluster: LocalCluster, started: list[BrokerProcess], ready: str, console_port: int | None) -> None:
    """Print ``ready``, wait for Ctrl-C or SIGTERM, then stop the brokers that this command started."""
    both = {signal.SIGINT, signal.SIGTERM}
    try:
        click.echo(ready)
        click.echo("Press Ctrl-C to stop.", err=True)
        if console_port is not None:
            servers = ",".join(f"{one.host}:{one.port}" for one in cluster.brokers())
            serve_console({"bootstrap.servers": servers}, console_port)
            return
        # Block the signals and wait for them: with signal.pause() one could be missed just before it.
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        signal.sigwait(both)
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
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


@commands.command()
@_data_dir
@json_option
def down(data_dir: Path, as_json: bool) -> None:
    """Stop the brokers of a data folder."""
    cluster = LocalCluster(data_dir)
    if not cluster.broker_ids():
        raise click.ClickException(f"there is no cluster in {data_dir}, and nothing was stopped")
    running = [one for one in cluster.brokers() if one.state != "down"]
    _stop(cluster, running)
    if as_json:
        print_json({"stopped": [one.id for one in running]})
    else:
        click.echo(f"Stopped {len(running)} broker{'' if len(running) == 1 else 's'}.")
