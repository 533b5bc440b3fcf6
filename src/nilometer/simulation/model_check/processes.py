"""The processes of the model of replication: brokers with the real replica, and the two controllers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from nilometer.cluster.controller.brokers import BrokerRegistration, decide_broker_up, decide_brokers_down
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.isr_changes import IsrChange, IsrMember, decide_alter_partitions
from nilometer.cluster.controller.reassignments import ElectionType, decide_elect_leaders
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
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EntryNumber,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from nilometer.invariants import check
from nilometer.replication.follower import FetchResponse, FollowerRole, TruncationRule
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse, CommittedIsr
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole, Replica
from nilometer.replication.shell_interface import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BackOff,
    DivergingFetch,
    Effects,
    EligibleBrokers,
    FollowerFetch,
    Pending,
    PublishHighWatermark,
    Registration,
    RejectFetch,
    ReleaseProduce,
    SendAlterPartition,
    ServeFetch,
    StartEpoch,
    StartInTier,
    TruncateFully,
    TruncateTo,
)
from nilometer.wire.errors import ErrorCode

# One broker process of the model: the real replica, a model log, and the messages that it sends.
#
# It executes the replica's effects in their order and turns them into messages, as the broker's code around
# the replica does; it decides nothing. Time does not pass: that a follower has lagged too long is an event.

# A minimal replica log: a list of (leader epoch, value), and the epoch chain.
#
# It replaces the storage engine's log in the model check, the scenarios and tests. An offset is the index of
# a record plus the log start offset, which changes only when the log is truncated fully. The epoch chain has
# the start offset of each leader epoch.

Record = tuple[int, int]
"""(leader epoch in which it was appended, value)"""


class ModelLog:
    """Invariants: epochs never decrease along the log; epochs and offsets of the chain are increasing."""

    __slots__ = ("chain", "log_start_offset", "records")

    def __init__(self, records: Iterable[Record] = (), log_start_offset: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.records: list[Record] = []
        self.chain: list[tuple[LeaderEpoch, Offset]] = []
        for epoch, value in records:
            self.append(epoch, value)

    @property
    def local_start_offset(self) -> int:
        return self.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.chain[-1][0] if self.chain else NO_LEADER_EPOCH

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        if epoch > self.latest_epoch:
            return NO_LEADER_EPOCH, UNKNOWN_OFFSET
        found, end_offset = NO_LEADER_EPOCH, self.log_end_offset
        for known, start_offset in self.chain:
            if known > epoch:
                end_offset = start_offset
                break
            found = known
        return (epoch if found == NO_LEADER_EPOCH else found), end_offset

    def start_epoch(self, epoch: int, start_offset: int) -> None:
        """Add an epoch to the chain; it replaces one with the same start offset, which has no records."""
        if epoch == self.latest_epoch:
            return
        check(epoch > self.latest_epoch, "epochs only rise along a log", epoch, self.chain)
        self.chain = [entry for entry in self.chain if entry[1] < start_offset]
        self.chain.append((LeaderEpoch(epoch), start_offset))

    def append(self, epoch: int, value: int) -> None:
        self.start_epoch(epoch, self.log_end_offset)
        self.records.append((epoch, value))

    def truncate_to(self, offset: int) -> None:
        del self.records[max(0, offset - self.log_start_offset) :]
        self.chain = [entry for entry in self.chain if entry[1] < offset]

    def truncate_fully(self, start_offset: int) -> None:
        self.records, self.chain, self.log_start_offset = [], [], start_offset

    def read(self, offset: int, max_records: int) -> tuple[Record, ...]:
        index = offset - self.log_start_offset
        return tuple(self.records[index : index + max_records])


NOW_MS = 0


class FetchReply(msgspec.Struct, frozen=True):
    """A leader's response to ``fetch``, in flight."""

    fetch: FollowerFetch
    answer: FetchResponse
    records: tuple[Record, ...] = ()


class AlterReply(msgspec.Struct, frozen=True):
    request: AlterPartition
    answer: AlterPartitionResponse


class Acknowledged(msgspec.Struct, frozen=True):
    """A producer received the acknowledgement of its value (acks=all)."""

    value: int


Message: TypeAlias = FollowerFetch | FetchReply | AlterPartition | AlterReply
Output: TypeAlias = Message | Acknowledged

