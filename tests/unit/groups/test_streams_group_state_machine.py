"""A streams group under whatever members, topics, time and coordinators do: a task is never active twice, the
group comes to rest with every task active, and its records say all that it knows.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from streams_group_harness import STREAMS_SESSION_MS, StreamsClient, StreamsWorld, stateful

from nilometer.groups import turn
from nilometer.groups.records import decode_record
from nilometer.groups.settings import GroupConfig
from nilometer.groups.shard import GroupShard
from nilometer.groups.streams import streams_groups
from nilometer.groups.streams.group import TASK_BYTES, StreamsGroup
from nilometer.groups.streams.tasks import Tasks
from nilometer.groups.streams_topology import Subtopology, Task, TopicInfo, Topology
from nilometer.groups.turn import WRITTEN_AT_ONCE_MAX
from nilometer.wire.errors import ErrorCode
from support.properties import examples

TOPOLOGY = Topology(
    0,
    (
        Subtopology("0", ("t", "u"), repartition_sink_topics=("by-word",)),
        Subtopology(
            "1",
            repartition_source_topics=(TopicInfo("by-word"),),
            state_changelog_topics=(TopicInfo("counts"),),
        ),
        stateful("2", "v"),
    ),
)
TOPICS = {"t": 2, "u": 3, "v": 2}
INTERNAL = {"by-word": 3, "counts": 3, "2-changelog": 2}
AT_ONCE_MAX = streams_groups.AT_ONCE_MAX


class StreamsGroupMachine(RuleBasedStateMachine):
    @initialize(
        interval_ms=st.sampled_from([0, 1_000]),
        delay_ms=st.sampled_from([0, 3_000]),
        standbys=st.integers(0, 2),
        computes_outside=st.booleans(),
        is_ready=st.sampled_from([True, True, False]),
    )
    def begin(
        self, interval_ms: int, delay_ms: int, standbys: int, computes_outside: bool, is_ready: bool
    ) -> None:
        streams_groups.AT_ONCE_MAX = 0 if computes_outside else AT_ONCE_MAX  # type: ignore[misc]
        turn.WRITTEN_AT_ONCE_MAX = 1 if computes_outside else WRITTEN_AT_ONCE_MAX  # type: ignore[misc]
        self.standbys = standbys
        self.world = StreamsWorld(
            config=GroupConfig(
                group_streams_assignment_interval_ms=interval_ms,
                group_streams_initial_rebalance_delay_ms=delay_ms,
                group_streams_num_standby_replicas=standbys,
            )
        )
        for name, count in (TOPICS | (INTERNAL if is_ready else {})).items():
            self.world.create(name, count)
        self.members: list[StreamsClient] = []
        self.started = 0

    def group(self) -> StreamsGroup | None:
        groups = self.world.shard.groups()
        return cast(StreamsGroup, groups[0]) if groups else None

    def pick(self, data: st.DataObject) -> StreamsClient:
        return data.draw(st.sampled_from(self.members), label="member")

    @precondition(lambda self: len(self.members) < 6)
    @rule(process=st.integers(0, 2), is_static=st.booleans())
    def start(self, process: int, is_static: bool) -> None:
        self.started += 1
        instance = f"i{self.started}" if is_static else None
        member = StreamsClient(self.world, f"m{self.started}", f"p{process}", instance, TOPOLOGY)
        assert member.step() is ErrorCode.none
        self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), lost=st.booleans())
    def beat(self, data: st.DataObject, lost: bool) -> None:
        self.pick(data).step(loses_reply=lost)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), crashes=st.booleans())
    def stop(self, data: st.DataObject, crashes: bool) -> None:
        member = self.pick(data)
        self.members.remove(member)
        if not crashes:
            member.leave()

    @precondition(lambda self: any(member.instance_id for member in self.members))
    @rule(data=st.data())
    def restart_a_static_member(self, data: st.DataObject) -> None:
        static = [member for member in self.members if member.instance_id]
        member = data.draw(st.sampled_from(static), label="member")
        if member.step() is not ErrorCode.none or member.leave(-2) is not ErrorCode.none:
            return
        self.members.remove(member)
        self.started += 1
        successor = StreamsClient(
            self.world, f"m{self.started}", member.process_id, member.instance_id, TOPOLOGY
        )
        assert successor.step() is ErrorCode.none
        self.members.append(successor)

    @precondition(lambda self: self.started > 3)
    @rule(name=st.sampled_from([*TOPICS, *INTERNAL]), count=st.integers(1, 5))
    def change_a_topic(self, name: str, count: int) -> None:
        if self.world.image.topic(name) is None:
            self.world.create(name, count)
        elif count == 1:
            self.world.delete(name)
        else:
            self.world.grow(name, count)

    @precondition(lambda self: self.group() is not None)
    @rule()
    def create_missing(self) -> None:
        self.world.create_missing()

    @precondition(lambda self: self.world.needed)
    @rule()
    def compute(self) -> None:
        self.world.compute()

    @rule(ms=st.sampled_from([0, 200, 1_000, 6_000, STREAMS_SESSION_MS]))
    def wait(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def fail_over(self) -> None:
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
        again = {each.group_id: cast(StreamsGroup, each).hard_state() for each in loaded.groups()}
        assert again == ({} if group is None else {"g": group.hard_state()})
        if group is not None:
            held = group.metadata_bytes() - TASK_BYTES * group.tasks_with_room
            members = sum(member.bytes() for member in group.members.values())
            assert held == members + (0 if group.topology is None else group.topology.bytes())

    @invariant()
    def no_task_is_active_twice(self) -> None:
        """Of the members that the coordinator knows, also those that have not revoked one yet. A process has
        a task once, in whatever role."""
        group = self.group() if hasattr(self, "world") else None
        if group is None:
            return
        active: Counter[Task] = Counter()
        in_process: dict[tuple[str, Task], set[str]] = {}
        for member in group.members.values():
            active.update(member.assigned.active.keys() | member.pending_revocation.active.keys())
            for owned in (member.assigned, member.pending_revocation):
                for task in owned.active.keys() | owned.standby:
                    in_process.setdefault((member.process_id, task), set()).add(member.member_id)
        assert max(active.values(), default=0) <= 1
        assert all(len(members) == 1 for members in in_process.values()), in_process

    @invariant()
    def what_members_run_is_known(self) -> None:
        """No task runs at a member that the coordinator believes to run elsewhere."""
        group = self.group() if hasattr(self, "world") else None
        if group is None:
            return
        running: Counter[Task] = Counter()
        for member in self.members:
            if member.member_id in group.members and member.epoch:
                running.update(member.running)
        assert max(running.values(), default=0) <= 1

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.come_to_rest()
        finally:
            streams_groups.AT_ONCE_MAX = AT_ONCE_MAX  # type: ignore[misc]
            turn.WRITTEN_AT_ONCE_MAX = WRITTEN_AT_ONCE_MAX  # type: ignore[misc]

    def come_to_rest(self) -> None:
        world = self.world
        for name in INTERNAL:
            if world.image.topic(name) is not None:
                world.delete(name)
        for name, count in TOPICS.items():
            if world.image.topic(name) is None:
                world.create(name, count)
        for _ in range(2):
            for member in self.members:
                member.step()
            world.pass_time(STREAMS_SESSION_MS - 1)  # members that crashed are gone by then
            if self.group() is not None:
                world.create_missing()
        world.streams_settle(*self.members)
        group = self.group()
        assert set(group.members if group else ()) == {member.member_id for member in self.members}
        if not self.members:
            return
        assert group is not None and group.state == "Stable"
        assert group.configured is not None and group.configured.is_ready
        tasks = {
            (name, each) for name, sub in group.configured.subtopologies.items() for each in range(sub.tasks)
        }
        running = [task for member in self.members for task in member.owned.active]
        assert sorted(running) == sorted(tasks)
        processes = len({member.process_id for member in self.members})
        standby = Counter(task for member in self.members for task in member.owned.standby)
        wanted = min(self.standbys, processes - 1)
        stateful_tasks = {task for task in tasks if group.configured.subtopologies[task[0]].is_stateful}
        assert standby == Counter(dict.fromkeys(stateful_tasks, wanted)) or (not wanted and not standby)
        counts = [len(member.owned.active) for member in self.members]
        if processes == len(self.members) and not self.standbys:
            assert max(counts) - min(counts) <= 1 + len(tasks) % len(counts)
        assert not any(member.owned.warmup for member in self.members)
        assert all(isinstance(member.owned, Tasks) for member in self.members)


TestStreamsGroup = StreamsGroupMachine.TestCase
TestStreamsGroup.settings = examples(60, stateful_step_count=30)
