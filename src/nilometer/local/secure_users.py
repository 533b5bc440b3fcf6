"""The users of a closed local cluster, and what they may do, before the first broker starts."""

from __future__ import annotations

from nilometer.broker.settings.zookeeper_settings import security_from
from nilometer.cluster.acl import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from nilometer.local.first_users import NewUser, write_first_users
from nilometer.local.secure_cluster import BROKER_JAAS, CLIENT_JAAS, DEMO, MECHANISM, SecureFolder
from nilometer.security.jaas import parse_jaas

DEMO_PREFIX = "demo-"
"""What the names of topics, groups and transactional ids of the user ``demo`` begin with."""
SINK_PREFIX = "nilometer-sink"
"""What the transactional ids of Spark's sink begin with."""


async def write_users(security: SecureFolder, coordination: str, cluster_id: str | None = None) -> None:
    """Write the users and the ACLs to the coordination store, before the first broker starts.

    ``cluster_id`` is the id of the new cluster, if it is known. Raises as
    :func:`~nilometer.local.first_users.write_first_users`.
    """
    brokers = security.common_broker_settings()
    users = [
        _user(security.admin_settings()[CLIENT_JAAS]),
        _user(security.client_settings()[CLIENT_JAAS]),
        _user(brokers[BROKER_JAAS]),
    ]
    await write_first_users(
        coordination, users, acls=demo_acls(), zookeeper=security_from(brokers), cluster_id=cluster_id
    )


def demo_acls() -> tuple[Acl, ...]:
    """Return what the user ``demo`` may do: everything with what begins with ``demo-``."""
    resources = (
        (ResourceType.TOPIC, DEMO_PREFIX),
        (ResourceType.GROUP, DEMO_PREFIX),
        (ResourceType.TRANSACTIONAL_ID, DEMO_PREFIX),
        (ResourceType.TRANSACTIONAL_ID, SINK_PREFIX),
    )
    return tuple(
        Acl(kind, name, PatternType.PREFIXED, f"User:{DEMO}", WILDCARD, Operation.ALL, Permission.ALLOW)
        for kind, name in resources
    )


def _user(jaas: str) -> NewUser:
    options = parse_jaas(jaas).options
    return NewUser(name=options["username"], password=options["password"], mechanisms=(MECHANISM,))
