"""The users of a cluster before its first broker starts: ``user add --offline`` and ``up --secure``.

Both write to a coordination store that no broker uses; it is created if it does not exist.
"""

from __future__ import annotations

from pathlib import Path

import click

from nilometer.broker.control.offline_changes import BrokersRun
from nilometer.cli.cluster_options import DEFAULT_DATA_DIR, run_async
from nilometer.cli.metadata import store_security, store_setting
from nilometer.cluster.entries import BadEntry
from nilometer.coordination.store import CoordinationError
from nilometer.local.first_users import NewUser, write_first_users, write_users
from nilometer.local.local_cluster import LocalCluster
from nilometer.local.secure_cluster import SecureFolder


def add_offline(
    user: NewUser, data_dir: Path | None, coordination: str | None, coordination_config: Path | None
) -> None:
    """Add a user, or change its password, in a coordination store that no broker uses.

    The store is created if it does not exist. Raises ClickException, KafkaError.
    """
    security = store_security(coordination_config)
    setting = _setting(data_dir, coordination)
    try:
        run_async(write_first_users(setting, [user], zookeeper=security))
    except BrokersRun as error:
        raise click.ClickException(f"{error}. Use --bootstrap-server instead of --offline") from None
    except (CoordinationError, BadEntry) as error:
        raise click.ClickException(str(error)) from None


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


def create_secure(security: SecureFolder, coordination: str) -> None:
    """Create keys, users and ACLs of a cluster that has no broker yet. Raises ClickException.

    Repeated after a failure, it uses the keys and passwords that it made.
    """
    security.create(zookeeper=coordination.startswith("zookeeper://"))
    try:
        run_async(write_users(security, coordination))
    except BrokersRun as error:
        raise click.ClickException(f"{error}: --secure creates a cluster of its own") from None
    except (CoordinationError, BadEntry) as error:
        raise click.ClickException(str(error)) from None
