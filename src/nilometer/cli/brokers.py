"""``nilometer broker | up | down``: broker processes on this machine; ``broker list`` and ``broker config``.

What ``up`` does with its options depends on the brokers that the folder has already: they keep what they were
started with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from nilometer.broker.settings.listeners import LOOPBACK, METRICS_LISTENER, Endpoint, HttpEndpoint
from nilometer.broker.settings.quorum import QUORUM
from nilometer.broker.settings.recorder import ON, RECORDER
from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of
from nilometer.cli.cluster_options import (
    DEFAULT_DATA_DIR,
    all_option,
    changes_of,
    check_deleted,
    connection_options,
    data_dir_option,
    delete_option,
    in_full,
    json_option,
    parse_pairs,
    print_json,
    print_settings,
    print_table,
    run_async,
    set_option,
    shown,
)
from nilometer.cli.commands import BROKER_ID
from nilometer.cli.console_command import console_port_type, serve_console
from nilometer.cli.process import exit_on_sigterm
from nilometer.client.admin.admin import Admin, ClusterDescription, ConfigEntry, ConfigSource, ResourceType
from nilometer.client.network.cluster_metadata import TopicMetadata
from nilometer.local.local_cluster import (
    PORTS_APART,
    REPLICATION_FACTOR_MAX,
    SETTINGS,
    VOTERS_MAX,
    BrokerProcess,
    CannotSettle,
    LaunchFailed,
    LocalCluster,
    quorum_properties,
    replication_settings,
    voters_of,
)
from nilometer.local.secure_cluster import PROTOCOL, SecureFolder

# What the options of ``nilometer up`` mean for a folder that has brokers already. Pure.
#
# An option that would have no effect on them is refused, and the message says what to do instead: a person
# who asks for three brokers or for another port must not get something else in silence.

PORT_MAX = 65_535
RACK = "broker.rack"


class UpOptions(msgspec.Struct, frozen=True):
    """What was given on the command line; None: not given, so existing brokers keep what they have."""

    brokers: int | None = None
    host: str | None = None
    port: int | None = None
    coordination: str | None = None
    metrics_port: int | None = None
    """The port of the first broker's metrics; the next have the next ports. 0: the system chooses all."""
    secure: bool = False
    first_id: int | None = None
    """The lowest id of this machine's brokers, where a cluster has brokers on several."""
    rack: str | None = None
    """The machine's name as ``broker.rack``: no two replicas of a partition are on the machine then."""

    @property
    def moves_endpoints(self) -> bool:
        return self.host is not None or self.port is not None


def ids(existing: Sequence[BrokerProcess], given: UpOptions) -> range:
    """Return the ids of the folder's brokers after the start: those that exist, and those to be added."""
    first = existing[0].id if existing else given.first_id or 1
    usual = VOTERS_MAX if given.coordination == QUORUM and not existing else 1
    return range(first, first + max(given.brokers or usual, len(existing)))


def settings_of_topics(given: UpOptions, last_id: int) -> dict[str, str]:
    """Return the settings of topics for new brokers.

    With a rack the cluster has brokers on other machines, how many is not known here: three replicas then.
    """
    return replication_settings(REPLICATION_FACTOR_MAX if given.rack is not None else last_id)


def metrics_listener(place: int, first_port: int) -> str:
    """Return the ``metrics.listener`` of the broker at this ``place`` from 0 (port 0: the system chooses)."""
    return f"{LOOPBACK}:{first_port + place if first_port else 0}"


def endpoint(
    broker_id: int,
    existing: Sequence[BrokerProcess],
    given: UpOptions,
    default_host: str,
    default_port: int,
    listener: str = "PLAINTEXT",
) -> Endpoint:
    """Return where a broker listens: as given, as configured, or next to the last of the ``existing``.

    ``listener`` is the listener's name.
    """
    known = {one.id: one for one in existing}
    near = known.get(broker_id) or (existing[-1] if existing else None)
    first_id = ids(existing, given)[0]
    first_port = default_port if near is None else near.port - (near.id - first_id)
    host = given.host or (default_host if near is None else near.host)
    return Endpoint(listener, host, (given.port or first_port) + broker_id - first_id)


