"""``nilometer rotate-secret``: creates a new secret with which the brokers authenticate each other."""

from __future__ import annotations

from pathlib import Path

import click

from nilometer.cli import commands
from nilometer.cli.cluster.metadata_commands import (
    coordination_config_option,
    coordination_option,
    data_dir_option,
    store_security,
    store_setting,
)
from nilometer.cli.cluster_options import json_option, print_json, run_async
from nilometer.coordination import CoordinationError, make_store, open_reader
from nilometer.coordination.zookeeper.security import ZooKeeperSecurity
from nilometer.runtime import Runtime


@commands.command("rotate-secret")
@data_dir_option
@coordination_option
@coordination_config_option
@json_option
def rotate_secret(
    data_dir: Path | None, coordination: str | None, coordination_config: Path | None, as_json: bool
) -> None:
    """Create a new secret that the brokers of a cluster authenticate each other with.

    Brokers read it within seconds, without a restart. The previous secret stays accepted until the next
    rotation. To exclude a process that may have read it, rotate twice, with half a minute in between.
    Connections that are open already stay open: restart the brokers one by one to close them.
    """
    setting, security = store_setting(data_dir, coordination), store_security(coordination_config)
    try:
        number = run_async(_rotate(setting, security))
    except CoordinationError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"current": number, "previous": number - 1})
        return
    click.echo(f"Secret {number} is current now; secret {number - 1} is accepted until the next rotation.")


async def _rotate(setting: str, security: ZooKeeperSecurity) -> int:
    from nilometer.broker.control.secret_keeper import rotate_secrets

    runtime = Runtime.system()
    reader = await open_reader(
        setting, runtime, security
    )  # raises if there is no store: none must be created here
    await reader.close()
    store = make_store(setting, runtime, local_folder="", zookeeper=security)
    await store.open()
    try:
        return (await rotate_secrets(store, runtime.entropy)).current.number
    finally:
        await store.close()
