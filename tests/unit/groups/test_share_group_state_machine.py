"""A share group under whatever members, topics, time and coordinators do: it comes to rest with every
partition read, and its records say all that it knows.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from share_group_harness import SHARE_SESSION_MS, ShareMemberClient, ShareWorld

from nilometer.groups import share_groups, turn
from nilometer.groups.records import decode_record
from nilometer.groups.settings import GroupConfig
from nilometer.groups.shard import GroupShard
from nilometer.groups.share_group import ShareGroup
from nilometer.groups.turn import WRITTEN_AT_ONCE_MAX
from nilometer.wire.errors import ErrorCode
from support.properties import examples

TOPICS = ("t", "u", "v")
SUBSCRIPTIONS = st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda names: tuple(sorted(names)))
AT_ONCE_MAX = share_groups.AT_ONCE_MAX


class ShareGroupMachine(RuleBasedStateMachine):
    @initialize(interval_ms=st.sampled_from([0, 1_000]), computes_outside=st.booleans())
    def begin(self, interval_ms: int, computes_outside: bool) -> None:
        share_groups.AT_ONCE_MAX = 0 if computes_outside else AT_ONCE_MAX  # type: ignore[misc]
        turn.WRITTEN_AT_ONCE_MAX = 1 if computes_outside else WRITTEN_AT_ONCE_MAX  # type: ignore[misc]
        config = GroupConfig(group_share_assignment_interval_ms=interval_ms)
        self.world = ShareWorld(config=config, answers_at_once=False)
        self.world.create("t", 3)
        self.members: list[ShareMemberClient] = []
        self.started = 0

    def group(self) -> ShareGroup | None:
        groups = self.world.shard.groups()
        return cast(ShareGroup, groups[0]) if groups else None

    def pick(self, data: st.DataObject) -> ShareMemberClient:
        return data.draw(st.sampled_from(self.members), label="member")

    @precondition(lambda self: len(self.members) < 6)
    @rule(topics=SUBSCRIPTIONS)
    def start(self, topics: tuple[str, ...]) -> None:
        self.started += 1
        member = self.world.share_member(f"m{self.started}", *topics)
        assert member.last.error_code is ErrorCode.none
        self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), lost=st.booleans())
    def beat(self, data: st.DataObject, lost: bool) -> None:
        self.pick(data).step(loses_reply=lost)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), topics=SUBSCRIPTIONS)
    def subscribe(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        member = self.pick(data)
        if member.step() is ErrorCode.none:
            member.subscribe(*topics)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), crashes=st.booleans())
    def stop(self, data: st.DataObject, crashes: bool) -> None:
        member = self.pick(data)
        self.members.remove(member)
        if not crashes:
            member.leave()

    @rule(name=st.sampled_from(TOPICS), count=st.integers(0, 5))
    def change_a_topic(self, name: str, count: int) -> None:
        if self.world.image.topic(name) is None:
            self.world.create(name, count)
        elif count:
            self.world.grow(name, count)
        else:
            self.world.delete(name)

    @precondition(lambda self: self.world.asked)
    @rule(fails=st.sampled_from(["not", "not", "partly", "all"]))
    def answer(self, fails: str) -> None:
        if fails == "all":
            self.world.fail_state()
        elif fails == "partly":
            topic_id, partitions = next(iter(self.world.asked[0].topics.items()))
            self.world.answer_state({topic_id: {min(partitions): ErrorCode.coordinator_not_available}})
        else:
            self.world.answer_state()

    @precondition(lambda self: self.world.needed)
    @rule()
    def compute(self) -> None:
        self.world.compute()

    @rule()
    def delete(self) -> None:
        self.world.delete_groups("g")

    @rule(ms=st.sampled_from([0, 200, 1_000, 6_000, SHARE_SESSION_MS]))
    def wait(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def fail_over(self) -> None:
        self.world.asked.clear()
        self.world.needed.clear()
        self.world.fail_over()

    # ── what always holds ───────────────────────────────────────────────────────────────────────────
    @invariant()
    def the_records_say_all(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.check_held_bytes()
        group, loaded = self.group(), GroupShard(self.world.config, str, self.world.image)
        for key, value in self.world.log:
            record = decode_record(key, value)
            assert record is not None
            loaded.replay(record)
        again = {each.group_id: cast(ShareGroup, each).hard_state() for each in loaded.groups()}
        assert again == ({} if group is None else {"g": group.hard_state()})
        if group is not None:
            held = group.metadata_bytes()
            members = sum(member.bytes() for member in group.members.values())
            assert held == members
            targeted = Counter(
                (topic_id, partition)
                for target in group.target.values()
                for topic_id, partitions in target.items()
                for partition in partitions
            )
            counted = {
                (each, one): group.targeted[each][one]
                for each in group.targeted
                for one in group.targeted[each]
            }
            assert counted == targeted

    @invariant()
    def only_partitions_with_a_state_are_assigned(self) -> None:
        group = self.group() if hasattr(self, "world") else None
        for target in () if group is None else group.target.values():
            for topic_id, partitions in target.items():
                if self.world.image.topic_by_uuid(topic_id) is not None:
                    assert partitions <= group.partitions.initialized.get(topic_id, frozenset())  # type: ignore[union-attr]

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.come_to_rest()
        finally:
            share_groups.AT_ONCE_MAX = AT_ONCE_MAX  # type: ignore[misc]
            turn.WRITTEN_AT_ONCE_MAX = WRITTEN_AT_ONCE_MAX  # type: ignore[misc]

    def come_to_rest(self) -> None:
        world = self.world
        world.answers_at_once = True
        world.answer_all()
        for _ in range(2):
            for member in self.members:
                member.step()
            world.pass_time(SHARE_SESSION_MS - 1)  # members that crashed are gone by then
        world.share_settle(*self.members)
        group = self.group()
        assert set(group.members if group else ()) == {member.member_id for member in self.members}
        for name in TOPICS:
            topic = world.image.topic(name)
            readers = [member for member in self.members if name in member.topics]
            if topic is not None and readers:
                read = {partition for member in readers for partition in member.assigned.get(name, ())}
                assert read == set(range(len(topic.partitions))), name
        assert not world.unanswered()


TestShareGroup = ShareGroupMachine.TestCase
TestShareGroup.settings = examples(40, stateful_step_count=30)