def settings_of_start(
    broker_id: int,
    existing: Sequence[BrokerProcess],
    given: UpOptions,
    default_host: str,
    default_port: int,
    listener: str = "PLAINTEXT",
) -> dict[str, str]:
    """Return a broker's own settings for this start: those that replace what its folder has."""
    settings: dict[str, str] = {}
    if given.moves_endpoints:
        at = endpoint(broker_id, existing, given, default_host, default_port, listener)
        settings["listeners"] = str(at)
    if given.metrics_port is not None:
        settings[METRICS_LISTENER] = metrics_listener(broker_id - ids(existing, given)[0], given.metrics_port)
    if given.rack is not None:
        settings[RACK] = given.rack
    return settings


def why_refused(
    existing: Sequence[BrokerProcess],
    configured_coordination: str | None,
    given: UpOptions,
    folder: str,
    *,
    is_secure: bool = False,
) -> str | None:
    """Return why the options do not fit the brokers of ``folder``; None if they do.

    ``configured_coordination`` is the setting of the existing brokers, ``is_secure`` whether they were
    created with --secure.
    """
    if given.secure and existing and not is_secure:
        return (
            f"--secure: the brokers in {folder} were created without it. --data-dir names another cluster; "
            "docs/security.md says how a running cluster changes to TLS and SASL."
        )
    if given.brokers is not None and given.brokers < len(existing):
        return (
            f"--brokers {given.brokers}: the cluster in {folder} has {len(existing)} brokers, and `up` "
            "removes none. Without --brokers all of them start; --data-dir names another cluster."
        )
    for one in existing:
        wanted = endpoint(one.id, existing, given, one.host, one.port)
        if one.state != "down" and (wanted.host, wanted.port) != (one.host, one.port):
            option = "--host" if given.port is None else "--port"
            return (
                f"{option}: broker {one.id} of {folder} runs on {one.host}:{one.port} and cannot move to "
                f"{wanted.host}:{wanted.port}. Stop it first: nilometer down --data-dir {folder}"
            )
    if existing and given.coordination not in (None, configured_coordination):
        option = "--quorum" if given.coordination == QUORUM else f"--coordination {given.coordination}"
        return (
            f"{option}: the brokers in {folder} have {configured_coordination}, which holds their metadata. "
            "--data-dir names another cluster."
        )
    if existing and given.first_id not in (None, existing[0].id):
        return (
            f"--first-id {given.first_id}: the brokers in {folder} have ids from {existing[0].id}, which are "
            "in the cluster's metadata. --data-dir names another folder."
        )
    last = endpoint(ids(existing, given)[-1], existing, given, "", 1)
    if last.port > PORT_MAX:
        return f"--port: the last broker would listen on port {last.port}, and {PORT_MAX} is the highest"
    return _why_no_metrics_ports(existing, given, folder)


def _why_no_metrics_ports(existing: Sequence[BrokerProcess], given: UpOptions, folder: str) -> str | None:
    first = given.metrics_port
    if not first:
        return None
    numbers = ids(existing, given)
    last = first + len(numbers) - 1
    if last > PORT_MAX:
        return f"--metrics-port: the last broker's would be {last}, and {PORT_MAX} is the highest"
    for one in existing:
        wanted = f"{HttpEndpoint(LOOPBACK, first + one.id - numbers[0])}/metrics"
        if one.state != "down" and one.metrics != wanted:
            return (
                f"--metrics-port: broker {one.id} of {folder} runs and cannot move its metrics to {wanted}. "
                f"Stop it first: nilometer down --data-dir {folder}"
            )
    return None


# ``nilometer broker list`` and ``broker config``: the brokers of a cluster, and their settings.

ALL_BROKERS = ""
"""As a broker's name: the settings that all brokers share."""


