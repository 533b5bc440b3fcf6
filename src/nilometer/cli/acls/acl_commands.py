"""``nilometer acl``: list, add and remove ACLs."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of
from nilometer.cli.cluster_options import (
    F,
    connection_options,
    json_option,
    print_json,
    print_table,
    run_async,
)
from nilometer.client.admin.acl_admin import AclAdmin
from nilometer.cluster.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from nilometer.security.principal import parse_principal

TIMEOUT_MS = 15_000
T = TypeVar("T")
E = TypeVar("E", bound=enum.IntEnum)

_COLUMNS = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
_RESOURCES = (
    ("--topic", ResourceType.TOPIC, "TOPIC"),
    ("--group", ResourceType.GROUP, "GROUP"),
    ("--transactional-id", ResourceType.TRANSACTIONAL_ID, "ID"),
    ("--delegation-token", ResourceType.DELEGATION_TOKEN, "TOKEN"),
    ("--user", ResourceType.USER, "PRINCIPAL"),
)


@commands.group()
def acl() -> None:
    """List, add and remove ACLs: which principal may do what with which topics, groups and ids.

    A principal is TYPE:NAME, as in User:alice; User:* is everyone. The brokers must have
    authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer.
    """


def _resource_options(command: F) -> F:
    for option, _, metavar in reversed(_RESOURCES):
        shown = option.removeprefix("--").replace("-", " ")
        command = click.option(
            option, metavar=metavar, help=f"The {shown}; * for each one, with --prefixed a prefix."
        )(command)
    return click.option("--cluster", is_flag=True, help="The cluster itself.")(command)


def _acl_options(command: F) -> F:
    options = (
        click.option("--principal", metavar="TYPE:NAME", help="The principal, as in User:alice."),
        click.option("--host", metavar="ADDRESS", help="The client's address; * for each."),
        click.option("--operation", metavar="NAME", help="For example read, describe-configs or all."),
        click.option("--prefixed", is_flag=True, help="The name is a prefix of the resources' names."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _run(bootstrap: str, work: Callable[[AclAdmin], Awaitable[T]]) -> T:
    async def main() -> T:
        async with admin_of(bootstrap) as admin:
            return await work(AclAdmin(admin.client, TIMEOUT_MS))

    return run_async(main())


@acl.command("list")
@_acl_options
@_resource_options
@json_option
@connection_options
def list_acls(
    principal: str | None,
    host: str | None,
    operation: str | None,
    prefixed: bool,
    as_json: bool,
    bootstrap: str,
    **resources: str | bool | None,
) -> None:
    """List ACLs; options restrict the list."""
    wanted = _filter(principal, host, operation, prefixed, resources)
    _show(_run(bootstrap, lambda admin: admin.list_acls(wanted)), as_json)


@acl.command()
@click.argument("permission", type=click.Choice(["allow", "deny"]))
@_acl_options
@_resource_options
@json_option
@connection_options
def add(
    permission: str,
    principal: str | None,
    host: str | None,
    operation: str | None,
    prefixed: bool,
    as_json: bool,
    bootstrap: str,
    **resources: str | bool | None,
) -> None:
    """Allow or deny an operation, separated by commas several. A denial prevails over every allowance."""
    if principal is None or operation is None:
        raise click.UsageError("give --principal and --operation")
    _check_principal(principal)
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    allowed = Permission.ALLOW if permission == "allow" else Permission.DENY
    acls = [
        Acl(kind, name, pattern, principal, host or WILDCARD, _parse(Operation, each), allowed)
        for kind, name in _chosen(resources)
        for each in operation.split(",")
    ]
    if not acls:
        raise click.UsageError("name a resource: --topic, --group, --transactional-id, --cluster …")
    _run(bootstrap, lambda admin: admin.create_acls(acls))
    _show(acls, as_json)


@acl.command()
@_acl_options
@_resource_options
@click.option("--all", "everything", is_flag=True, help="Remove every ACL, if no other option is given.")
@json_option
@connection_options
def remove(
    principal: str | None,
    host: str | None,
    operation: str | None,
    prefixed: bool,
    everything: bool,
    as_json: bool,
    bootstrap: str,
    **resources: str | bool | None,
) -> None:
    """Remove the ACLs that the options select, and print them."""
    wanted = _filter(principal, host, operation, prefixed, resources)
    if (wanted == AclFilter()) != everything:
        raise click.UsageError("say which ACLs to remove, or give --all")
    _show(_run(bootstrap, lambda admin: admin.delete_acls(wanted)), as_json)


def _chosen(resources: dict[str, str | bool | None]) -> list[tuple[ResourceType, str]]:
    chosen = [(ResourceType.CLUSTER, CLUSTER_NAME)] if resources["cluster"] else []
    for option, kind, _ in _RESOURCES:
        name = resources[option.removeprefix("--").replace("-", "_")]
        if isinstance(name, str):
            chosen.append((kind, name))
    return chosen


def _filter(
    principal: str | None,
    host: str | None,
    operation: str | None,
    prefixed: bool,
    resources: dict[str, str | bool | None],
) -> AclFilter:
    chosen = _chosen(resources)
    if len(chosen) > 1:
        raise click.UsageError("name one resource only")
    kind, name = chosen[0] if chosen else (ResourceType.ANY, None)
    if principal is not None:
        _check_principal(principal)
    return AclFilter(
        kind,
        name,
        PatternType.PREFIXED if prefixed else PatternType.ANY,
        principal,
        host,
        Operation.ANY if operation is None else _parse(Operation, operation),
    )


def _check_principal(text: str) -> None:
    try:
        parse_principal(text)
    except ValueError as error:
        raise click.UsageError(f"--principal: {error}") from None


def _parse(kind: type[E], text: str) -> E:
    found = {each.name: each for each in kind if each > 1}.get(text.strip().upper().replace("-", "_"))
    if found is None:
        names = ", ".join(each.name.lower().replace("_", "-") for each in kind if each > 1)
        raise click.UsageError(f"--{kind.__name__.lower()} is one of {names}, not {text!r}")
    return found


def _show(acls: Sequence[Acl], as_json: bool) -> None:
    rows = [
        (
            each.resource_type.name,
            each.resource_name,
            each.pattern_type.name,
            each.principal,
            each.host,
            each.operation.name,
            each.permission.name,
        )
        for each in acls
    ]
    if as_json:
        print_json({"acls": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]})
    else:
        print_table(_COLUMNS, rows)
