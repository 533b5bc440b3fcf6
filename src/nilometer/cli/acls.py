"""``nilometer acl``: list, add and remove ACLs."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeVar

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import run_admin
from nilometer.cli.cluster_options import (
    F,
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    yes_option,
)
from nilometer.client.admin.security_admin import AclAdmin
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

E = TypeVar("E", bound=enum.IntEnum)

_COLUMNS = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
_RESOURCES = (
    ("--topic", ResourceType.TOPIC, "TOPIC"),
    ("--group", ResourceType.GROUP, "GROUP"),
    ("--transactional-id", ResourceType.TRANSACTIONAL_ID, "ID"),
    ("--delegation-token", ResourceType.DELEGATION_TOKEN, "TOKEN"),
    ("--user", ResourceType.USER, "PRINCIPAL"),
)

T = TypeVar("T")


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
            option,
            metavar=metavar,
            multiple=True,
            help=f"The {shown}; * for each one, with --prefixed a prefix; repeatable.",
        )(command)
    return click.option("--cluster", is_flag=True, help="The cluster itself.")(command)


def _acl_options(command: F) -> F:
    options = (
        click.option(
            "--principal",
            "principals",
            metavar="TYPE:NAME",
            multiple=True,
            callback=_principals,
            help="The principal, as in User:alice; repeatable.",
        ),
        click.option(
            "--host",
            "hosts",
            metavar="ADDRESS",
            multiple=True,
            help="The client's address; * for each; repeatable.",
        ),
        click.option(
            "--operation",
            "operations",
            metavar="NAME[,…]",
            multiple=True,
            callback=_operations,
            help="For example read, describe-configs or all; repeatable.",
        ),
        click.option("--prefixed", is_flag=True, help="The name is a prefix of the resources' names."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _principals(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> Sequence[str]:
    for text in given:
        try:
            parse_principal(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return _each_once(given)


def _operations(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> Sequence[Operation]:
    return _each_once([_parse(Operation, name) for text in given for name in text.split(",")])


@acl.command("list")
@_acl_options
@_resource_options
@json_option
@connection_options
def list_acls(
    principals: Sequence[str],
    hosts: tuple[str, ...],
    operations: Sequence[Operation],
    prefixed: bool,
    as_json: bool,
    bootstrap: str,
    **resources: bool | tuple[str, ...],
) -> None:
    """List ACLs; options restrict the list. A name selects literal and prefixed ACLs with this name."""
    pattern = PatternType.PREFIXED if prefixed else PatternType.ANY
    wanted = _filters(principals, hosts, operations, pattern, resources)
    _show(run_admin(bootstrap, AclAdmin, lambda admin: _selected(admin, wanted)), as_json)


@acl.command()
@click.argument("permission", type=click.Choice(["allow", "deny"]))
@_acl_options
@_resource_options
@json_option
@connection_options
def add(
    permission: str,
    principals: Sequence[str],
    hosts: tuple[str, ...],
    operations: Sequence[Operation],
    prefixed: bool,
    as_json: bool,
    bootstrap: str,
    **resources: bool | tuple[str, ...],
) -> None:
    """Allow or deny operations. A denial prevails over every allowance.

    Several principals, hosts, operations and resources make an ACL for each combination.
    """
    if not principals or not operations:
        raise click.UsageError("give --principal and --operation")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    allowed = Permission.ALLOW if permission == "allow" else Permission.DENY
    acls = [
        Acl(kind, name, _pattern_of(kind, pattern), principal, host, operation, allowed)
        for (kind, name), principal, host, operation in product(
            _chosen(resources), principals, _each_once(hosts) or [WILDCARD], operations
        )
    ]
    if not acls:
        raise click.UsageError("name a resource: --topic, --group, --transactional-id, --cluster …")
    run_admin(bootstrap, AclAdmin, lambda admin: admin.create_acls(acls))
    _show(acls, as_json)


@acl.command()
@_acl_options
@_resource_options
@click.option("--all", "everything", is_flag=True, help="Remove every ACL, if no other option is given.")
@yes_option
@json_option
@connection_options
def remove(
    principals: Sequence[str],
    hosts: tuple[str, ...],
    operations: Sequence[Operation],
    prefixed: bool,
    everything: bool,
    yes: bool,
    as_json: bool,
    bootstrap: str,
    **resources: bool | tuple[str, ...],
) -> None:
    """Remove the ACLs that the options select, and print them.

    As with Kafka's tool a name selects ACLs for exactly this name; with --prefixed, those for this prefix.
    """
    chosen = _chosen(resources)
    named = PatternType.LITERAL if chosen else PatternType.ANY
    wanted = _filters(principals, hosts, operations, PatternType.PREFIXED if prefixed else named, resources)
    if (wanted == [AclFilter()]) != everything:
        raise click.UsageError("say which ACLs to remove, or give --all")
    found = run_admin(bootstrap, AclAdmin, lambda admin: _selected(admin, wanted))
    if not found:
        raise click.ClickException(
            "no ACL is selected, and nothing was removed. `nilometer acl list` shows the ACLs."
        )
    confirm("Remove these ACLs?", [" ".join(_row(each)) for each in found], yes=yes)
    _show(run_admin(bootstrap, AclAdmin, lambda admin: admin.delete_acls(wanted)), as_json)


async def _selected(admin: AclAdmin, wanted: Sequence[AclFilter]) -> list[Acl]:
    return sorted({each for one in wanted for each in await admin.list_acls(one)})


def _chosen(resources: Mapping[str, bool | tuple[str, ...]]) -> list[tuple[ResourceType, str]]:
    chosen = [(ResourceType.CLUSTER, CLUSTER_NAME)] if resources["cluster"] else []
    for option, kind, _ in _RESOURCES:
        names = resources[option.removeprefix("--").replace("-", "_")]
        if isinstance(names, tuple):
            chosen += [(kind, name) for name in _each_once(names)]
    return chosen


def _filters(
    principals: Sequence[str],
    hosts: Sequence[str],
    operations: Sequence[Operation],
    pattern: PatternType,
    resources: Mapping[str, bool | tuple[str, ...]],
) -> list[AclFilter]:
    return [
        AclFilter(kind, name, _pattern_of(kind, pattern), principal, host, operation)
        for (kind, name), principal, host, operation in product(
            _chosen(resources) or [(ResourceType.ANY, None)],
            principals or [None],
            _each_once(hosts) or [None],
            operations or [Operation.ANY],
        )
    ]


def _pattern_of(kind: ResourceType, pattern: PatternType) -> PatternType:
    """The cluster has one name, which is no prefix."""
    return PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern


def _each_once(values: Sequence[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _parse(kind: type[E], text: str) -> E:
    found = {each.name: each for each in kind if each > 1}.get(text.strip().upper().replace("-", "_"))
    if found is None:
        names = ", ".join(each.name.lower().replace("_", "-") for each in kind if each > 1)
        raise click.UsageError(f"--{kind.__name__.lower()} is one of {names}, not {text!r}")
    return found


def _row(each: Acl) -> tuple[str, ...]:
    return (
        each.resource_type.name,
        each.resource_name,
        each.pattern_type.name,
        each.principal,
        each.host,
        each.operation.name,
        each.permission.name,
    )


def _show(acls: Sequence[Acl], as_json: bool) -> None:
    rows = [_row(each) for each in acls]
    if as_json:
        print_json({"acls": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]})
    else:
        print_table(_COLUMNS, rows)