@commands.command("list")
@json_option
@connection_options
def list_brokers(as_json: bool, bootstrap: str) -> None:
    """List the live brokers of a cluster, with the partitions they lead and the replicas they have."""

    async def work() -> tuple[ClusterDescription, dict[str, TopicMetadata]]:
        async with admin_of(bootstrap) as admin:
            return await admin.describe_cluster(), await admin.list_topics()

    cluster, topics = run_async(work())
    documents = _documents(cluster, topics)
    if as_json:
        print_json({"cluster_id": cluster.cluster_id, "brokers": documents})
        return
    rows = [
        (one["id"], one["host"], one["port"], one["rack"], one["leaders"], one["replicas"], _role(one))
        for one in documents
    ]
    print_table(("id", "host", "port", "rack", "leaders", "replicas", "role"), rows)


def _documents(cluster: ClusterDescription, topics: dict[str, TopicMetadata]) -> list[dict[str, Any]]:
    partitions = [part for topic in topics.values() for part in topic.partitions]
    leaders = Counter(part.leader_id for part in partitions)
    replicas = Counter(one for part in partitions for one in part.replicas)
    return [
        {
            "id": node.node_id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "controller": node.node_id == cluster.controller_id,
            "leaders": leaders[node.node_id],
            "replicas": replicas[node.node_id],
        }
        for node in cluster.brokers
    ]


def _role(one: dict[str, Any]) -> str:
    return "controller" if one["controller"] else ""


