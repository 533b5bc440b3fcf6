"""A consumer group under whatever members, topics, time and coordinators do, against a naive model.

The model knows what each client *holds*: what it was given and has not yet given up, whatever the coordinator
believes. Clients lose requests and replies, take their time to revoke, crash, go away and come back; members
of the classic protocol take part; the coordinator fails over to one that knows nothing but the log.
"""

from __future__ import annotations

from typing import cast

from assignment_checks import improvable
from consumer_clients import Client
from consumer_group_harness import ConsumerWorld, no_wait_config
from group_harness import REBALANCE_MS, SESSION_MS
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nilometer.groups import turn
from nilometer.groups.consumer import rebalance
from nilometer.groups.consumer.assignors import MemberSpec
from nilometer.groups.consumer.group import MATCHED_BYTES, ConsumerGroup
from nilometer.groups.requests import (
    ConsumerGroupHeartbeatResult,
    JoinGroupProtocol,
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitResult,
    OffsetCommitTopic,
)
from nilometer.groups.settings import ConsumerGroupMigrationPolicy
from nilometer.groups.turn import WRITTEN_AT_ONCE_MAX
from nilometer.wire.errors import ErrorCode
from nilometer.wire.value_bytes import Subscription, decode_assignment, encode_subscription
from support.properties import examples

TOPICS = ("ta", "tb", "u")
REGEXES = ("", "t.*", "u|ta")
FENCED = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)
LIMITS = rebalance.AT_ONCE_MAX, rebalance.LIGHT
QUIET_MS = 60_000
"""Longer than any session: a crashed member is gone by then."""