CURRENT, DELAYED = 1, 0
"""The two fetch numbers: the newest fetch of a follower has CURRENT, all others have DELAYED."""


class Process:
    __slots__ = ("broker", "broker_epoch", "is_up", "log", "min_isr", "outbox", "replica", "rule")

    def __init__(self, broker: int, min_insync_replicas: int, rule: TruncationRule) -> None:
        self.broker = BrokerId(broker)
        self.min_isr = min_insync_replicas
        self.rule = rule
        self.log = ModelLog()
        self.outbox: list[Output] = []
        self.start(broker_epoch=0, checkpointed_high_watermark=0)

    # ── crash and restart ────────────────────────────────────────────────────────────────────────
    def start(self, broker_epoch: int, checkpointed_high_watermark: int) -> None:
        self.is_up = True
        self.broker_epoch = broker_epoch
        self.replica = Replica(
            self.log,
            broker_id=self.broker,
            broker_epoch=BrokerEpoch(broker_epoch),
            checkpointed_high_watermark=checkpointed_high_watermark,
            min_insync_replicas=self.min_isr,
            rule=self.rule,
        )

    def crash(self) -> None:
        """End the process; only the log and the checkpointed high watermark remain."""
        self.start(self.broker_epoch, self.replica.high_watermark)
        self.is_up = False

    def restart(self, broker_epoch: int, kept_records: int, forgets_high_watermark: bool) -> None:
        self.log.truncate_to(kept_records)
        self.start(broker_epoch, 0 if forgets_high_watermark else self.replica.high_watermark)

    # ── events ──────────────────────────────────────────────────────────────────────────────────
    def learn(self, registration: Registration, eligible: EligibleBrokers) -> None:
        """Apply the next metadata entry.

        ``eligible`` has the epoch of each broker that may be in sync. If this process's epoch is not the one
        there, its incarnation has ended and it resigns from its role.
        """
        if eligible.get(self.broker) != self.broker_epoch:
            self._carry_out(self.replica.resign())
        else:
            self._carry_out(self.replica.on_metadata(registration, eligible, NOW_MS))
            self._maybe_ask()

    def produce(self, value: int, *, acks_all: bool = True) -> ErrorCode:
        """Append ``value`` as leader; return the error, or ``none``."""
        leader = self.replica.role
        if not isinstance(leader, LeaderRole):
            return ErrorCode.not_leader_or_follower
        if acks_all and (refusal := leader.admit_acks_all()) is not ErrorCode.none:
            return refusal
        self.log.append(leader.leader_epoch, value)
        required = self.log.log_end_offset
        self._carry_out(leader.on_appended(required, NOW_MS))
        if acks_all:
            self._await_acknowledgement(leader, value, required)
        return ErrorCode.none

    def _await_acknowledgement(self, leader: LeaderRole, value: int, required: int) -> None:
        match leader.acks_all_outcome(required):
            case ErrorCode.none:
                self.outbox.append(Acknowledged(value))
            case Pending():
                leader.hold_produce(value, required)
            case _:
                pass

    def ask(self) -> None:
        """Send a fetch if this process follows; it replaces the fetch that has no response yet."""
        if isinstance(self.replica.role, FollowerRole):
            fetch = self.replica.role.next_fetch()
            if isinstance(fetch, FollowerFetch):
                self.outbox.append(fetch)

    def serve(self, fetch: FollowerFetch, *, max_records: int = 1, may_wait: bool = True) -> ErrorCode:
        """Answer a fetch as leader; return the error, or ``none``.

        An error after which the follower would only repeat the fetch is not sent: instead the fetch itself
        may arrive again. ``may_wait``: without records, the response has the high watermark at the end of the
        wait and the leader records it as sent.
        """
        leader = self.replica.role
        if not isinstance(leader, LeaderRole):
            return ErrorCode.not_leader_or_follower
        result, effects = leader.on_follower_fetch(fetch, NOW_MS)
        self._carry_out(effects)
        match result:
            case ServeFetch():
                records = self.log.read(fetch.fetch_offset, max_records)
                waits = may_wait and not records
                high_watermark = leader.send_high_watermark(fetch.replica) if waits else result.high_watermark
                self.outbox.append(_reply(fetch, result, high_watermark, records))
                return ErrorCode.none
            case DivergingFetch(diverging):
                self.outbox.append(FetchReply(fetch, FetchResponse(diverging=diverging)))
                return ErrorCode.none
            case RejectFetch(error):
                if error is ErrorCode.offset_out_of_range:
                    self.outbox.append(FetchReply(fetch, self._out_of_range(leader)))
                return error

    def take(self, reply: FetchReply) -> None:
        self._carry_out(self.replica.on_fetch_response(reply.fetch, reply.answer), reply.records)
        self._maybe_ask()

    def take_alter_reply(self, reply: AlterReply) -> None:
        self._carry_out(self.replica.on_alter_partition_response(reply.request, reply.answer, NOW_MS))

    def find_lagging(self, follower: int) -> None:
        if isinstance(self.replica.role, LeaderRole):
            self._carry_out(self.replica.role.on_lag_expired(BrokerId(follower), NOW_MS))

    def is_past(self, message: Message) -> bool:
        """Whether ``message`` is of an older epoch, or answers a request that is no longer outstanding."""
        role = self.replica.role
        match message:
            case FollowerFetch(leader_epoch=epoch):
                return isinstance(role, LeaderRole) and epoch < role.leader_epoch
            case FetchReply(fetch):
                return not isinstance(role, FollowerRole) or role.outstanding != fetch
            case AlterReply(request):
                if not isinstance(role, LeaderRole):
                    return True
                return isinstance(role.isr_state, CommittedIsr) or role.isr_state.request != request
            case AlterPartition():
                return False

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _maybe_ask(self) -> None:
        if isinstance(self.replica.role, FollowerRole) and self.replica.role.outstanding is None:
            self.ask()

    def _out_of_range(self, leader: LeaderRole) -> FetchResponse:
        return FetchResponse(
            error=ErrorCode.offset_out_of_range,
            high_watermark=leader.high_watermark,
            log_start_offset=self.log.log_start_offset,
        )

    def _carry_out(self, effects: Effects, records: tuple[Record, ...] = ()) -> None:
        for effect in effects:
            match effect:
                case StartEpoch(epoch, start_offset):
                    self.log.start_epoch(epoch, start_offset)
                case SendAlterPartition(request):
                    self.outbox.append(request)
                case ReleaseProduce(ticket, outcome):
                    if outcome is ErrorCode.none:
                        self.outbox.append(Acknowledged(ticket))
                case TruncateTo(offset):
                    self.log.truncate_to(offset)
                case TruncateFully(start_offset):
                    self.log.truncate_fully(start_offset)
                case AppendBatches():
                    for epoch, value in records:
                        self.log.append(epoch, value)
                case PublishHighWatermark() | AdvanceHighWatermark() | AdvanceLogStart() | BackOff():
                    pass
                case StartInTier():
                    raise AssertionError("no leader here has records in remote storage")

    def normalise(self) -> None:
        """Reset the fields that no safety rule reads, so that states which differ only in them are equal."""
        match self.replica.role:
            case FollowerRole() as follower:
                if follower.outstanding is not None:
                    follower.outstanding = follower.outstanding._replace(number=CURRENT)
                follower._next_number = CURRENT  # pyright: ignore[reportPrivateUsage]
            case LeaderRole() as leader:
                for remote in leader.remote_replicas:
                    remote.last_sent_high_watermark = UNKNOWN_OFFSET
                    # The offset is only used to count a replica as caught up later, which keeps it in the
                    # ISR.
                    remote.last_fetch_leader_end_offset = UNKNOWN_OFFSET
            case NoRole():
                pass


def _reply(
    fetch: FollowerFetch, result: ServeFetch, high_watermark: int, records: tuple[Record, ...]
) -> FetchReply:
    answer = FetchResponse(
        base_offset=fetch.fetch_offset if records else UNKNOWN_OFFSET,
        end_offset=fetch.fetch_offset + len(records) if records else UNKNOWN_OFFSET,
        high_watermark=high_watermark,
        log_start_offset=result.log_start_offset,
    )
    return FetchReply(fetch, answer, records)


# The two controllers of the model check: a small one, and the product's own, which decides for one
# partition.

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
    """The metadata of one partition and its brokers, as small as a model check needs it.

    Invariants: a leader is in the ISR; the ISR is never empty; no member of the ELR is in the ISR.
    """

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
