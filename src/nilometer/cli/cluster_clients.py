"""Makes clients of the cluster that ``--bootstrap-server`` names, by the settings of ``--command-config``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from nilometer.cli.cluster_options import COMMON_CONFIG, client_config, run_async
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.replica_survey import DEFAULT_TIMEOUT_MS, ReplicaSurvey
from nilometer.client.network.client import Client
from nilometer.client.settings import ClientSettings, client_security
from nilometer.runtime import Runtime

ADMIN_TIMEOUT_MS = 15_000
"""How long a request of an administrator is repeated."""
A = TypeVar("A")
T = TypeVar("T")


def admin_of(bootstrap: str) -> Admin:
    return Admin(Runtime.system(), client_config(bootstrap))


def run_admin(bootstrap: str, make: Callable[[Client, int], A], work: Callable[[A], Awaitable[T]]) -> T:
    """Run ``work`` with the administration that ``make`` returns."""

    async def main() -> T:
        async with admin_of(bootstrap) as admin:
            return await work(make(admin.client, ADMIN_TIMEOUT_MS))

    return run_async(main())


def run_with_admin(
    bootstrap: str, make: Callable[[Client, int], A], work: Callable[[Admin, A], Awaitable[T]]
) -> T:
    """Run ``work`` with an Admin and with what ``make`` returns, each with ``ADMIN_TIMEOUT_MS``."""

    async def main() -> T:
        config = {**client_config(bootstrap), "default.api.timeout.ms": str(ADMIN_TIMEOUT_MS)}
        async with Admin(Runtime.system(), config) as admin:
            return await work(admin, make(admin.client, ADMIN_TIMEOUT_MS))

    return run_async(main())


def survey_of(bootstrap: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> ReplicaSurvey:
    """``timeout_ms``: how long each broker gets to respond."""
    settings = ClientSettings(COMMON_CONFIG, client_config(bootstrap))
    return ReplicaSurvey(Runtime.system(), bootstrap.split(","), timeout_ms, client_security(settings))


async def say_if_hidden(admin: Admin, what: str) -> None:
    """Say that ACLs may be why a list is empty, except to a user who may change the cluster."""
    from nilometer.cluster.acl import Operation  # no other command needs it

    if not await admin.may(Operation.ALTER):
        click.echo(f"There is no {what} that this user may see: it needs DESCRIBE on a {what}.", err=True)
