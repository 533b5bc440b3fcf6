"""A small cluster with logs behind its partitions, and what is promised of it.

The model keeps for every replica the records in its log and for every partition what was acknowledged
(held by the whole ISR, of at least min.insync.replicas). It lets brokers die by process (the page cache
stays) or by machine (a tail of the log is lost), unnoticed for a while; leaders shrink and grow their
ISRs; controllers fall in the middle of a decision, and come back too late. At every moment:

- structure: leader active and in the ISR, ISR within the assignment and never empty, eligible replicas
  apart from it; epochs only rise, one leader per epoch;
- *no acknowledged record is lost*: every leader has them all, as long as no more than
  min.insync.replicas - 1 machines lost their tails at once;
- entries of a deposed controller change nothing; snapshot + tail = the fold of everything.

Two kinds of brokers are tried: those that can prove that a killed process lost nothing (they keep their
place), and those that cannot (then no machine may fail, and the last known leader has to do).
"""

from __future__ import annotations

from cluster_harness import ClusterWorld

from nilometer.cluster.controller.brokers import (
    BrokerRegistration,
    decide_broker_up,
    decide_brokers_down,
    decide_controlled_shutdown,
)
from nilometer.cluster.controller.controllership import BrokersDown, BrokerUp, broker_events, decide_repair
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.isr_changes import IsrChange, IsrMember, decide_alter_partitions
from nilometer.cluster.controller.reassignments import (
    Reassignment,
    decide_alter_reassignments,
    decide_preferred_leaders,
)
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.entries import Entry, decode_entry, decode_snapshot, encode_snapshot, entries_of
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import PartitionChanged
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import BrokerEpoch, BrokerId, EntryNumber, TopicIdPartition

BROKERS = (1, 2, 3, 4)
MIN_ISR = {"one": 1, "two": 2, "three": 3}


