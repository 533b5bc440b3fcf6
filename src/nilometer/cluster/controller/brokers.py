"""What the controller decides for brokers: registering, fencing and unregistering them, and the blocks of
producer ids that they get.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal, Steps, Stepwise
from nilometer.cluster.controller.partition_change import PartitionDraft, RequestedChange
from nilometer.cluster.entries import Unit
from nilometer.cluster.features import unsupported_feature
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    BrokerFenced,
    BrokerInControlledShutdown,
    BrokerRegistered,
    BrokerUnregistered,
    Endpoint,
    ProducerIdsAllocated,
    SupportedFeature,
)
from nilometer.cluster.states import Broker
from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    Incarnation,
    TopicId,
    TopicIdPartition,
)
from nilometer.wire.errors import ErrorCode

# Registering, fencing and unregistering brokers.
#
# The records of each decision are in an order that may be interrupted at any point: the next controller
# completes the work (:func:`nilometer.cluster.controller.controllership.decide_repair`), since
#
# - *down*: the broker is fenced first, so no leader can add it to an ISR while its partitions change;
# - *up*: after an unclean restart the removals from ISRs are written **before** the registration: if they are
#   interrupted, the broker is not registered yet, and the same decision is made again;
# - *unregister*: the registration is removed last.
#
# A restart of a broker is two events, down and up; the second is decided on the image after the first.

# A request from an earlier incarnation of a broker is rejected (KIP-380). An *incarnation* is one session of
# a broker process; each gets a broker epoch when it registers.


def check_broker_epoch(image: ClusterImage, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
    """Raise Refusal: STALE_BROKER_EPOCH for an earlier broker epoch or a fenced broker, NOT_CONTROLLER for
    a later epoch than the image has.

    A later epoch means that the broker has read further in the metadata log: this controller is outdated, and
    the broker must find the current one (KAFKA-9839).
    """
    broker = image.broker(broker_id)
    if broker is None:
        raise Refusal(
            ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered"
        )
    if broker_epoch > broker.epoch:
        raise Refusal(
            ErrorCode.not_controller,
            f"Broker {broker_id} is registered with epoch {broker.epoch} here, not yet with {broker_epoch}",
        )
    if broker_epoch < broker.epoch or broker.fenced:
        raise Refusal(
            ErrorCode.stale_broker_epoch,
            f"Expected broker epoch {broker.epoch} of broker {broker_id}, but got {broker_epoch}"
            + (" of a fenced incarnation" if broker.fenced else ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """The data that a broker registers with; it is stored with its session in the coordination store."""

    broker_id: BrokerId
    incarnation: Incarnation
    endpoints: tuple[Endpoint, ...]
    cluster_id: str | None = None
    """The cluster id in the log directories' ``meta.properties``; None if they are new."""
    rack: str | None = None
    log_dirs: tuple[str, ...] = ()
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """The broker epoch of the previous incarnation if that was cleanly shut down, so lost no records;
    else -1."""
    failed_dirs: int = 0
    """How many of its log directories the broker cannot use because they failed, perhaps temporarily."""
    offline: Mapping[TopicId, tuple[int, ...]] = field(default_factory=dict[TopicId, tuple[int, ...]])
    """Partitions, by topic, whose replica this broker cannot use because its log directory failed."""
    features: tuple[SupportedFeature, ...] = ()
    """The features that the broker supports, by name."""


