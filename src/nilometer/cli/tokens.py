"""``nilometer token``: create, describe, renew and expire delegation tokens."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import run_admin
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    yes_option,
)
from nilometer.client.admin.security_admin import IssuedToken, TokenAdmin
from nilometer.config import parse_duration_ms
from nilometer.security.principal import Principal, parse_principal

COLUMNS = ("id", "owner", "requester", "renewers", "issued", "expires", "max")


@commands.group()
def token() -> None:
    """Create, describe, renew and expire delegation tokens (KIP-48).

    By a token a program logs in as its owner for a limited time, without the owner's password: with SCRAM,
    the token's id as the user, its HMAC as the password, and tokenauth="true" in sasl.jaas.config. Requests
    for tokens need a login by other means: see --command-config.
    """


class _PrincipalType(click.ParamType[Principal]):
    name = "principal"

    def convert(
        self, value: str | Principal, param: click.Parameter | None, ctx: click.Context | None
    ) -> Principal:
        try:
            return value if isinstance(value, Principal) else parse_principal(value)
        except ValueError:
            self.fail(f"{value!r} is not of the form User:NAME", param, ctx)


class _DurationType(click.ParamType[int]):
    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


PRINCIPAL, DURATION = _PrincipalType(), _DurationType()


@token.command()
@click.option(
    "--owner",
    type=PRINCIPAL,
    metavar="PRINCIPAL",
    help="The owner, as User:NAME: the right CREATE_TOKENS on the user is needed. [default: yourself]",
)
@click.option(
    "--renewer",
    "renewers",
    type=PRINCIPAL,
    multiple=True,
    metavar="PRINCIPAL",
    help="One who may renew and expire the token, too, as User:NAME; repeatable.",
)
@click.option(
    "--max-lifetime",
    type=DURATION,
    metavar="DURATION",
    help="The longest lifetime, whatever is renewed, as PT12H or P1D. [default, and at most: the brokers' "
    "delegation.token.max.lifetime.ms]",
)
@json_option
@connection_options
def create(
    owner: Principal | None,
    renewers: tuple[Principal, ...],
    max_lifetime: int | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Create a token, and print it with its HMAC, which is a password: keep it secret."""
    lifetime_ms = -1 if max_lifetime is None else max(1, max_lifetime)
    created = run_admin(
        bootstrap,
        TokenAdmin,
        lambda admin: admin.create(owner=owner, renewers=renewers, max_lifetime_ms=lifetime_ms),
    )
    if as_json:
        print_json(_fields(created, with_hmac=True))
        return
    print_table(COLUMNS, [_row(created)])
    click.echo(f"HMAC: {_password(created)}")


@token.command()
@click.argument("ids", nargs=-1, metavar="[ID…]")
@click.option(
    "--owner",
    "owners",
    type=PRINCIPAL,
    multiple=True,
    metavar="PRINCIPAL",
    help="Only tokens of which this principal is owner, requester or renewer; repeatable.",
)
@click.option("--show-hmac", is_flag=True, help="Print the HMACs, too: they are passwords.")
@json_option
@connection_options
def describe(
    ids: tuple[str, ...], owners: tuple[Principal, ...], show_hmac: bool, as_json: bool, bootstrap: str
) -> None:
    """Show tokens: those named, or all that you own, requested or may renew, or that ACLs let you see."""

    async def work(admin: TokenAdmin) -> list[IssuedToken]:
        found = await admin.describe(owners or None)
        return _named(found, ids) if ids else found

    tokens = run_admin(bootstrap, TokenAdmin, work)
    if as_json:
        print_json({"tokens": [_fields(each, with_hmac=show_hmac) for each in tokens]})
        return
    print_table(COLUMNS, [_row(each) for each in tokens])
    if show_hmac:
        for each in tokens:
            click.echo(f"HMAC of {each.id}: {_password(each)}")


@token.command()
@click.argument("token_id", metavar="ID")
@click.option(
    "--period",
    type=DURATION,
    metavar="DURATION",
    help="For how long from now, as PT12H. [default, and at most: the brokers' "
    "delegation.token.expiry.time.ms]",
)
@json_option
@connection_options
def renew(token_id: str, period: int | None, as_json: bool, bootstrap: str) -> None:
    """Renew a token that you own or are a renewer of, and print when it expires."""
    period_ms = -1 if period is None else max(1, period)

    async def work(admin: TokenAdmin) -> int:
        [found] = _named(await admin.describe(), [token_id])
        return await admin.renew(found.hmac, period_ms)

    _show_expiry(token_id, run_admin(bootstrap, TokenAdmin, work), as_json)


@token.command()
@click.argument("token_id", metavar="ID")
@click.option(
    "--after", type=DURATION, metavar="DURATION", help="How long from now, as PT1H. [default: remove it now]"
)
@yes_option
@json_option
@connection_options
def expire(token_id: str, after: int | None, yes: bool, as_json: bool, bootstrap: str) -> None:
    """Remove a token that you own or are a renewer of, or change when it expires; print when.

    Connections that logged in by it are closed.
    """
    period_ms = -1 if after is None else after

    async def look(admin: TokenAdmin) -> IssuedToken:
        [found] = _named(await admin.describe(), [token_id])
        return found

    found = run_admin(bootstrap, TokenAdmin, look)
    if after is None:
        confirm("Remove this token now?", [f"token {token_id} of {found.owner}"], yes=yes)
    expires_ms = run_admin(bootstrap, TokenAdmin, lambda admin: admin.expire(found.hmac, period_ms))
    _show_expiry(token_id, expires_ms, as_json)


def _named(tokens: Sequence[IssuedToken], ids: Sequence[str]) -> list[IssuedToken]:
    by_id = {each.id: each for each in tokens}
    for token_id in ids:
        if token_id not in by_id:
            raise click.ClickException(
                f"there is no token {token_id!r} that you may see\n"
                "`nilometer token describe` shows the others."
            )
    return [by_id[token_id] for token_id in dict.fromkeys(ids)]


def _show_expiry(token_id: str, expires_ms: int, as_json: bool) -> None:
    if as_json:
        print_json({"id": token_id, "expires_ms": expires_ms})
    else:
        click.echo(f"Token {token_id} expires at {_time(expires_ms)}.")


def _row(each: IssuedToken) -> tuple[object, ...]:
    times = map(_time, (each.issued_ms, each.expires_ms, each.max_ms))
    return (each.id, each.owner, each.requester, each.renewers, *times)


def _fields(each: IssuedToken, *, with_hmac: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": each.id,
        "owner": each.owner,
        "requester": each.requester,
        "renewers": list(each.renewers),
        "issued_ms": each.issued_ms,
        "expires_ms": each.expires_ms,
        "max_ms": each.max_ms,
    }
    return fields | {"hmac": _password(each)} if with_hmac else fields


def _password(each: IssuedToken) -> str:
    return base64.b64encode(each.hmac).decode()


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
