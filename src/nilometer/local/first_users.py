"""The users and ACLs that a cluster has before its first broker starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from nilometer.broker.control.offline_changes import change_offline
from nilometer.cluster.acl import Acl
from nilometer.cluster.controller.acls import decide_create_acls
from nilometer.cluster.controller.credentials import ScramUpsertion, decide_alter_scram_credentials
from nilometer.cluster.controller.decision import Decision, Outcome, Refusal
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.coordination import make_store
from nilometer.coordination.zookeeper.security import OPEN, ZooKeeperSecurity
from nilometer.runtime import Entropy, Runtime
from nilometer.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism, salt_of, salted_password


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A user of SCRAM, whose password is set for each of ``mechanisms``."""

    name: str
    password: str = field(repr=False)
    mechanisms: tuple[ScramMechanism, ...] = (ScramMechanism.SHA_512,)
    iterations: int = ITERATIONS_MIN


async def write_first_users(
    coordination: str,
    users: Sequence[NewUser],
    *,
    acls: Sequence[Acl] = (),
    zookeeper: ZooKeeperSecurity = OPEN,
    cluster_id: str | None = None,
) -> None:
    """Set passwords and create ACLs in a store that no broker uses; create the store if it does not exist.

    ``coordination`` is the brokers' ``nilometer.coordination``, ``cluster_id`` the id of a new cluster.
    Raises BrokersRun, Refusal, BadEntry, CoordinationError.
    """
    runtime = Runtime.system()
    decide = _decision(users, acls, runtime.entropy)
    store = make_store(coordination, runtime, local_folder="", cluster_id=cluster_id, zookeeper=zookeeper)
    await store.open()
    try:
        await change_offline(store, runtime.entropy, decide)
    finally:
        await store.close()


def _decision(
    users: Sequence[NewUser], acls: Sequence[Acl], chance: Entropy
) -> Callable[[ClusterImage], Decision[None]]:
    upsertions = [_upsertion(user, mechanism, chance) for user in users for mechanism in user.mechanisms]

    def decide(image: ClusterImage) -> Decision[None]:
        units: list[Unit] = []
        for upsertion in upsertions:  # one by one: a request alters a user once
            credential = decide_alter_scram_credentials(image, [upsertion])
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
