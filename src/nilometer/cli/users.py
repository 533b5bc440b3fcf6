"""``nilometer user``: list, add and remove the users of SCRAM; and the users of a cluster before its first
broker starts, for ``user add --offline`` and ``up --secure``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from nilometer.broker.listening import CannotListen
from nilometer.broker.offline_metadata import BrokersRun, nodes_store
from nilometer.broker.settings.quorum import QuorumSettings
from nilometer.cli import commands
from nilometer.cli.cluster_clients import run_admin
from nilometer.cli.cluster_options import (
    DEFAULT_DATA_DIR,
    confirm,
    connection_options,
    given_client_config,
    json_option,
    print_json,
    print_table,
    run_async,
    yes_option,
)
from nilometer.cli.metadata import (
    GIVE_NODES,
    coordination_config_option,
    coordination_option,
    data_dir_option,
    quorum_nodes,
    store_security,
    store_setting,
)
from nilometer.client.admin.security_admin import UserAdmin, UserCredential
from nilometer.cluster.entries import BadEntry
from nilometer.coordination.store import CoordinationError, CoordinationStore
from nilometer.local.first_users import NewUser, unused_store, write_first_users, write_users
from nilometer.local.local_cluster import LocalCluster
from nilometer.local.secure_cluster import BROKER, DEMO, MECHANISM, SecureFolder
from nilometer.runtime import LockHeld, Runtime
from nilometer.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import META_PROPERTIES
from nilometer.wire.errors import ErrorCode, KafkaError

# The users of a cluster before its first broker starts: ``user add --offline`` and ``up --secure``.
#
# Both write to a coordination store that no broker uses; it is created if it does not exist. ``user add``
# wants the nodes of a quorum formatted before.


ONLINE = "Use --bootstrap-server instead of --offline"


def add_offline(
    user: NewUser, data_dir: Path | None, coordination: str | None, coordination_config: Path | None
) -> None:
    """Add a user, or change its password, in a coordination store that no broker uses.

    The store is created if it does not exist; but a quorum is formatted before. Raises ClickException,
    KafkaError.
    """
    try:
        run_async(write_first_users(_unused(data_dir, coordination, coordination_config), [user]))
    except BrokersRun as error:
        raise click.ClickException(f"{error}. {ONLINE}") from None
    except LockHeld as error:
        raise click.ClickException(f"a broker runs: {error}. {ONLINE}") from None
    except (CoordinationError, BadEntry, CannotListen, CorruptCheckpoint) as error:
        raise click.ClickException(str(error)) from None


def _unused(
    data_dir: Path | None, coordination: str | None, config: Path | None
) -> AbstractAsyncContextManager[CoordinationStore]:
    """Return the store, to be opened: the nodes of a quorum run for that. Raises ClickException."""
    if nodes := quorum_nodes(data_dir, coordination, config):
        for one in nodes:
            if not Path(one.directory, META_PROPERTIES).exists():
                raise click.ClickException(
                    f"{one.directory} is not formatted: run `nilometer storage format` for each node first, "
                    "or start the brokers and add the user by --bootstrap-server"
                )
        voters = [one for one in nodes if one.is_controller] or nodes
        return nodes_store(voters, Runtime.system())
    setting = _setting(data_dir, coordination)
    if setting.startswith("quorum:"):
        raise click.UsageError(GIVE_NODES)
    return unused_store(setting, store_security(config))


def _setting(data_dir: Path | None, coordination: str | None) -> str:
    if coordination is not None or _has_store(data_dir):
        return store_setting(data_dir, coordination)
    cluster = LocalCluster(Path(DEFAULT_DATA_DIR) if data_dir is None else data_dir)
    return cluster.configured_coordination() or cluster.coordination  # the store that `up` would create


def _has_store(data_dir: Path | None) -> bool:
    try:
        store_setting(data_dir, None)
    except click.ClickException:
        return False
    return True


def create_users(security: SecureFolder, coordination: str, quorum: Sequence[QuorumSettings]) -> None:
    """Create the users and ACLs of a cluster that has no broker yet. Raises ClickException.

    ``quorum``: the voters of its metadata quorum, if it has one. Repeated after a failure, it uses the
    passwords that were made.
    """
    try:
        run_async(write_users(security, coordination, quorum=quorum))
    except BrokersRun as error:
        raise click.ClickException(
            f"{error}: --secure gives users only to a cluster that has had no broker yet"
        ) from None
    except (CoordinationError, BadEntry, CannotListen, LockHeld, CorruptCheckpoint) as error:
        raise click.ClickException(str(error)) from None


# ``nilometer user``: list, add and remove the users of SCRAM.
#
# A password is read from a file, the environment or a prompt; never from the command line, which other
# processes and the shell's history can show.

# --- the password

PASSWORD_VARIABLE = "NILOMETER_USER_PASSWORD"
LENGTH_MAX = 1024
"""In characters: a longer text is a wrong file."""

password_file_option = click.option(
    "--password-file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help=f"A file with the password as its only line; - is standard input. Without it the password is in "
    f"{PASSWORD_VARIABLE}, or is asked for.",
)


def read_password(file: TextIO | None) -> str:
    """Return the password. Raises UsageError, which does not repeat it."""
    given = os.environ.get(PASSWORD_VARIABLE)
    if file is not None:
        return _checked(_line_of(file), "--password-file")
    if given:
        return _checked(given, PASSWORD_VARIABLE)
    if not sys.stdin.isatty():
        raise click.UsageError(
            "no password, and no terminal to ask for it: "
            f"give --password-file, or {PASSWORD_VARIABLE} in the environment"
        )
    return _checked(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True), "Password")


def _line_of(file: TextIO) -> str:
    try:
        text = file.read(LENGTH_MAX + len("\r\n") + 1)
    except UnicodeDecodeError:
        raise click.UsageError("--password-file is not UTF-8 text") from None
    line, _, rest = text.partition("\n")
    if rest:
        raise click.UsageError("--password-file has more than one line")
    return line


def _checked(password: str, where: str) -> str:
    try:
        password.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{where} is not UTF-8 text") from None
    if not password:
        raise click.UsageError(f"{where} is empty")
    if len(password) > LENGTH_MAX:
        raise click.UsageError(f"{where} has more than {LENGTH_MAX} characters")
    return password


# --- the commands

_FOR_A_FILE = re.compile(r"""[!#-\[\]-~]+""")
"""Passwords that a file of settings can have: Java and this program read them alike."""
MECHANISMS = tuple(mechanism.value for mechanism in ScramMechanism)
T = TypeVar("T")


@commands.group()
def user() -> None:
    """List, add and remove the users of SASL's SCRAM mechanisms.

    They log in on listeners whose sasl.enabled.mechanisms have SCRAM-SHA-256 or SCRAM-SHA-512. Users of PLAIN
    are in the brokers' settings instead.
    """


def _mechanism_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--mechanism",
        "mechanisms",
        type=click.Choice(MECHANISMS, case_sensitive=False),
        multiple=True,
        help=text,
    )


