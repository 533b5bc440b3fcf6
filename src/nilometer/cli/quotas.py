"""``nilometer quota``: list, set and remove the quotas of clients."""

from __future__ import annotations

from collections.abc import Sequence

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import run_admin
from nilometer.cli.cluster_options import F, connection_options, json_option, print_json, print_table
from nilometer.client.admin.security_admin import EntityQuotas, QuotaAdmin
from nilometer.quotas import ADDRESS_KEYS, CLIENT_ID, CLIENT_KEYS, IP, USER, QuotaEntity, entity_of

KEYS = (*CLIENT_KEYS, *ADDRESS_KEYS)
DEFAULT = "<default>"
"""How a default entity is shown."""

_TYPES = (
    (USER, "user", "NAME", "user"),
    (CLIENT_ID, "client", "ID", "client id"),
    (IP, "ip", "ADDRESS", "address"),
)


@commands.group()
def quota() -> None:
    """List, set and remove quotas: how much users, client ids and addresses may ask of each broker.

    A client above its quota has to wait. Keys: producer_byte_rate and consumer_byte_rate (bytes per second),
    request_percentage (of one thread's time), controller_mutation_rate (partitions created or deleted per
    second); for addresses connection_creation_rate (connections per second).
    """


def _entity_options(command: F) -> F:
    for _, option, metavar, what in reversed(_TYPES):
        command = click.option(
            f"--default-{option}", is_flag=True, help=f"Each {what} that has no quota of its own."
        )(command)
        command = click.option(f"--{option}", metavar=metavar, help=f"The {what}.")(command)
    return command


@quota.command("list")
@_entity_options
@json_option
@connection_options
def list_quotas(as_json: bool, bootstrap: str, **names: str | bool | None) -> None:
    """List quotas: all, or those of the entities with the given names."""
    entity = _entity(names)
    _show(run_admin(bootstrap, QuotaAdmin, lambda admin: admin.list_quotas(entity)), as_json)


@quota.command("set")
@click.argument("quotas", nargs=-1, required=True, metavar="KEY=VALUE…")
@_entity_options
@json_option
@connection_options
def set_quotas(quotas: tuple[str, ...], as_json: bool, bootstrap: str, **names: str | bool | None) -> None:
    """Set quotas of a user, a client id, both together, or an address. It takes effect at once."""
    entity = _named(names)
    values: dict[str, float | None] = {}
    for key, value in map(_parse, quotas):
        if key in values:
            raise click.UsageError(f"{key} is given twice, and has one value")
        values[key] = value

    async def work(admin: QuotaAdmin) -> list[EntityQuotas]:
        await admin.alter(entity, values)
        return await admin.list_quotas(entity, exactly=True)

    _show(run_admin(bootstrap, QuotaAdmin, work), as_json)


@quota.command()
@click.argument("keys", nargs=-1, metavar="[KEY…]")
@_entity_options
@json_option
@connection_options
def remove(keys: tuple[str, ...], as_json: bool, bootstrap: str, **names: str | bool | None) -> None:
    """Remove quotas of a user, a client id, both together, or an address, and print what was removed.

    Without a KEY all its quotas are removed.
    """
    entity = _named(names)
    for key in keys:
        _check_key(key)

    async def work(admin: QuotaAdmin) -> list[EntityQuotas]:
        known = await admin.list_quotas(entity, exactly=True)
        values = {key: value for each in known for key, value in each.values.items()}
        missing = [key for key in keys if key not in values]
        if missing or not values:
            raise click.ClickException(
                f"{_shown(entity)} has no {', '.join(missing) or 'quota'}. Nothing was removed.\n"
                "`nilometer quota list` shows the quotas."
            )
        removed = {key: value for key, value in values.items() if not keys or key in keys}
        await admin.alter(entity, dict.fromkeys(removed))
        return [EntityQuotas(entity, removed)]

    _show(run_admin(bootstrap, QuotaAdmin, work), as_json)


def _entity(names: dict[str, str | bool | None]) -> QuotaEntity:
    """Return the entity that the options name, or part of one. Raises UsageError."""
    found: dict[str, str | None] = {}
    for kind, option, _, _ in _TYPES:
        name, is_default = names[option], names[f"default_{option}"]
        if name is not None and is_default:
            raise click.UsageError(f"give --{option} or --default-{option}, not both")
        if name == "":
            raise click.UsageError(f"--{option} is empty")
        if isinstance(name, str):
            found[kind] = name
        elif is_default:
            found[kind] = None
    if IP in found and len(found) > 1:
        raise click.UsageError("an address has quotas of its own: give no user or client id with it")
    return entity_of(found)


def _named(names: dict[str, str | bool | None]) -> QuotaEntity:
    entity = _entity(names)
    if not entity:
        raise click.UsageError("say whose quota: --user, --client, --ip, or --default-user and so on")
    return entity


def _parse(text: str) -> tuple[str, float]:
    key, separator, value = text.partition("=")
    _check_key(key)
    try:
        return key, float(value)
    except ValueError:
        shown = f"{value!r}" if separator else "nothing"
        raise click.UsageError(f"{key} is a number, as in {key}=1000, not {shown}") from None


def _check_key(key: str) -> None:
    if key not in KEYS:
        raise click.UsageError(f"{key!r} is not a quota: use {', '.join(KEYS)}")


def _shown(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in reversed(entity))


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _show(found: Sequence[EntityQuotas], as_json: bool) -> None:
    if as_json:
        shown = [
            {
                "entity": dict(each.entity),
                "quotas": {key: _number(value) for key, value in sorted(each.values.items())},
            }
            for each in found
        ]
        print_json({"quotas": shown})
        return
    rows = [
        (_shown(each.entity), key, str(_number(value)))
        for each in found
        for key, value in sorted(each.values.items())
    ]
    print_table(("entity", "quota", "value"), rows)