class ShutdownProgress(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    leaderships: int = 0
    """How many partitions the broker led at the time of the request."""


def check_registration(image: ClusterImage, registration: BrokerRegistration) -> Outcome:
    """Check whether this broker may register in this cluster; return OK or an error.

    The broker also calls this itself before it opens a session. Its earlier incarnation may still be
    registered then: the coordination store waits for the end of that session.
    """
    if registration.cluster_id is not None and image.cluster_id not in (None, registration.cluster_id):
        return Outcome(
            ErrorCode.inconsistent_cluster_id,
            f"The data of broker {registration.broker_id} belong to cluster {registration.cluster_id}, "
            f"but this is cluster {image.cluster_id}",
        )
    if (feature := unsupported_feature(image.finalized_features, registration.features)) is not None:
        return Outcome(
            ErrorCode.unsupported_version,
            f"Broker {registration.broker_id} does not support level {image.feature_level(feature.name)} of "
            f"{feature.name}, which is finalized in this cluster: start a version that does, or downgrade "
            "the feature first",
        )
    if len(set(registration.log_dirs)) != len(registration.log_dirs):
        return Outcome(ErrorCode.invalid_registration, "Duplicate directory ID in registration")
    for broker in image.brokers():
        shared = set(broker.log_dirs) & set(registration.log_dirs)
        if shared and broker.id != registration.broker_id:
            return Outcome(
                ErrorCode.invalid_registration,
                f"Broker {broker.id} is already registered with directory {min(shared)}",
            )
    return OK


@Stepwise
def decide_broker_up(image: ClusterImage, registration: BrokerRegistration) -> Steps[Outcome]:
    """Register a broker whose session has started. No records if this incarnation is registered already."""
    outcome = check_registration(image, registration)
    known = image.broker(registration.broker_id)
    if not outcome.ok:
        return Decision((), outcome)
    if known is not None and not known.fenced:
        if known.incarnation == registration.incarnation:
            return Decision((), OK)
        duplicate = f"Another broker is registered with id {known.id}"
        return Decision((), Outcome(ErrorCode.duplicate_broker_registration, duplicate))
    broker_id = registration.broker_id
    draft = PartitionDraft(image)
    if known is not None:
        yield from _forfeit(draft, known, registration)
        yield from _note_offline(draft, registration)
    record = BrokerRegistered(
        broker_id=broker_id,
        incarnation=registration.incarnation,
        endpoints=registration.endpoints,
        rack=registration.rack,
        log_dirs=_log_dirs(known, registration),
        previous_broker_epoch=registration.previous_broker_epoch,
        features=registration.features,
    )
    before = draft.take_units()
    for key, state in draft.leaderless_partitions():
        if broker_id in state.replicas:
            draft.change(
                key,
                draft.with_election_policy(key, RequestedChange()),
                may_lead=lambda r: r == broker_id or image.is_active(r),
            )
            yield 1
    return Decision((*before, (record,), *draft.take_units()), OK)


@Stepwise
def decide_brokers_down(image: ClusterImage, broker_ids: Collection[BrokerId]) -> Steps[None]:
    """Fence the brokers whose sessions have ended, and elect other leaders for their partitions.

    Brokers whose sessions ended together are decided together: none of them is elected leader in between,
    and if a whole ISR is down its leader is stored as the last known leader.
    """
    gone = [
        broker for b in sorted(broker_ids) if (broker := image.broker(b)) is not None and not broker.fenced
    ]
    fenced: Unit = tuple(BrokerFenced(broker_id=b.id, broker_epoch=b.epoch) for b in gone)
    if not fenced:
        return Decision((), None)
    changed = yield from _without(image, [broker.id for broker in gone])
    return Decision((fenced, *changed), None)


@Stepwise
def decide_controlled_shutdown(
    image: ClusterImage, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> Steps[ShutdownProgress]:
    """Start the controlled shutdown of a broker: its leaderships move, and it leaves every ISR.

    The broker may stop as soon as it has applied the entries of this decision. A repeated request has no
    records.
    """
    try:
        check_broker_epoch(image, broker_id, broker_epoch)
    except Refusal as refusal:
        return Decision((), ShutdownProgress(outcome=refusal.outcome))
    known = image.broker(broker_id)
    announced: list[Unit] = []
    if known is not None and not known.in_controlled_shutdown:
        announced.append((BrokerInControlledShutdown(broker_id=broker_id, broker_epoch=broker_epoch),))
    led = sum(state.leader == broker_id for _, state in image.partitions_on(broker_id))
    units = (*announced, *(yield from _without(image, [broker_id])))
    return Decision(units, ShutdownProgress(outcome=OK, leaderships=led))


@Stepwise
def decide_unregister_broker(image: ClusterImage, broker_id: BrokerId) -> Steps[Outcome]:
    """Unregister a broker that will not return: remove it from the ISRs, ELRs and leaderships first."""
    known = image.broker(broker_id)
    if known is None:
        return Decision(
            (),
            Outcome(ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered"),
        )
    units: list[Unit] = []
    if not known.fenced:
        units.append((BrokerFenced(broker_id=broker_id, broker_epoch=known.epoch),))
    draft = PartitionDraft(image)
    for key, _ in image.partitions_on(broker_id):
        wanted = draft.with_election_policy(key, RequestedChange(lost=(broker_id,)))
        draft.change(key, wanted, may_lead=lambda r: r != broker_id and image.is_active(r))
        yield 1
    units.extend(draft.take_units())
    units.append((BrokerUnregistered(broker_id=broker_id, broker_epoch=known.epoch),))
    return Decision(tuple(units), OK)


def _forfeit(
    draft: PartitionDraft, known: Broker, registration: BrokerRegistration
) -> Generator[int, None, None]:
    """Remove the broker from ISRs and ELRs, unless its previous incarnation certainly lost no records."""
    disk_lost = not set(known.log_dirs) <= set(_log_dirs(known, registration))
    if registration.previous_broker_epoch == known.epoch and not disk_lost:
        return
    which = (registration.broker_id,)
    wanted = RequestedChange(lost=which) if disk_lost else RequestedChange(forfeited=which)
    for key, state in draft.image.partitions_on(registration.broker_id):
        trusted = (*state.isr, *state.elr, state.last_known_leader)
        if registration.broker_id in trusted:
            draft.change(
                key,
                draft.with_election_policy(key, wanted),
                may_lead=lambda r: r != registration.broker_id and draft.image.is_active(r),
            )
        yield 1


def _log_dirs(known: Broker | None, registration: BrokerRegistration) -> tuple[str, ...]:
    """Return the directories in use and those that failed.

    Without the failed ones a later start could not detect that a disk was replaced by an empty one.
    """
    failed = known.log_dirs if known is not None and registration.failed_dirs else ()
    return tuple(dict.fromkeys((*registration.log_dirs, *failed)))


def _note_offline(draft: PartitionDraft, registration: BrokerRegistration) -> Generator[int, None, None]:
    """Mark the replicas that the broker cannot use as offline, and all its others as online.

    A replica that was offline may have lost records: it returns outside the ISR, and catches up.
    """
    broker_id = registration.broker_id
    goes_offline = RequestedChange(offline=(broker_id,))
    comes_back = RequestedChange(online=(broker_id,), forfeited=(broker_id,))
    for key, state in draft.image.partitions_on(broker_id):
        is_offline = key.partition in registration.offline.get(key.topic_id, ())
        if is_offline != (broker_id in state.offline):
            draft.change(
                key,
                draft.with_election_policy(key, goes_offline if is_offline else comes_back),
                may_lead=lambda r: r != broker_id and draft.image.is_active(r),
            )
        yield 1


def _without(image: ClusterImage, broker_ids: Sequence[BrokerId]) -> Generator[int, None, tuple[Unit, ...]]:
    """Return records that remove the brokers from every ISR and every leadership."""
    draft = PartitionDraft(image)
    affected: dict[TopicIdPartition, None] = {}
    for broker_id in broker_ids:
        affected.update(
            (key, None) for key, state in image.partitions_on(broker_id) if broker_id in state.isr
        )
    for key in affected:
        draft.change(
            key,
            draft.with_election_policy(key, RequestedChange()),
            may_lead=lambda r: r not in broker_ids and image.is_active(r),
        )
        yield 1
    return draft.take_units()


# Allocating producer ids to brokers in blocks. No id is allocated twice, also not by another controller.

PRODUCER_ID_BLOCK_SIZE = 1000
_PRODUCER_ID_MAX = (1 << 63) - 1


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """The ids ``first`` to ``first + count - 1``."""

    outcome: Outcome
    first: int = -1
    count: int = 0


def decide_allocate_producer_ids(
    image: ClusterImage, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> Decision[ProducerIdBlock]:
    try:
        check_broker_epoch(image, broker_id, broker_epoch)
        first = image.next_producer_id
        if first > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
            raise Refusal(ErrorCode.unknown_server_error, "All producer ids have been allocated.")
    except Refusal as refusal:
        return Decision((), ProducerIdBlock(refusal.outcome))
    allocated = ProducerIdsAllocated(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    return Decision(((allocated,),), ProducerIdBlock(OK, first, PRODUCER_ID_BLOCK_SIZE))