@commands.command("config")
@click.argument("broker_id", required=False, metavar="[ID]", type=BROKER_ID)
@click.option("--all-brokers", is_flag=True, help="The settings that all brokers share, instead of one ID.")
@set_option
@delete_option
@all_option
@json_option
@connection_options
def broker_config(
    broker_id: int | None,
    all_brokers: bool,
    given: tuple[str, ...],
    deleted: tuple[str, ...],
    show_all: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Change settings of running brokers with --set and --delete, then show those that were changed so.

    Those of a broker are its own ones, and those that all brokers share. --all also shows those of the
    broker's server.properties, and the defaults.
    """
    if all_brokers == (broker_id is not None):
        raise click.UsageError("give the ID of a broker, or --all-brokers")
    name = ALL_BROKERS if broker_id is None else str(broker_id)
    changes = changes_of(given, deleted)

    async def work() -> dict[str, ConfigEntry]:
        async with admin_of(bootstrap) as admin:
            live = await _check_broker(admin, broker_id)
            if changes:
                await check_deleted(admin, ResourceType.BROKER, str(live), deleted)
                await admin.incremental_alter_configs(ResourceType.BROKER, name, changes)
            return await admin.describe_configs(ResourceType.BROKER, name)

    changed = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    print_settings({"broker": broker_id}, shown(run_async(work()), show_all, *changed), as_json)


async def _check_broker(admin: Admin, broker_id: int | None) -> int:
    """Return the id of a live broker: this one, or any. Raises ClickException if no live broker has this id:
    the client would try for a minute."""
    live = [node.node_id for node in (await admin.describe_cluster()).brokers]
    if broker_id is not None and broker_id not in live:
        raise click.ClickException(
            f"there is no live broker {broker_id}; the live brokers are {', '.join(map(str, live))}"
        )
    return live[0] if broker_id is None else broker_id


# ``nilometer broker | up | down``: broker processes on this machine.

F = TypeVar("F", bound=Callable[..., Any])

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
@_number("--brokers", 1, 64, "The number of brokers; with --quorum three by default.", default=1)
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
@click.option(
    "--quorum",
    is_flag=True,
    help="Keep the cluster's metadata in a quorum of the first three brokers (KRaft). It stays so: later "
    "starts need no option.",
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
@click.option(
    "--record",
    is_flag=True,
    help="Record all input of the brokers that are started, for `nilometer recorder replay`.",
)
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
    quorum: bool,
    metrics_port: int,
    first_id: int,
    rack: str | None,
    secure: bool,
    detach: bool,
    record: bool,
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
    if quorum and _is_given("coordination"):
        raise click.UsageError("--quorum does not go together with --coordination")
    settings = _with_log_options(_parse_overrides(overrides), log_levels, log_format)
    if record:
        settings[RECORDER] = ON
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
    store = QUORUM if quorum else cluster.coordination if coordination == "local" else coordination
    given = UpOptions(
        brokers if _is_given("brokers") else None,
        host if _is_given("host") else None,
        port if _is_given("port") else None,
        store if quorum or _is_given("coordination") else None,
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
    creates_users = (secure or is_secure) and not existing
    if creates_users:
        cluster.security.create(zookeeper=store.startswith("zookeeper://"), quorum=quorum)
    listener = PROTOCOL.value if cluster.security.exists else "PLAINTEXT"
    numbers = ids(existing, given)
    at = {one: endpoint(one, existing, given, host, port, listener) for one in numbers}
    properties = {
        "nilometer.coordination": configured or store,
        **settings_of_topics(given, numbers[-1]),
        **({RACK: rack} if rack is not None else {}),
    }
    has_quorum = properties["nilometer.coordination"] == QUORUM
    voters = _voters(cluster, existing, at) if has_quorum else ""
    security = cluster.security if cluster.security.exists else None
    new: dict[int, dict[str, str]] = {}
    for broker_id, where in at.items():
        own = {METRICS_LISTENER: metrics_listener(broker_id - numbers[0], metrics_port)}
        if has_quorum:
            own |= quorum_properties(broker_id, str(where), voters, security)
        new[broker_id] = cluster.new_settings(broker_id, where, {**properties, **own})
    if creates_users:
        _create_users(cluster.security, store, at, new)
    for broker_id, settings_of_new in new.items():
        cluster.configure(broker_id, settings_of_new)
    down_ids = [one.id for one in cluster.brokers() if one.state == "down"]
    if (settings or rack) and (running := ", ".join(str(one.id) for one in existing if one.state != "down")):
        click.echo(f"Warning: settings have no effect on brokers that run: {running}", err=True)
    of_start = {one: settings_of_start(one, existing, given, host, port, listener) for one in down_ids}
    for one in down_ids if has_quorum and given.moves_endpoints else ():
        of_start[one] |= quorum_properties(one, of_start[one]["listeners"], voters, security)
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
        click.echo(f"To stop: nilometer down{data_dir_option(data_dir)}", err=True)
    else:
        _stay(cluster, started, ready, console_port)


def _create_users(
    security: SecureFolder, store: str, at: Mapping[int, Endpoint], new: Mapping[int, Mapping[str, str]]
) -> None:
    """Create the users of a new cluster. With a metadata quorum its voters run in this process meanwhile."""
    from nilometer.broker.settings.config import BrokerConfig
    from nilometer.cli.users import create_users  # loads the controller and the store

    found = [BrokerConfig(settings).quorum for settings in new.values()] if store == QUORUM else []
    voters = [one for one in found if one is not None and one.is_controller]
    for one in voters:
        security.issue(one.node_id, at[one.node_id].host)
    create_users(security, store, voters)


def _voters(cluster: LocalCluster, existing: Sequence[BrokerProcess], at: Mapping[int, Endpoint]) -> str:
    """Return the voters of the folder's quorum, or of a new one."""
    if existing:
        return cluster.setting(existing[0].id, "controller.quorum.voters")
    last = max(where.port for where in at.values()) + PORTS_APART
    if last > PORT_MAX:
        raise click.UsageError(f"--port: a voter would listen on port {last}, and {PORT_MAX} is the highest")
    return voters_of({broker_id: where.port for broker_id, where in at.items()})


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
        raise click.ClickException(
            f"there is no cluster in {in_full(data_dir)}, and nothing was stopped: run this where the "
            "cluster was started, or give its folder with --data-dir"
        )
    running = [one for one in cluster.brokers() if one.state != "down"]
    _stop(cluster, running)
    if as_json:
        print_json({"stopped": [one.id for one in running]})
    else:
        click.echo(f"Stopped {len(running)} broker{'' if len(running) == 1 else 's'}.")
