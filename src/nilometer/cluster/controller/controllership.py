"""How a broker becomes controller, and how a new controller reconciles the metadata.

There are four steps (K-1). The coordination store gives ``/controller`` to a new holder. That broker reads
the metadata log to its end. It appends the entry of :func:`controllership_entry`, and is controller once it
has applied the entry and the entry was accepted. It then updates the image to the live sessions
(:func:`broker_events`, decided one after the other) and completes interrupted decisions of the previous
controller (:func:`decide_repair`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from nilometer.cluster.controller.brokers import BrokerRegistration
from nilometer.cluster.controller.configs import config_units
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.features import check_format
from nilometer.cluster.controller.partition_change import PartitionDraft, RequestedChange
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import Controllership, Entry, sign
from nilometer.cluster.features import LEVELS_OF_NEW_CLUSTERS
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    ClusterCreated,
    ConfigResourceType,
    ControllerElected,
    FeatureLevelChanged,
    Record,
)
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import (
    NO_LEADER,
    BrokerId,
    ControllerEpoch,
    Incarnation,
    TopicIdPartition,
    uuid_to_text,
)
from nilometer.runtime import Entropy


class BrokersDown(msgspec.Struct, frozen=True):
    broker_ids: tuple[BrokerId, ...]


class BrokerUp(msgspec.Struct, frozen=True):
    registration: BrokerRegistration


BrokerEvent = BrokersDown | BrokerUp


def controllership_entry(
    image: ClusterImage,
    controller_id: BrokerId,
    incarnation: Incarnation,
    chance: Entropy,
    cluster_id: str | None = None,
) -> Entry:
    """Return the entry that starts the next controller's term; the first one of all creates the cluster.

    ``cluster_id`` is the new cluster's id if the coordination store has one already.
    """
    controllership = Controllership(controller_id, incarnation, ControllerEpoch(image.controller_epoch + 1))
    records: list[Record] = [
        ControllerElected(
            controller_id=controller_id,
            incarnation=incarnation,
            controller_epoch=controllership.controller_epoch,
        )
    ]
    if image.cluster_id is None:
        records.append(ClusterCreated(cluster_id=cluster_id or uuid_to_text(chance.uuid())))
        records.extend(
            FeatureLevelChanged(name=name, level=level) for name, level in LEVELS_OF_NEW_CLUSTERS.items()
        )
    return sign(records, controllership)


def broker_events(image: ClusterImage, sessions: Iterable[BrokerRegistration]) -> tuple[BrokerEvent, ...]:
    """Return the events that update the image to the live sessions: all ended ones, then all new ones.

    A restarted broker is in both.
    """
    living = {session.broker_id: session for session in sessions}
    down = tuple(
        broker.id
        for broker in image.live_brokers()
        if broker.id not in living or living[broker.id].incarnation != broker.incarnation
    )
    up = [
        BrokerUp(session)
        for broker_id, session in sorted(living.items())
        if broker_id in down or _is_new(image, session)
    ]
    return (*((BrokersDown(down),) if down else ()), *up)


def _is_new(image: ClusterImage, session: BrokerRegistration) -> bool:
    broker = image.broker(session.broker_id)
    return broker is None or broker.fenced


def decide_cluster_defaults(image: ClusterImage, defaults: Mapping[str, str]) -> Decision[None]:
    """Decide that the cluster has the controller's values of the settings that must be equal on all brokers.

    ``defaults``: the controller's values, by key.
    """
    resource = ConfigResource(ConfigResourceType.CLUSTER, "")
    present = image.config(*resource)
    changes: dict[str, str | None] = {
        key: defaults.get(key)
        for key in sorted({*present, *defaults})
        if present.get(key) != defaults.get(key)
    }
    return Decision(tuple(config_units(image, {resource: changes})), None)


def decide_repair(image: ClusterImage) -> Decision[None]:
    """Complete the interrupted decisions of an earlier controller; no records if there are none.

    Afterwards every leader and ISR member is eligible, and every partition that can have a leader has one.
    """
    draft = PartitionDraft(image)
    doubtful: dict[TopicIdPartition, PartitionState] = {}
    for broker in image.brokers():
        if not broker.is_active:
            doubtful.update(
                (key, state) for key, state in image.partitions_on(broker.id) if broker.id in state.isr
            )
    doubtful.update(image.leaderless_partitions())
    for key in doubtful:
        draft.change(key, draft.with_election_policy(key, RequestedChange()), may_lead=image.is_active)
    return Decision(draft.take_units(), None)


# Changes of the metadata while no broker runs: a cluster's first users, or a lost administrator's password.
#
# A tool makes the decision that a controller would make, as a controller without a broker: its entry starts a
# term of its own, so that one of an earlier controller that still arrives is ignored. The next broker becomes
# controller as always.

R = TypeVar("R")
OFFLINE = Incarnation("offline")


def offline_entry(
    image: ClusterImage, cluster_id: str, chance: Entropy, decide: Callable[[ClusterImage], Decision[R]]
) -> tuple[Entry, R]:
    """Return the entry of an offline change, and the reply of its decision.

    In an empty log the entry creates the cluster, with ``cluster_id`` and the features of this version.
    Raises Refusal if the log may have to be read by a version that does not know the records.
    """
    first = controllership_entry(image, NO_LEADER, OFFLINE, chance, cluster_id)
    decision = decide(image)
    records = [*first.records, *(record for unit in decision.units for record in unit)]
    entry = sign(records, first.controllership)
    if image.cluster_id is not None:
        check_format(image, entry.version)
    return entry, decision.reply
