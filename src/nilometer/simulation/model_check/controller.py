"""The two controllers of the model check: a small one, and the product's own, which decides for one
partition.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from nilometer.cluster.controller.brokers import BrokerRegistration, decide_broker_up, decide_brokers_down
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.elections import ElectionType, decide_elect_leaders
from nilometer.cluster.controller.isr_changes import IsrChange, IsrMember, decide_alter_partitions
from nilometer.cluster.entries import ConfigSnapshot, ImageSnapshot, TopicSnapshot
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    BrokerFenced,
    BrokerInControlledShutdown,
    BrokerRegistered,
    BrokerUnregistered,
    ConfigResourceType,
    PartitionChanged,
)
from nilometer.cluster.states import Broker, PartitionState, broker_after
from nilometer.identifiers import (
    FIRST_LEADER_EPOCH,
    FIRST_PARTITION_EPOCH,
    NO_BROKER_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EntryNumber,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from nilometer.invariants import check
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse
from nilometer.replication.shell_interface import EligibleBrokers, Registration
from nilometer.wire.errors import ErrorCode

# The interface of a controller in the model check, and a small controller that implements it.
#
# :class:`Controller` is the interface that the model calls. :class:`SmallController` decides for one
# partition: election in AR order, AlterPartition fenced by leader epoch, partition epoch and broker epochs,
# eligible leader replicas and the last known leader (KIP-966). Another controller can be used through an
# adapter whose images are hashable. An image is the controller's whole state.
#
# It assumes that a broker that restarts knows whether it lost records (from a marker of a clean shutdown, or
# from proof that the machine was up all the time).

Image = TypeVar("Image")


class Controller(Protocol[Image]):
    """Decides without I/O: each ``on_`` method returns the image after an event. An image is hashable."""

    def first_image(self) -> Image:
        """Return the image with all brokers at broker epoch 0, all replicas in sync and broker 0 leading."""
        ...

    def registration(self, image: Image) -> Registration: ...

    def eligible(self, image: Image) -> EligibleBrokers:
        """Return the broker epoch of every broker that may be in the ISR."""
        ...

    def on_alter_partition(
        self, image: Image, request: AlterPartition
    ) -> tuple[Image, AlterPartitionResponse]: ...

    def on_broker_gone(self, image: Image, broker: int) -> Image:
        """Return the image after the session of ``broker`` has expired."""
        ...

    def on_broker_registered(self, image: Image, broker: int, broker_epoch: int, lost_nothing: bool) -> Image:
        """Return the image after ``broker`` registered as a new incarnation.

        The end of its last incarnation may not have been noticed. ``lost_nothing`` says that the broker can
        prove that its log is complete.
        """
        ...

    def on_leader_wanted(self, image: Image, broker: int) -> Image:
        """Return the image with ``broker`` as leader, though none failed; unchanged if it may not lead."""
        ...

    def on_stale_append(self, image: Image, decided: Image) -> Image:
        """Return the image after a deposed controller appended its decision to the metadata log.

        ``decided`` is the image after that decision on the deposed controller's older image.
        """
        ...


class SmallImage(msgspec.Struct, frozen=True):
    """Invariants: a leader is in the ISR; the ISR is never empty; no member of the ELR is in the ISR."""

    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    last_known_leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    broker_epochs: tuple[BrokerEpoch, ...]
    """By broker, the epoch of its latest incarnation."""
    live_brokers: tuple[bool, ...]


class SmallController:
    def __init__(self, brokers: int, min_insync_replicas: int) -> None:
        self.replicas = tuple(BrokerId(broker) for broker in range(brokers))
        self.min_isr = min(min_insync_replicas, brokers)

    def first_image(self) -> SmallImage:
        all_live = tuple(True for _ in self.replicas)
        return SmallImage(
            isr=self.replicas,
            elr=(),
            leader=self.replicas[0],
            last_known_leader=self.replicas[0],
            leader_epoch=FIRST_LEADER_EPOCH,
            partition_epoch=FIRST_PARTITION_EPOCH,
            broker_epochs=tuple(BrokerEpoch(0) for _ in self.replicas),
            live_brokers=all_live,
        )

    def registration(self, image: SmallImage) -> Registration:
        return Registration(
            replicas=self.replicas,
            isr=image.isr,
            leader=image.leader,
            leader_epoch=image.leader_epoch,
            partition_epoch=image.partition_epoch,
        )

    def eligible(self, image: SmallImage) -> EligibleBrokers:
        return {broker: image.broker_epochs[broker] for broker in self.replicas if image.live_brokers[broker]}

    # ── events ──────────────────────────────────────────────────────────────────────────────────
    def on_alter_partition(
        self, image: SmallImage, request: AlterPartition
    ) -> tuple[SmallImage, AlterPartitionResponse]:
        isr = tuple(broker for broker, _ in request.new_isr)
        error = self._refuse(image, request, isr)
        if error is not ErrorCode.none:
            return image, AlterPartitionResponse(error=error)
        if set(isr) != set(image.isr):
            image = self._next(image, isr=isr)
        answer = AlterPartitionResponse(
            leader_epoch=image.leader_epoch, partition_epoch=image.partition_epoch, isr=image.isr
        )
        return image, answer

    def on_broker_gone(self, image: SmallImage, broker: int) -> SmallImage:
        live_brokers = tuple(alive and member != broker for member, alive in enumerate(image.live_brokers))
        return self._settle(replace(image, live_brokers=live_brokers), gone=broker, forfeits=False)

    def on_broker_registered(
        self, image: SmallImage, broker: int, broker_epoch: int, lost_nothing: bool
    ) -> SmallImage:
        image = replace(
            image,
            broker_epochs=_with(image.broker_epochs, broker, broker_epoch),
            live_brokers=_with(image.live_brokers, broker, True),
        )
        return self._settle(image, gone=broker, forfeits=not lost_nothing)

    def on_leader_wanted(self, image: SmallImage, broker: int) -> SmallImage:
        if image.leader in (broker, NO_LEADER) or broker not in image.isr or not image.live_brokers[broker]:
            return image
        return self._next(image, leader=broker)

    def on_stale_append(self, image: SmallImage, decided: SmallImage) -> SmallImage:
        """Return ``image`` unchanged: every broker ignores an entry of an older controller epoch."""
        return image

    # ── decisions ───────────────────────────────────────────────────────────────────────────────
    def _refuse(self, image: SmallImage, request: AlterPartition, isr: tuple[int, ...]) -> ErrorCode:
        if (
            not image.live_brokers[request.leader]
            or image.broker_epochs[request.leader] != request.broker_epoch
        ):
            return ErrorCode.stale_broker_epoch
        if request.leader_epoch < image.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if request.leader_epoch > image.leader_epoch or request.partition_epoch > image.partition_epoch:
            return ErrorCode.not_controller
        if request.leader != image.leader or request.leader not in isr:
            return ErrorCode.invalid_request
        if request.partition_epoch < image.partition_epoch:
            return ErrorCode.none if set(isr) == set(image.isr) else ErrorCode.invalid_update_version
        for broker, broker_epoch in request.new_isr:
            if not image.live_brokers[broker] or image.broker_epochs[broker] != broker_epoch:
                return ErrorCode.ineligible_replica
        return ErrorCode.none

    def _settle(self, image: SmallImage, *, gone: int, forfeits: bool) -> SmallImage:
        """Return the image with ISR, ELR and leader after an incarnation of ``gone`` has ended.

        A new incarnation may have begun already: then ``gone`` is live. ``forfeits`` removes it from ISR and
        ELR, as it may have lost records.
        """
        keeps_place = image.live_brokers[gone] and not forfeits
        isr = tuple(member for member in image.isr if member != gone or keeps_place)
        elr = tuple(member for member in self._elr(image, isr) if not (member == gone and forfeits))
        leader = image.leader
        if leader in (gone, NO_LEADER):
            isr, elr, leader = self._elect(image, isr, elr)
        elif not isr:
            isr = image.isr  # the last member is never removed
        if (isr, elr, leader) == (image.isr, image.elr, image.leader) and leader != gone:
            return image
        return self._next(image, isr=isr, elr=elr, leader=leader, ended=gone)

    def _elect(
        self, image: SmallImage, isr: tuple[int, ...], elr: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Return (ISR, ELR, leader) with the first live member, in AR order, of the ISR, else of the ELR.

        If neither has a live member, there is no leader: the partition waits for one of them, as they miss no
        record. Only if both are empty is the last known leader elected, if it is live. So a replica that
        forfeited its place does not lead while one that misses nothing is known.
        """
        safe = (*isr, *elr)
        for group in (isr, elr):
            live_brokers = tuple(member for member in group if image.live_brokers[member])
            for candidate in self.replicas:
                if candidate in live_brokers:
                    new_isr = live_brokers if group is isr else (candidate,)
                    others = tuple(member for member in safe if member not in new_isr)
                    return new_isr, others if len(new_isr) < self.min_isr else (), candidate
        if isr or elr:
            return (isr, elr, NO_LEADER) if isr else (elr, (), NO_LEADER)
        if image.live_brokers[image.last_known_leader]:
            return (image.last_known_leader,), (), image.last_known_leader
        return (image.last_known_leader,), (), NO_LEADER

    def _elr(self, image: SmallImage, isr: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ELR for the new ``isr``: the earlier ISR and ELR members that are not in it.

        Empty if the ISR has min.insync.replicas members. Otherwise no record is committed, so the members of
        the ELR miss none.
        """
        if len(isr) >= self.min_isr:
            return ()
        return tuple(m for m in self.replicas if m in (*image.isr, *image.elr) and m not in isr)

    def _next(
        self,
        image: SmallImage,
        *,
        isr: tuple[int, ...] | None = None,
        elr: tuple[int, ...] | None = None,
        leader: int | None = None,
        ended: int = NO_LEADER,
    ) -> SmallImage:
        isr = image.isr if isr is None else isr
        leader = image.leader if leader is None else leader
        starts_epoch = leader != image.leader or leader == ended
        check(leader == NO_LEADER or leader in isr, "a leader is in the ISR", leader, isr)
        check(bool(isr), "an ISR is never empty", image)
        return replace(
            image,
            isr=tuple(sorted(isr)),
            elr=self._elr(image, isr) if elr is None else elr,
            leader=leader,
            last_known_leader=image.last_known_leader if leader == NO_LEADER else leader,
            leader_epoch=image.leader_epoch + starts_epoch,
            partition_epoch=image.partition_epoch + 1,
        )


_Item = TypeVar("_Item")


def _with(items: tuple[_Item, ...], index: int, item: _Item) -> tuple[_Item, ...]:
    return (*items[:index], item, *items[index + 1 :])


# The product's own controller as a controller of the model check, deciding for one partition.
#
# An image is the partition's state and the registered brokers. For a decision, a cluster image is made from
# them; the records of the decision are then applied to the two, by the same functions that apply them to a
# cluster image. The numbers of metadata entries are not modelled: a broker epoch is the number of the
# incarnation, which the model counts.

_TOPIC = "model"
_TOPIC_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
_PARTITION = TopicIdPartition(_TOPIC_ID, 0)


class ClusterView(NamedTuple):
    state: PartitionState
    brokers: tuple[Broker, ...]


class ClusterController:
    """A :class:`Controller` that decides as the product does.

    The only election without a failed leader is the preferred leader election.
    """

    def __init__(self, brokers: int, min_insync_replicas: int) -> None:
        self._brokers = tuple(BrokerId(broker) for broker in range(brokers))
        values = {"min.insync.replicas": str(min_insync_replicas)}
        self._config = ConfigSnapshot(ConfigResourceType.TOPIC, _TOPIC, values)

    def first_image(self) -> ClusterView:
        state = PartitionState(self._brokers, self._brokers, self._brokers[0])
        brokers = tuple(
            Broker(broker, _incarnation(broker, 0), BrokerEpoch(0), ()) for broker in self._brokers
        )
        return ClusterView(state, brokers)

    def registration(self, image: ClusterView) -> Registration:
        state = image.state
        return Registration(
            replicas=state.replicas,
            isr=state.isr,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
        )

    def eligible(self, image: ClusterView) -> EligibleBrokers:
        return {broker.id: broker.epoch for broker in image.brokers if broker.is_active}

    def on_alter_partition(
        self, image: ClusterView, request: AlterPartition
    ) -> tuple[ClusterView, AlterPartitionResponse]:
        members = tuple(IsrMember(BrokerId(id), BrokerEpoch(epoch)) for id, epoch in request.new_isr)
        asked = IsrChange(
            partition=_PARTITION,
            leader_epoch=LeaderEpoch(request.leader_epoch),
            partition_epoch=PartitionEpoch(request.partition_epoch),
            new_isr=members,
        )
        leader, epoch = BrokerId(request.leader), BrokerEpoch(request.broker_epoch)
        decision = decide_alter_partitions(self._cluster(image), leader, epoch, [asked])
        after, (altered,) = _folded(image, decision), decision.reply
        if altered.state is None:
            return after, AlterPartitionResponse(error=altered.outcome.error)
        return after, AlterPartitionResponse(
            error=ErrorCode.none,
            leader_epoch=altered.state.leader_epoch,
            partition_epoch=altered.state.partition_epoch,
            isr=altered.state.isr,
        )

    def on_broker_gone(self, image: ClusterView, broker: int) -> ClusterView:
        return _folded(image, decide_brokers_down(self._cluster(image), [BrokerId(broker)]))

    def on_broker_registered(
        self, image: ClusterView, broker: int, broker_epoch: int, lost_nothing: bool
    ) -> ClusterView:
        """Return the image after the broker's last incarnation has ended and the new one is registered."""
        gone = self.on_broker_gone(image, broker)
        registration = BrokerRegistration(
            broker_id=BrokerId(broker),
            incarnation=_incarnation(broker, broker_epoch),
            endpoints=(),
            previous_broker_epoch=gone.brokers[broker].epoch if lost_nothing else NO_BROKER_EPOCH,
            features=SUPPORTED_FEATURES,
        )
        decision = decide_broker_up(self._cluster(gone), registration)
        return _folded(gone, decision, EntryNumber(broker_epoch))

    def on_leader_wanted(self, image: ClusterView, broker: int) -> ClusterView:
        if broker != self._brokers[0]:
            return image
        decision = decide_elect_leaders(self._cluster(image), ElectionType.PREFERRED, [(_TOPIC, 0)])
        return _folded(image, decision)

    def on_stale_append(self, image: ClusterView, decided: ClusterView) -> ClusterView:
        """Return ``image`` unchanged: every broker ignores an entry of an older controller epoch."""
        return image

    def _cluster(self, image: ClusterView) -> ClusterImage:
        return ClusterImage.from_snapshot(
            ImageSnapshot(
                number=EntryNumber(0),
                cluster_id=None,
                controller_id=NO_LEADER,
                controller_incarnation=Incarnation(""),
                controller_epoch=ControllerEpoch(0),
                next_producer_id=0,
                unclean_elections=0,
                last_known_elections=0,
                brokers=image.brokers,
                topics=(TopicSnapshot(_TOPIC, _TOPIC_ID, (image.state,)),),
                configs=(self._config,),
            )
        )


def _folded(image: ClusterView, decision: Decision[object], number: EntryNumber | None = None) -> ClusterView:
    state, brokers = image
    for record in decision.records:
        match record:
            case PartitionChanged():
                state = state.after(record)
            case BrokerRegistered() | BrokerFenced() | BrokerInControlledShutdown() | BrokerUnregistered():
                at = record.broker_id
                after = broker_after(brokers[at], record, EntryNumber(0) if number is None else number)
                assert after is not None, "no broker is unregistered here"
                brokers = (*brokers[:at], after, *brokers[at + 1 :])
            case _:
                raise AssertionError(f"{record} is not about brokers or partitions")
    return ClusterView(state, brokers)


def _incarnation(broker: int, number: int) -> Incarnation:
    return Incarnation(f"{broker}.{number}")
