"""``nilometer up --secure``: what it prepares before the brokers of a new cluster start."""

from __future__ import annotations

import click

from nilometer.broker.control.offline_changes import BrokersRun
from nilometer.cli.cluster_options import run_async
from nilometer.cluster.entries import BadEntry
from nilometer.coordination import CoordinationError
from nilometer.local.secure_cluster import SecureFolder
from nilometer.local.secure_users import write_users


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