def _run(bootstrap: str, work: Callable[[UserAdmin], Awaitable[T]]) -> T:
    try:
        return run_admin(bootstrap, partial(UserAdmin, Runtime.system()), work)
    except KafkaError as error:
        if error.code is not ErrorCode.resource_not_found:
            raise
        raise click.ClickException(f"{error}\n`nilometer user list` shows the users.") from None


@user.command("list")
@click.argument("names", nargs=-1, metavar="[NAME…]")
@json_option
@connection_options
def list_users(names: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """List users with their mechanisms and iterations: those named, or all."""
    wanted = tuple(dict.fromkeys(names))
    _show(_run(bootstrap, lambda admin: admin.list_credentials(wanted)), as_json)


@user.command()
@click.argument("name")
@_mechanism_option("Only for this mechanism; repeatable. [default: both]")
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="How often the password is hashed: more makes guessing, and each login, slower.",
)
@password_file_option
@click.option(
    "--offline",
    is_flag=True,
    help="Write to the coordination store while no broker runs: the first users of a cluster. The store is "
    "named by --data-dir or --coordination, and created if it does not exist; a metadata quorum is named by "
    "--coordination-config, and its nodes on this machine, a majority, are formatted before.",
)
@data_dir_option
@coordination_option
@coordination_config_option
@json_option
@connection_options
def add(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: TextIO | None,
    offline: bool,
    data_dir: Path | None,
    coordination: str | None,
    coordination_config: Path | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Add a user, or change its password and iterations. Connections that are open stay open.

    The password is hashed before it is sent: no broker sees it.
    """
    if not offline and (data_dir is not None or coordination is not None):
        raise click.UsageError("--data-dir and --coordination are for --offline")
    wanted = _chosen(mechanisms) or tuple(ScramMechanism)
    folder = SecureFolder(data_dir or Path(DEFAULT_DATA_DIR)) if offline else _folder()
    file = folder.file_of(name) if folder is not None and folder.exists and MECHANISM in wanted else None
    if file is not None and name == BROKER:
        raise click.ClickException(_needed(name, file))
    password = read_password(password_file)
    if file is not None and not _FOR_A_FILE.fullmatch(password):
        raise click.UsageError(
            f"{file} has the password of {name}, too, and can have only letters, digits and signs of ASCII "
            'without spaces, " and \\'
        )
    if offline:
        user = NewUser(name=name, password=password, mechanisms=wanted, iterations=iterations)
        add_offline(user, data_dir, coordination, coordination_config)
    else:
        _run(bootstrap, lambda admin: admin.set_password(name, password, wanted, iterations))
    if folder is not None and file is not None:
        folder.change_password(name, password)
        click.echo(f"{file} has the new password.", err=True)
    _show([UserCredential(name, mechanism.value, iterations) for mechanism in wanted], as_json)


@user.command()
@click.argument("name")
@_mechanism_option("Only of this mechanism; repeatable. [default: all that the user has]")
@yes_option
@json_option
@connection_options
def remove(name: str, mechanisms: tuple[str, ...], yes: bool, as_json: bool, bootstrap: str) -> None:
    """Remove a user, and print what was removed. Connections that are open stay open."""
    known = _run(bootstrap, lambda admin: admin.list_credentials([name]))
    wanted = _chosen(mechanisms) or _chosen([each.mechanism for each in known])
    names = [mechanism.value for mechanism in wanted]
    lost = [f"password of user {name} for {each}" for each in names]
    folder = _folder()
    file = folder.file_of(name) if folder is not None and MECHANISM in wanted else None
    if file is not None:
        if name != DEMO:
            raise click.ClickException(_needed(name, file))
        lost.append(f"{file} is of no use then")
    confirm("Remove it?", lost, yes=yes)
    _run(bootstrap, lambda admin: admin.remove(name, wanted))
    _show([each for each in known if each.mechanism in names], as_json)


def _folder() -> SecureFolder | None:
    """Return the folder of `nilometer up --secure` whose cluster this command connects to, if it is here."""
    authority = given_client_config().get("ssl.truststore.location")
    return None if authority is None else SecureFolder.of_authority(authority)


def _needed(name: str, file: Path) -> str:
    who = "the brokers log in to each other" if name == BROKER else "`nilometer up` and `status` log in"
    return (
        f"{who} as {name}, with the password in {file}, and could not any more. Nothing was changed. "
        f"For yourself make a user of your own: nilometer user add NAME"
    )


def _chosen(names: Sequence[str]) -> tuple[ScramMechanism, ...]:
    return tuple(mechanism for mechanism in ScramMechanism if mechanism.value in names)


def _show(credentials: Sequence[UserCredential], as_json: bool) -> None:
    if not as_json:
        print_table(UserCredential._fields, credentials)
        return
    by_user: dict[str, list[dict[str, object]]] = {}
    for each in credentials:
        shown: dict[str, object] = {"mechanism": each.mechanism, "iterations": each.iterations}
        by_user.setdefault(each.user, []).append(shown)
    print_json({"users": [{"name": name, "credentials": found} for name, found in by_user.items()]})
