"""The product's own controller as a controller of the model check, deciding for one partition.

An image is the partition's state and the registered brokers. For a decision, a cluster image is made from
them; the records of the decision are then applied to the two, by the same functions that apply them to a
cluster image. The numbers of metadata entries are not modelled: a broker epoch is the number of the
incarnation, which the model counts.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.cluster.controller import (
    BrokerRegistration,
    Decision,
    ElectionType,
    IsrChange,
    IsrMember,
    decide_alter_partitions,
    decide_broker_up,
    decide_brokers_down,
    decide_elect_leaders,
)
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
from nilometer.replication import AlterPartition, AlterPartitionAnswer, EligibleBrokers, Registration
from nilometer.wire.errors import ErrorCode

_TOPIC = "model"
_TOPIC_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
_PARTITION = TopicIdPartition(_TOPIC_ID, 0)


class ClusterView(NamedTuple):
    state: PartitionState
    brokers: tuple[Broker, ...]


class ClusterController:
    """A :class:`~nilometer.simulation.model_check.controller.Controller` that decides as the product does.

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
    ) -> tuple[ClusterView, AlterPartitionAnswer]:
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
            return after, AlterPartitionAnswer(error=altered.outcome.error)
        return after, AlterPartitionAnswer(
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
