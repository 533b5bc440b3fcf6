"""The users and ACLs that a cluster has before its first broker starts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from nilometer.broker.offline_metadata import change_offline, nodes_store
from nilometer.broker.settings.quorum import QuorumSettings
from nilometer.broker.settings.zookeeper_settings import security_from
from nilometer.cluster.acl import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.controller.access import (
    ScramUpsertion,
    decide_alter_scram_credentials,
    decide_create_acls,
)
from nilometer.cluster.controller.decision import Decision, Outcome, Refusal
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.factory import make_store
from nilometer.coordination.store import CoordinationStore
from nilometer.coordination.zookeeper.connect import OPEN, ZooKeeperSecurity
from nilometer.local.secure_cluster import BROKER_JAAS, CLIENT_JAAS, DEMO, MECHANISM, SecureFolder
from nilometer.runtime import Entropy, Runtime
from nilometer.security.sasl import parse_jaas
from nilometer.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism, salt_of, salted_password
from nilometer.steps import at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A user of SCRAM, whose password is set for each of ``mechanisms``."""

    name: str
    password: str = field(repr=False)
    mechanisms: tuple[ScramMechanism, ...] = (ScramMechanism.SHA_512,)
    iterations: int = ITERATIONS_MIN


@asynccontextmanager
async def unused_store(
    coordination: str, zookeeper: ZooKeeperSecurity = OPEN, cluster_id: str | None = None
) -> AsyncGenerator[CoordinationStore]:
    """Open the store that is the brokers' ``nilometer.coordination``; it is created if it does not exist.

    ``cluster_id``: the id of a new cluster. Raises CoordinationError.
    """
    store = make_store(
        coordination, Runtime.system(), local_folder="", cluster_id=cluster_id, zookeeper=zookeeper
    )
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def write_first_users(
    opening: AbstractAsyncContextManager[CoordinationStore],
    users: Sequence[NewUser],
    *,
    acls: Sequence[Acl] = (),
) -> None:
    """Set passwords and create ACLs in a store that no broker uses.

    Raises BrokersRun, Refusal, BadEntry, CoordinationError.
    """
    entropy = Runtime.system().entropy
    async with opening as store:
        await change_offline(store, entropy, _decision(users, acls, entropy))


def _decision(
    users: Sequence[NewUser], acls: Sequence[Acl], chance: Entropy
) -> Callable[[ClusterImage], Decision[None]]:
    upsertions = [_upsertion(user, mechanism, chance) for user in users for mechanism in user.mechanisms]

    def decide(image: ClusterImage) -> Decision[None]:
        units: list[Unit] = []
        for upsertion in upsertions:  # one by one: a request alters a user once
            credential = at_once(decide_alter_scram_credentials(image, [upsertion]))
            _check(credential.reply.values())
            units += credential.units
        created = decide_create_acls(image, acls, chance=chance)
        _check(created.reply)
        return Decision((*units, *created.units), None)

    return decide


def _upsertion(user: NewUser, mechanism: ScramMechanism, chance: Entropy) -> ScramUpsertion:
    salt = salt_of(chance.bytes(SALT_BYTES))
    salted = salted_password(mechanism, user.password, salt, user.iterations)
    return ScramUpsertion(user.name, mechanism.number, user.iterations, salt, salted)


def _check(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        if not outcome.ok:
            raise Refusal(outcome.error, outcome.message or "")


# The users of a closed local cluster, and what they may do, before the first broker starts.

DEMO_PREFIX = "demo-"
"""What the names of topics, groups and transactional ids of the user ``demo`` begin with."""
SINK_PREFIX = "nilometer-sink"
"""What the transactional ids of Spark's sink begin with."""


async def write_users(
    security: SecureFolder,
    coordination: str,
    cluster_id: str | None = None,
    *,
    quorum: Sequence[QuorumSettings] = (),
) -> None:
    """Write the users and the ACLs to the coordination store, before the first broker starts.

    ``cluster_id`` is the id of the new cluster, if it is known. ``quorum``: the voters, if the store is their
    metadata quorum. Raises as :func:`write_first_users`, and as
    :func:`~nilometer.broker.offline_metadata.nodes_store`.
    """
    brokers = security.common_broker_settings()
    users = [
        _user(security.admin_settings()[CLIENT_JAAS]),
        _user(security.client_settings()[CLIENT_JAAS]),
        _user(brokers[BROKER_JAAS]),
    ]
    opening: AbstractAsyncContextManager[CoordinationStore]
    if quorum:
        opening = nodes_store(quorum, Runtime.system(), is_new=True)
    else:
        opening = unused_store(coordination, security_from(brokers), cluster_id)
    await write_first_users(opening, users, acls=demo_acls())


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