class WatchedWorld(ClusterWorld):
    """Notes who led in which epoch, record by record."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[TopicIdPartition, int], int] = {}
        super().__init__(target=700)

    def append(self, entry: Entry) -> ImageDelta:
        before = {key: state.leader_epoch for key, state in self.image.partitions()}
        delta = super().append(entry)
        for record in entry.records if delta.accepted else ():
            if isinstance(record, PartitionChanged):
                key = TopicIdPartition(record.topic_id, record.partition)
                if record.leader_epoch is not None:
                    assert record.leader_epoch == before[key] + 1
                    before[key] = record.leader_epoch
                    leader = record.leader if record.leader is not None else -1
                    assert self.leaders.setdefault((key, record.leader_epoch), leader) == leader
        return delta


class ClusterModel:
    def __init__(self, *, proves_kills: bool) -> None:
        self.proves_kills = proves_kills
        """Whether a broker whose process was killed can show that its log is whole."""
        self.world = WatchedWorld()
        self.sessions: dict[int, BrokerRegistration | None] = dict.fromkeys(BROKERS)
        self.intact: dict[int, bool] = dict.fromkeys(BROKERS, True)
        """What the broker will say of its last incarnation."""
        self.records = 0
        self.logs: dict[str, dict[int, list[int]]] = {t: {b: [] for b in BROKERS} for t in MIN_ISR}
        self.acknowledged: dict[str, list[int]] = {t: [] for t in MIN_ISR}
        self.lost_tails: dict[str, set[int]] = {t: set() for t in MIN_ISR}
        self.beyond_promise: set[str] = set()
        self.late: list[Entry] = []
        self.kept: tuple[bytes, int] | None = None
        for broker in BROKERS:
            self.start(broker)
        self.notice(None)
        for index, (name, min_isr) in enumerate(sorted(MIN_ISR.items())):
            order = [BROKERS[(index + i) % 4] for i in range(3)]
            self.world.create(name, assignments={0: order}, configs={"min.insync.replicas": str(min_isr)})

    # -- the world moves -------------------------------------------------------------------------------

    def start(self, broker: int) -> None:
        self.sessions[broker] = self.world.registration(broker, clean=self.intact[broker])
        self.intact[broker] = False

    def is_current(self, broker: int) -> bool:
        """Alive, and in the incarnation that the cluster knows."""
        session = self.sessions[broker]
        known = self.world.image.broker(BrokerId(broker))
        return (
            session is not None
            and known is not None
            and not known.fenced
            and known.incarnation == session.incarnation
        )

    def leader(self, topic: str) -> int | None:
        leader = self.world.state(topic).leader
        return leader if leader > 0 and self.is_current(leader) else None

    def enact(self, decision: Decision[object], entries_max: int | None) -> bool:
        entries = list(entries_of(decision.units, self.world.image.controllership, self.world.target))
        self.world.enact(decision, entries_max)
        if entries_max is not None and len(entries) > entries_max:
            self.late.extend(entries[entries_max:])
            return False
        return True

    def notice(self, entries_max: int | None) -> None:
        """The controller brings the image in line with the sessions; it may fall after so many entries."""
        while events := broker_events(self.world.image, [s for s in self.sessions.values() if s is not None]):
            match events[0]:
                case BrokersDown(broker_ids):
                    decision: Decision[object] = decide_brokers_down(self.world.image, broker_ids)
                case BrokerUp(registration):
                    decision = decide_broker_up(self.world.image, registration)
            if not self.enact(decision, entries_max):
                entries_max = None
                self.world.become_controller(0)
            for event in events:
                if isinstance(event, BrokerUp):
                    self.remember_epoch(event.registration)
        self.enact(decide_repair(self.world.image), None)

    def remember_epoch(self, registration: BrokerRegistration) -> None:
        known = self.world.image.broker(registration.broker_id)
        if known is not None and known.incarnation == registration.incarnation:
            self.world.last_epoch[registration.broker_id] = known.epoch

    # -- what may happen -------------------------------------------------------------------------------

    def kill(self, broker: int) -> None:
        session = self.sessions[broker]
        if session is not None:
            # An incarnation that was never registered proves nothing; what the one before it proved still
            # holds.
            proven = session.previous_broker_epoch != -1
            self.intact[broker] = self.proves_kills and (proven or self.is_current(broker))
            self.sessions[broker] = None

    def lose_machine(self, broker: int, keep: int) -> None:
        if not self.proves_kills:
            return
        self.sessions[broker] = None
        self.intact[broker] = False
        for name, logs in self.logs.items():
            if broker in self.world.state(name).replicas:
                self.lost_tails[name].add(broker)
                if len(self.lost_tails[name]) > MIN_ISR[name] - 1:
                    self.beyond_promise.add(name)
            del logs[broker][keep:]

    def stop_cleanly(self, broker: int) -> None:
        if self.is_current(broker):
            epoch = self.world.epoch(broker)
            self.enact(decide_controlled_shutdown(self.world.image, BrokerId(broker), epoch), None)
            self.sessions[broker] = None
            self.intact[broker] = True

    def come_back(self, broker: int) -> None:
        if self.sessions[broker] is None:
            self.start(broker)

    def controller_notices(self, entries_max: int | None) -> None:
        self.notice(entries_max)

    def controller_changes(self) -> None:
        self.world.become_controller(0)
        self.notice(None)

    def deposed_controller_wakes_up(self) -> None:
        if not self.late or self.late[0].controllership == self.world.image.controllership:
            return
        before = self.world.image.snapshot()
        delta = self.world.append(self.late.pop(0))
        assert not delta.accepted
        after = self.world.image.snapshot()
        assert (before.topics, before.brokers, before.configs) == (after.topics, after.brokers, after.configs)

    def produce(self, count: int) -> None:
        for topic in MIN_ISR:
            leader = self.leader(topic)
            if leader is not None:
                self.logs[topic][leader].extend(range(self.records, self.records + count))
                self.records += count
                self.acknowledge(topic)

    def replicate_to(self, broker: int) -> None:
        for topic in MIN_ISR:
            self.follow(topic, broker)

    def replicate(self) -> None:
        for topic in MIN_ISR:
            for broker in BROKERS:
                self.follow(topic, broker)

    def follow(self, topic: str, broker: int) -> None:
        leader = self.leader(topic)
        if leader is not None and self.is_current(broker) and broker in self.world.state(topic).replicas:
            self.logs[topic][broker] = list(self.logs[topic][leader])
            self.acknowledge(topic)

    def acknowledge(self, topic: str) -> None:
        state, leader = self.world.state(topic), self.leader(topic)
        if leader is None or len(state.isr) < min(MIN_ISR[topic], len(state.replicas)):
            return
        log = self.logs[topic][leader]
        held = min(common_prefix(log, self.logs[topic][member]) for member in state.isr)
        if held > len(self.acknowledged[topic]):
            self.acknowledged[topic] = log[:held]

    def leader_shrinks_isr(self, topic: str, without: int) -> None:
        state = self.world.state(topic)
        if self.leader(topic) is not None:
            self.alter(topic, state, [r for r in state.isr if r != without or r == state.leader])

    def leaders_grow_isr(self, broker: int) -> None:
        for topic in MIN_ISR:
            self.grow(topic, broker)

    def grow(self, topic: str, broker: int) -> None:
        state, leader = self.world.state(topic), self.leader(topic)
        if (
            leader is None
            or broker in state.isr
            or broker not in state.replicas
            or not self.is_current(broker)
        ):
            return
        if self.logs[topic][broker] == self.logs[topic][leader]:
            self.alter(topic, state, [*state.isr, broker])

    def alter(self, topic: str, state: PartitionState, isr: list[int]) -> None:
        members = tuple(
            IsrMember(BrokerId(r), self.world.image.broker_epoch(BrokerId(r)) or BrokerEpoch(-1)) for r in isr
        )
        request = IsrChange(
            partition=self.world.key(topic),
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr=members,
        )
        epoch = self.world.epoch(state.leader)
        self.enact(decide_alter_partitions(self.world.image, state.leader, epoch, [request]), None)
        self.acknowledge(topic)

    def reassign(self, topic: str, order: list[int] | None) -> None:
        # The replication factor stays, or min.insync.replicas of one moment would not be that of another.
        request = Reassignment(topic, 0, None if order is None else order[:3])
        self.enact(decide_alter_reassignments(self.world.image, [request]), None)
        self.acknowledge(topic)

    def elect_preferred_leaders(self) -> None:
        self.enact(decide_preferred_leaders(self.world.image), None)

    def keep_a_snapshot(self) -> None:
        self.kept = encode_snapshot(self.world.image.snapshot()), len(self.world.log)

    # -- invariants ------------------------------------------------------------------------------------

    def check(self) -> None:
        self.structure_holds()
        self.no_acknowledged_record_is_lost()
        self.no_election_was_unclean()

    def structure_holds(self) -> None:
        for key, state in self.world.image.partitions():
            state.check()
            if state.has_leader:
                assert self.world.image.is_active(state.leader), (key, state)
                for member in state.isr:
                    assert self.world.image.is_active(member), (key, state)
            else:
                assert len(state.isr) == 1
                assert (key, state) in self.world.image.leaderless_partitions()
            for replica in state.replicas:
                assert (key, state) in self.world.image.partitions_on(replica)

    def no_acknowledged_record_is_lost(self) -> None:
        for topic, acknowledged in self.acknowledged.items():
            state, leader = self.world.state(topic), self.leader(topic)
            self.lost_tails[topic] -= {
                b
                for b in self.lost_tails[topic]
                if b not in state.replicas or (self.is_current(b) and b in state.isr)
            }
            if leader is not None and topic not in self.beyond_promise:
                log = self.logs[topic][leader]
                assert log[: len(acknowledged)] == acknowledged, (topic, state, self.logs[topic])

    def no_election_was_unclean(self) -> None:
        assert self.world.image.unclean_elections == 0
        if self.proves_kills and not self.beyond_promise:
            assert self.world.image.last_known_elections == 0

    def finish(self) -> None:
        assert self.world.refold() == self.world.image
        if self.kept is not None:
            data, position = self.kept
            image = ClusterImage.from_snapshot(decode_snapshot(data))
            for number in range(position, len(self.world.log)):
                image.apply_entry(EntryNumber(number), decode_entry(self.world.log[number]))
            assert image == self.world.image
            assert image.partitions_on(BrokerId(1)) == self.world.image.partitions_on(BrokerId(1))
        self.all_come_back()

    def all_come_back(self) -> None:
        """Once every broker is there again, every partition has a leader without help."""
        for broker in BROKERS:
            if self.sessions[broker] is None:
                self.start(broker)
        self.notice(None)
        assert self.world.image.leaderless_partitions() == []
        self.no_acknowledged_record_is_lost()


def common_prefix(one: list[int], other: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