class ConsumerGroupMachine(RuleBasedStateMachine):
    @initialize(
        counts=st.tuples(st.integers(1, 4), st.integers(0, 3)),
        interval_ms=st.sampled_from([0, 1_000]),
        assignor=st.sampled_from(["uniform", "range"]),
        members=st.integers(1, 3),
        computes_outside=st.booleans(),
    )
    def begin(
        self,
        counts: tuple[int, int],
        interval_ms: int,
        assignor: str,
        members: int,
        computes_outside: bool = False,
    ) -> None:
        rebalance.AT_ONCE_MAX, rebalance.LIGHT = (0, 0) if computes_outside else LIMITS  # type: ignore[misc]
        turn.WRITTEN_AT_ONCE_MAX = 1 if computes_outside else WRITTEN_AT_ONCE_MAX  # type: ignore[misc]
        # Whole groups that go down have tests of their own: here they stay, so that the model can.
        config = no_wait_config(
            group_consumer_assignment_interval_ms=interval_ms,
            group_consumer_assignors=(assignor,),
            group_consumer_migration_policy=ConsumerGroupMigrationPolicy.UPGRADE,
        )
        self.world = ConsumerWorld(config=config)
        self.assignor = assignor
        self.clients: list[Client] = []
        self.started = 0
        self.group_epoch = self.assignment_epoch = 0
        for name, count in zip(("ta", "tb"), counts, strict=True):
            if count:
                self.world.create(name, count)
        for _ in range(members):
            self.start({"ta", "tb"}, "", static=False)

    @precondition(lambda self: self.world.needed)
    @rule()
    def compute(self) -> None:
        self.world.compute()

    # ── what the model knows ────────────────────────────────────────────────────────────────────────
    def group(self) -> ConsumerGroup | None:
        groups = self.world.shard.groups()
        return groups[0] if groups and isinstance(groups[0], ConsumerGroup) else None

    def able(self) -> list[Client]:
        return [client for client in self.clients if not client.crashed and not client.away]

    def pick(self, data: st.DataObject, clients: list[Client]) -> Client:
        return data.draw(st.sampled_from(clients), label="client")

    def marked(self, name: str, partition: int) -> tuple[str, int]:
        """A topic that is created again is another."""
        topic = self.world.image.topic(name)
        return (f"{name}:{0 if topic is None else topic.uuid.int}", partition)

    def is_member(self, client: Client) -> bool:
        group = self.group()
        return group is not None and client.member_id in group.members

    def subscribed(self, client: Client) -> set[str]:
        existing = {topic.name for topic in self.world.image.topics()}
        by_regex = {"": set[str](), "t.*": {"ta", "tb"}, "u|ta": {"u", "ta"}}[client.regex]
        return existing & (set(client.topics) | by_regex)

    # ── members of the consumer protocol ─────────────────────────────────────────────────────────────
    @precondition(lambda self: len(self.clients) < 6)
    @rule(
        topics=st.sets(st.sampled_from(TOPICS), max_size=2),
        regex=st.sampled_from(REGEXES),
        static=st.booleans(),
    )
    def start_a_consumer(self, topics: set[str], regex: str, static: bool) -> None:
        self.start(topics, regex, static)

    def start(self, topics: set[str], regex: str, static: bool) -> None:
        self.started += 1
        name = f"c{self.started}"
        client = Client(name, tuple(sorted(topics)), regex, f"i-{name}" if static else None, classic=False)
        client.member_id = name
        self.clients.append(client)
        self.beat(client, lost=False)

    @rule(
        acts=st.lists(
            st.tuples(st.integers(0, 5), st.sampled_from(["beat", "beat", "lose", "revoke"])),
            min_size=3,
            max_size=12,
        )
    )
    def bustle(self, acts: list[tuple[int, str]]) -> None:
        """The usual traffic, that a group mostly has."""
        for place, act in acts:
            able = self.able()
            if not able:
                return
            client = able[place % len(able)]
            if client.classic:
                if self.obey(client, self.world.heartbeat(client.member_id, client.epoch)) and act != "lose":
                    self.fetch(client)
            elif act == "revoke":
                client.revoke()
            else:
                self.beat(client, lost=act == "lose")
            self.no_member_holds_what_another_holds()

    def beat(self, client: Client, lost: bool) -> None:
        """A lost reply reaches the coordinator all the same."""
        joins = client.epoch == 0
        owned: dict[str, list[int]] = {}
        for marked, partition in sorted(client.held):
            name, _, incarnation = marked.partition(":")
            topic = self.world.image.topic(name)
            if topic is not None and topic.uuid.int == int(incarnation):
                owned.setdefault(name, []).append(partition)
        reply = self.world.beat(
            client.member_id,
            client.epoch,
            topics=client.topics,
            regex=client.regex,
            owned={} if joins else owned,
            instance=client.instance,
            rebalance_ms=REBALANCE_MS,
        )
        if not lost:
            self.hear(client, reply)

    def hear(self, client: Client, reply: ConsumerGroupHeartbeatResult) -> None:
        if reply.error_code in FENCED:
            client.forget()
            return
        if reply.error_code is ErrorCode.unreleased_instance_id:
            return
        assert reply.error_code is ErrorCode.none, reply
        assert reply.member_epoch > 0
        assert client.epoch <= reply.member_epoch, "epochs of a member only rise"
        client.epoch = reply.member_epoch
        if reply.assignment is not None:
            told = {
                self.marked(name, partition)
                for name, partitions in self.world.names(reply.assignment).items()
                for partition in partitions
            }
            if client.held <= told:
                client.held, client.told = told, None
            else:
                client.told = told

    @precondition(lambda self: any(not client.classic for client in self.able()))
    @rule(data=st.data(), topics=st.sets(st.sampled_from(TOPICS), max_size=2), regex=st.sampled_from(REGEXES))
    def subscribe_otherwise(self, data: st.DataObject, topics: set[str], regex: str) -> None:
        client = self.pick(data, [client for client in self.able() if not client.classic])
        client.topics, client.regex = tuple(sorted(topics)), regex
        self.beat(client, lost=False)

    @precondition(lambda self: any(not client.classic for client in self.able()))
    @rule(data=st.data(), lost=st.booleans())
    def leave(self, data: st.DataObject, lost: bool) -> None:
        client = self.pick(data, [client for client in self.able() if not client.classic])
        client.held = set()
        if not lost:
            self.world.beat(client.member_id, -1, instance=client.instance)
        self.clients.remove(client)

    @precondition(lambda self: any(client.instance and not client.classic for client in self.able()))
    @rule(data=st.data())
    def leave_group(self, data: st.DataObject) -> None:
        statics = [client for client in self.able() if client.instance and not client.classic]
        client = self.pick(data, statics)
        self.world.beat(client.member_id, -2, instance=client.instance)
        client.forget()
        client.away = True

    @precondition(lambda self: any(client.away for client in self.clients))
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        client = self.pick(data, [client for client in self.clients if client.away])
        self.started += 1
        client.member_id = f"{client.name}-{self.started}"
        client.away = False
        self.beat(client, lost=False)

    @precondition(lambda self: self.able())
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """It is not heard of again, and may go on with what it holds until it is fenced."""
        self.pick(data, self.able()).crashed = True

    # ── members of the classic protocol ──────────────────────────────────────────────────────────────
    def has_members(self) -> bool:
        group = self.group()
        return group is not None and not group.is_empty

    @precondition(lambda self: len(self.clients) < 6 and self.has_members())
    @rule(topics=st.sets(st.sampled_from(TOPICS), min_size=1, max_size=2))
    def start_a_classic_consumer(self, topics: set[str]) -> None:
        self.started += 1
        client = Client(f"k{self.started}", tuple(sorted(topics)), "", None, classic=True)
        self.clients.append(client)
        self.join(client)

    def join(self, client: Client) -> bool:
        """False if it cannot."""
        client.asks = False
        if not self.has_members():
            self.clients.remove(client)
            return False
        owned = tuple(
            (marked.partition(":")[0], partition)
            for marked, partition in sorted(client.held)
            if self.marked(marked.partition(":")[0], 0)[0] == marked
        )
        metadata = encode_subscription(Subscription(client.topics, None, owned))
        token = self.world.join(
            client.member_id, client=client.name, offers=(JoinGroupProtocol("cooperative-sticky", metadata),)
        )
        reply = self.world.joined(token)
        assert reply.error_code is ErrorCode.none, reply
        client.member_id, client.epoch = reply.member_id, reply.generation_id
        client.asks = True
        return True

    @precondition(lambda self: any(client.classic for client in self.able()))
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        self.fetch(self.pick(data, [client for client in self.able() if client.classic]))

    def fetch(self, client: Client) -> None:
        reply = self.world.synced(self.world.sync(client.member_id, client.epoch))
        client.asks = False
        if reply.error_code is ErrorCode.none:
            client.held = {self.marked(*each) for each in decode_assignment(reply.assignment).partitions}
        else:
            self.obey(client, reply.error_code)

    @precondition(lambda self: any(client.classic for client in self.able()))
    @rule(data=st.data())
    def classic_heartbeat(self, data: st.DataObject) -> None:
        client = self.pick(data, [client for client in self.able() if client.classic])
        self.obey(client, self.world.heartbeat(client.member_id, client.epoch))

    def obey(self, client: Client, verdict: ErrorCode) -> bool:
        """Whether it had to join again."""
        if verdict is ErrorCode.none:
            return False
        if verdict in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            client.forget()
            if verdict is ErrorCode.unknown_member_id:
                client.member_id = ""
        else:
            assert verdict is ErrorCode.rebalance_in_progress, verdict
        return self.join(client)

    @precondition(lambda self: any(client.classic for client in self.able()))
    @rule(data=st.data())
    def classic_leave(self, data: st.DataObject) -> None:
        client = self.pick(data, [client for client in self.able() if client.classic])
        self.world.leave(client.member_id)
        self.clients.remove(client)

    # ── the world ────────────────────────────────────────────────────────────────────────────────────
    @rule(ms=st.sampled_from([1, 700, 5_000, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 4))
    def create_or_grow(self, name: str, partitions: int) -> None:
        topic = self.world.image.topic(name)
        if topic is None:
            self.world.create(name, partitions)
        elif len(topic.partitions) < partitions:
            self.world.grow(name, partitions)

    @precondition(lambda self: self.world.image.topics())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.world.delete(data.draw(st.sampled_from([topic.name for topic in self.world.image.topics()])))

    @rule()
    def fail_over(self) -> None:
        group = self.group()
        before = None if group is None else group.hard_state()
        self.world.fail_over()
        group = self.group()
        assert before == (None if group is None else group.hard_state())

    @precondition(lambda self: self.clients and self.world.image.topics())
    @rule(data=st.data(), partition=st.integers(0, 3), stale=st.integers(0, 2))
    def commit(self, data: st.DataObject, partition: int, stale: int) -> None:
        """In an epoch that is over, accepted only from the partition's owner."""
        client = self.pick(data, self.clients)
        topic = data.draw(st.sampled_from(self.world.image.topics()), label="topic")
        asked = OffsetCommitTopic(topic.name, (OffsetCommitPartition(partition, 1),), topic.uuid)
        epoch = max(1, client.epoch - stale)
        reply = self.world.ask(OffsetCommit("g", (asked,), epoch, client.member_id), OffsetCommitResult)
        if reply.topics[0].partitions[0].error_code is ErrorCode.none:
            group = self.group()
            assert group is not None
            in_its_epoch = epoch == group.members[client.member_id].member_epoch
            assert in_its_epoch or group.owner(topic.uuid, partition) == client.member_id

    # ── what must hold ────────────────────────────────────────────────────────────────────────────────
    @invariant()
    def no_member_holds_what_another_holds(self) -> None:
        holders: dict[tuple[str, int], str] = {}
        for client in self.clients:
            if self.is_member(client) and not client.crashed:
                for held in sorted(client.held):
                    assert held not in holders, f"{held} is held by {holders[held]} and {client.name}"
                    holders[held] = client.name

    @invariant()
    def each_partition_has_one_owner_as_the_group_sees_it(self) -> None:
        group = self.group()
        if group is None:
            return
        owners: dict[tuple[int, int], str] = {}
        for member in group.members.values():
            for owned in (member.assigned, member.pending_revocation):
                for topic_id, partitions in owned.items():
                    assert partitions, "no empty mappings"
                    for partition in partitions:
                        assert (topic_id.int, partition) not in owners
                        owners[topic_id.int, partition] = member.member_id
                        assert group.owner(topic_id, partition) == member.member_id

    @invariant()
    def what_is_kept_of_the_members_is_theirs(self) -> None:
        group = self.group()
        self.world.check_held_bytes()
        if group is None:
            return
        members = group.members.values()
        matched = [len(regex.topics) for regex in group.regexes.values()]
        assert group.matched_count == sum(matched)
        held = sum(member.bytes() for member in members) + MATCHED_BYTES * sum(matched)
        assert group.metadata_bytes() == held
        assert group.subscribed_regexes() == {each.subscribed_topic_regex for each in members} - {""}
        for topic in frozenset().union(*map(group.topics_of, members)) | {"unknown"}:
            assert group.is_subscribed_to(topic) == any(topic in group.topics_of(each) for each in members)

    @invariant()
    def epochs_only_rise_and_follow_one_another(self) -> None:
        group = self.group()
        if group is None:
            return
        assert group.group_epoch >= self.group_epoch and group.assignment_epoch >= self.assignment_epoch
        self.group_epoch, self.assignment_epoch = group.group_epoch, group.assignment_epoch
        assert group.group_epoch >= group.assignment_epoch
        for member in group.members.values():
            assert member.member_epoch <= group.assignment_epoch
            for epochs in (*member.assigned.values(), *member.pending_revocation.values()):
                assert all(epoch <= group.assignment_epoch for epoch in epochs.values())
        assert set(group.target) <= set(group.members)

    # ── and how it ends ───────────────────────────────────────────────────────────────────────────────
    def teardown(self) -> None:
        """The running members keep running, and the group comes to rest: all is owned, evenly, by
        subscribers."""
        try:
            if hasattr(self, "world"):
                self.come_to_rest()
        finally:
            rebalance.AT_ONCE_MAX, rebalance.LIGHT = LIMITS  # type: ignore[misc]
            turn.WRITTEN_AT_ONCE_MAX = WRITTEN_AT_ONCE_MAX  # type: ignore[misc]

    def come_to_rest(self) -> None:
        self.heal()
        group = self.group()
        if group is None or group.is_empty:
            return
        assert group.state == "Stable", group.state
        live = [client for client in self.clients if not client.crashed]
        assert set(group.members) == {client.member_id for client in live}
        expected = {
            self.marked(topic.name, partition)
            for topic in self.world.image.topics()
            if any(topic.name in self.subscribed(client) for client in live)
            for partition in range(len(topic.partitions))
        }
        assert set().union(*(client.held for client in live)) == expected
        for client in live:
            assert {marked.partition(":")[0] for marked, _ in client.held} <= self.subscribed(client)
        if self.assignor == "uniform":
            self.is_even(live)
        before = group.hard_state()
        self.world.fail_over()
        after = self.group()
        assert after is not None and after.hard_state() == before

    def is_even(self, live: list[Client]) -> None:
        group = self.group()
        assert group is not None
        specs = {
            client.member_id: MemberSpec(
                frozenset(self.world.topics.id_of(name) for name in self.subscribed(client))
            )
            for client in live
        }
        assert improvable(specs, group.target) is None

    def heal(self) -> None:
        began_ms = self.world.now_ms
        for client in self.clients:
            if client.away:
                client.away = False
                client.member_id += "-back"
        quiet_since_ms = self.world.now_ms
        while self.world.now_ms < quiet_since_ms + QUIET_MS:
            before = self.picture()
            self.world.pass_time(4_000)
            for client in list(self.able()):
                if not client.classic:
                    client.revoke()
                    self.beat(client, lost=False)
                    client.revoke()
                elif self.obey(client, self.world.heartbeat(client.member_id, client.epoch)) or client.asks:
                    self.fetch(client)
            if before != self.picture():
                quiet_since_ms = self.world.now_ms
            assert self.world.now_ms < began_ms + 10 * QUIET_MS, f"no rest: {self.picture()}"

    def picture(self) -> object:
        group = self.group()
        return (
            None if group is None else group.hard_state(),
            [(client.name, client.epoch, sorted(client.held)) for client in self.clients],
        )


ConsumerGroupMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestConsumerGroup = ConsumerGroupMachine.TestCase


class First:
    """Draws the first of what may be drawn."""

    def __init__(self, machine: ConsumerGroupMachine) -> None:
        self._machine = machine

    def draw(self, _strategy: object, label: str) -> Client:
        assert label == "client"
        return self._machine.clients[0]


def test_a_classic_client_asks_for_its_part_although_no_heartbeat_sends_it_back() -> None:
    """After a fail-over the group is at rest, with a member that has joined and not asked yet."""
    machine = ConsumerGroupMachine()
    machine.begin(counts=(1, 0), interval_ms=0, assignor="uniform", members=1)
    machine.start(set(), "", static=False)
    machine.leave(data=cast("st.DataObject", First(machine)), lost=False)
    machine.start_a_classic_consumer(topics={"ta"})
    machine.fail_over()
    machine.teardown()
    assert [client.held for client in machine.clients] == [set(), {machine.marked("ta", 0)}]


def test_a_classic_client_that_cannot_join_again_asks_for_nothing() -> None:
    """The group that it comes back to has no members: it ends."""
    machine = ConsumerGroupMachine()
    machine.begin(counts=(1, 0), interval_ms=0, assignor="uniform", members=1)
    machine.start_a_classic_consumer(topics={"ta"})
    machine.subscribe_otherwise(data=cast("st.DataObject", First(machine)), topics=set(), regex="")
    machine.time_passes(ms=REBALANCE_MS)
    machine.teardown()
