"""Shared by the commands that connect to a cluster: options, running the event loop, printing."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from nilometer.cli.commands import PARTITION
from nilometer.client.admin.admin import (
    Admin,
    AlterOperation,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ResourceType,
)
from nilometer.client.settings import (
    COMMON_KEYS,
    JAAS,
    MECHANISM,
    MODULES,
    SECURITY_KEYS,
    ClientSettings,
    client_security,
    parse_server,
)
from nilometer.config import ConfigDefinition, ConfigError, parse_properties
from nilometer.runtime.event_loop import on_loop_error
from nilometer.security.sasl import client_jaas

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATA_DIR = ".nilometer/data"

DEFAULT_BOOTSTRAP_SERVER = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "NILOMETER_BOOTSTRAP_SERVER"
COMMAND_CONFIG_VARIABLE = "NILOMETER_COMMAND_CONFIG"
COMMON_CONFIG = ConfigDefinition.of("client", COMMON_KEYS)
SECURITY = frozenset(key.name for key in SECURITY_KEYS)


def _servers(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the servers of the command line; else those of the local cluster that runs here; else those of
    the environment, or the default. Say so if the local cluster is not what the others name."""
    if context.get_parameter_source(parameter.name or "") is not ParameterSource.COMMANDLINE:
        local = _local_servers()
        if local is not None and not {*value.split(",")} <= {*local.split(",")}:
            click.echo(f"Connecting to the cluster in {DEFAULT_DATA_DIR}: {local}", err=True)
        value = local or value
    return _checked(value)


def in_full(data_dir: Path) -> str:
    """Name a cluster's folder; one that depends on where the command runs, with that."""
    return os.fspath(data_dir) if data_dir.is_absolute() else f"{data_dir} of {Path.cwd()}"


def data_dir_option(data_dir: Path) -> str:
    """Return what to give to a command for this folder, with a space before it; empty for the default."""
    return (
        "" if os.fspath(data_dir) == DEFAULT_DATA_DIR else f" --data-dir {shlex.quote(os.fspath(data_dir))}"
    )


def _local_servers() -> str | None:
    """Return the addresses of the running brokers of `nilometer up` in this folder; None without any.

    Another user's folder does not count: it could name an address that gets this user's credentials.
    """
    folder = Path(DEFAULT_DATA_DIR)
    if not folder.is_dir() or folder.stat().st_uid != os.geteuid():
        return None
    from nilometer.local.local_cluster import LocalCluster  # takes long to import, and is rarely needed

    running = [one for one in LocalCluster(folder).brokers() if one.pid is not None]
    return ",".join(f"{one.host}:{one.port}" for one in running) or None


def _check_servers(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    return _checked(value)


def _checked(value: str) -> str:
    for server in value.split(","):
        try:
            parse_server(server)
        except ConfigError:
            raise click.BadParameter(f"{server!r} is not of the form HOST:PORT") from None
    return value


def _bootstrap_option(
    look: Callable[[click.Context, click.Parameter, str], str], before: str
) -> Callable[[F], F]:
    return click.option(
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,…]",
        envvar=BOOTSTRAP_VARIABLE,
        default=DEFAULT_BOOTSTRAP_SERVER,
        show_default=f"{before}{DEFAULT_BOOTSTRAP_SERVER}",
        show_envvar=True,
        callback=look,
        help="Brokers to connect to first, as HOST:PORT[,...]. The client learns the others from them.",
    )


bootstrap_option = _bootstrap_option(_servers, f"the cluster that runs in {DEFAULT_DATA_DIR}, or ")
elsewhere_option = _bootstrap_option(_check_servers, "")
"""--bootstrap-server of a command that has another option for the cluster in a folder."""
COMMAND_CONFIG = "command_config"
"""The name of the parameter of ``--command-config``."""
CLIENT_CONFIG = "nilometer.client"
"""Where the context of a command keeps the settings of ``--command-config``."""


def _read_client_config(
    context: click.Context, _parameter: click.Parameter, value: Path | None, *, needs_user: bool = True
) -> None:
    if value is None:
        return
    try:
        config = parse_properties(value.read_text(encoding="utf-8"), str(value))
        check_client_security(config, needs_user=needs_user)
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {value}: {error}") from None
    except ConfigError as error:
        raise click.BadParameter(f"{value}: {error}") from None
    unknown = [key for key in config if key not in COMMON_CONFIG.keys]
    if unknown:
        raise click.BadParameter(f"{value}: no setting of all clients: {', '.join(unknown)}")
    context.meta[CLIENT_CONFIG] = config


def check_client_security(config: Mapping[str, str], *, needs_user: bool = True) -> None:
    """Check the settings of security among those of clients. Raises ConfigError.

    Without ``needs_user`` the login module may be left out, because the user is named elsewhere.
    """
    given = {key: value for key, value in config.items() if key in SECURITY}
    module = MODULES.get(given.get(MECHANISM, ""))
    if not needs_user and JAAS not in given and module is not None:
        given[JAAS] = client_jaas(module, "user", "password")
    client_security(ClientSettings(COMMON_CONFIG, given))


def command_config_option(command: F, *, needs_user: bool = True) -> F:
    """Add --command-config. Without ``needs_user`` the file may name no user."""
    option = click.option(
        "--command-config",
        COMMAND_CONFIG,
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=COMMAND_CONFIG_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=partial(_read_client_config, needs_user=needs_user),
        help="A properties file with Kafka's settings of the connection: security.protocol, sasl.*, ssl.*.",
    )
    return option(command)


def connection_options(command: F) -> F:
    """Add --bootstrap-server and --command-config."""
    return bootstrap_option(command_config_option(command))


def client_config(bootstrap: str) -> dict[str, str]:
    """Return the settings of clients: the servers, and those of --command-config."""
    return {**given_client_config(), "bootstrap.servers": bootstrap}


def given_client_config() -> dict[str, str]:
    """Return the settings of --command-config. Only the thread that runs the command has them."""
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta.get(CLIENT_CONFIG, {})


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
always_json_option = click.option(
    "--json", is_flag=True, expose_value=False, help="Has no effect: the output is JSON in any case."
)


property_option = click.option(
    "-X",
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A producer setting; repeatable.",
)
partitions_option = click.option(
    "--partition", "partitions", type=PARTITION, multiple=True, help="Only this partition; repeatable."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask first: needed where there is no terminal.")


def confirm(question: str, lost: Sequence[object], *, yes: bool) -> None:
    """Name what is about to be lost for good, and ask whether to go on; with ``yes`` do neither.

    Raises UsageError if there is no terminal to ask on, ClickException if the answer is no.
    """
    if yes:
        return
    click.echo("This cannot be undone:", err=True)
    for one in lost:
        click.echo(f"  {one}", err=True)
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to answer on: give --yes to do it")
    if not click.confirm(question, err=True):
        raise click.ClickException("Nothing was changed.")


def parse_pairs(items: Sequence[str], option: str) -> dict[str, str]:
    """Parse ``KEY=VALUE`` items, each key once. Raises UsageError, which names ``option``."""
    pairs: dict[str, str] = {}
    for key, value in parse_list(items, option):
        if key in pairs:
            raise click.UsageError(f"{option} gives {key} twice, and it has one value")
        pairs[key] = value
    return pairs


def parse_list(items: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Parse ``KEY=VALUE`` items in their order. Raises UsageError for an item of another form."""
    found: list[tuple[str, str]] = []
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"{option} takes KEY=VALUE, not {item!r}")
        found.append((key.strip(), value))
    return found


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end. Ctrl-C and SIGTERM cancel it, so that it can close what it opened."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_with_sigterm(main))


async def _with_sigterm(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await main
    except asyncio.CancelledError:
        raise click.Abort from None


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Have Ctrl-C and SIGTERM call ``stop``, for work that ends normally by them; needs a running loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Print a table; columns whose values are all numbers are right-aligned."""
    from rich.table import Table

    from nilometer.cli.console import OutputConsole

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    OutputConsole().print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        value = ",".join(str(item) for item in cast("Sequence[object]", value))
    return str(value).replace("\n", "\\n")


# Shared by ``topic config`` and ``broker config``: options, and how settings are changed and shown.

HIDDEN = "(hidden)"

set_option = click.option(
    "--set", "given", multiple=True, metavar="KEY=VALUE", help="Set KEY to VALUE; repeatable."
)
delete_option = click.option(
    "--delete", "deleted", multiple=True, metavar="KEY", help="Reset this key to its default; repeatable."
)
all_option = click.option("--all", "show_all", is_flag=True, help="Also show the other settings.")


def changes_of(
    given: tuple[str, ...], deleted: tuple[str, ...], setting: str = "--set", deleting: str = "--delete"
) -> list[ConfigChange]:
    """Return the changes of the options ``setting`` and ``deleting``. Raises UsageError for a key in both."""
    pairs = parse_pairs(given, setting)
    if both := sorted(set(pairs) & set(deleted)):
        raise click.UsageError(f"{both[0]} is in {setting} and in {deleting}")
    changes = [ConfigChange(key, value) for key, value in pairs.items()]
    return changes + [ConfigChange(key, None, AlterOperation.DELETE) for key in dict.fromkeys(deleted)]


async def check_deleted(admin: Admin, resource_type: ResourceType, name: str, deleted: Sequence[str]) -> None:
    """Raise ClickException if a topic or broker has no such setting: brokers say nothing of it."""
    if not deleted:
        return
    known = await admin.describe_configs(resource_type, name)
    if missing := [key for key in deleted if key not in known]:
        what = f"{resource_type.name.lower()} {name}"
        raise click.ClickException(
            f"{what} has no setting {', '.join(missing)}, and nothing was changed. "
            f"`nilometer {resource_type.name.lower()} config {name} --all` shows the settings."
        )


def shown(
    entries: Mapping[str, ConfigEntry], show_all: bool, *sources: ConfigSource
) -> dict[str, ConfigEntry]:
    """Return the settings to show, by key: those from ``sources``, or all."""
    return {key: one for key, one in sorted(entries.items()) if show_all or one.source in sources}


def print_settings(subject: Mapping[str, Any], entries: Mapping[str, ConfigEntry], as_json: bool) -> None:
    """Print the settings of the topic or broker that the fields of ``subject`` name."""
    if as_json:
        print_json({**subject, "configs": config_documents(entries)})
        return
    if not entries:
        click.echo("Every setting has its default; --all shows them.")
        return
    rows = [
        (one.name, HIDDEN if one.sensitive else one.value, one.source.name, "yes" if one.read_only else "no")
        for one in entries.values()
    ]
    print_table(("key", "value", "source", "read-only"), rows)


def config_documents(entries: Mapping[str, ConfigEntry]) -> dict[str, Any]:
    return {
        one.name: {"value": one.value, "source": one.source.name, "read_only": one.read_only}
        for one in entries.values()
    }
