"""Any sequence of joins, crashes, hang-ups, commits, pauses and failovers, against naive clients and offsets.

While it goes on the :class:`History` is checked; at the end all clients behave, and the group must converge:
one stable generation with exactly those who are there, all partitions dealt out to them (E-42, E-43).
"""

from __future__ import annotations

from classic_clients import PARTITIONS, Client, History
from group_harness import GroupWorld
from hypothesis import Phase, given
from hypothesis import strategies as st

from nilometer.groups.classic_group import ClassicGroup
from nilometer.groups.requests import MEMBER_BYTES
from nilometer.groups.settings import GroupConfig
from nilometer.wire.errors import ErrorCode
from support.properties import examples

NUMBERS = st.integers(0, 3)
STATIC = (None, None, "i", "j")
VERSIONS = (3, 5, 8, 9)
HEALING_S = 200
STEP_MS = 1_000


class Scenario:
    def __init__(self, delay_ms: int, size_max: int) -> None:
        config = GroupConfig(group_initial_rebalance_delay_ms=delay_ms, group_max_size=size_max)
        self.size_max = size_max
        self.world = GroupWorld(config)
        self.history = History(self.world)
        self.clients = [self._client(number) for number in range(len(STATIC))]
        self.present = set(range(len(self.clients)))
        self.offsets: dict[tuple[str, int], int] = {}
        self.offset = 0

    def _client(self, number: int) -> Client:
        return Client(self.world, self.history, f"c{number}", STATIC[number], VERSIONS[number])

    def step(self, number: int, steps: int) -> None:
        self.present.add(number)
        for _ in range(steps):
            self.clients[number].step()

    def live(self, seconds: int) -> None:
        """Every client takes its next step each second."""
        for _ in range(seconds):
            for number in sorted(self.present):
                self.clients[number].step()
                self.clients[number].step()
            self.world.pass_time(STEP_MS)

    def hang_up(self, number: int) -> None:
        self.clients[number].hang_up()

    def crash(self, number: int, back: bool) -> None:
        self.clients[number].restart()
        if not back:
            self.present.discard(number)

    def leave(self, number: int) -> None:
        self.clients[number].leave()
        self.present.discard(number)

    def change_topics(self, number: int, topics: tuple[str, ...]) -> None:
        self.clients[number].change_topics(*topics)

    def come_twice_with_one_instance_id(self, number: int) -> None:
        """The former is fenced, and ends; the later takes over."""
        self.clients[number] = self._client(number)
        self.present.add(number)

    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    def fail_over(self) -> None:
        """No client gets its answer; generations and offsets go on from what was written."""
        self.world.fail_over()
        self.history.on_fail_over()
        for client in self.clients:
            client.on_fail_over()

    def commit(self, number: int, partition: int, stale: int) -> None:
        client = self.clients[number]
        generation = client.generation - stale
        if client.owned is None or generation < 0:
            return
        self.offset += 1
        verdict = self.world.commit(
            self.offset,
            member_id=client.member_id,
            generation=generation,
            instance=client.instance,
            partition=partition,
        )
        if verdict is ErrorCode.none:
            assert generation == self.history.newest, "a member of a generation gone by has committed"
            self.offsets["t", partition] = self.offset

    def commit_from_outside(self, partition: int) -> None:
        self.offset += 1
        was_empty = self.world.state() in ("Empty", "Dead")
        accepted = self.world.commit(self.offset, partition=partition) is ErrorCode.none
        assert accepted == was_empty
        if accepted:
            self.offsets["t", partition] = self.offset

    def strangers_ask(self, member_id: str, generation: int) -> None:
        """Whatever they are told, it changes nothing."""
        members = {member.member_id for member in self.world.describe().members}
        if member_id not in members:
            before = self.world.describe()
            assert self.world.heartbeat(member_id, generation) is ErrorCode.unknown_member_id
            token = self.world.sync(member_id, generation, {"x": b"!"})
            assert self.world.synced(token).error_code is ErrorCode.unknown_member_id
            assert self.world.leave("x") == [ErrorCode.unknown_member_id]
            assert self.world.describe() == before

    def offsets_are_the_last_that_were_accepted(self) -> None:
        assert self.world.committed() == self.offsets

    def no_request_waits_without_an_end(self) -> None:
        waiting = [each.joining or each.syncing for each in self.clients]
        if any(token is not None and not self.world.is_answered(token) for token in waiting):
            assert self.world.shard.next_deadline_ms() is not None

    def what_members_hold_is_counted(self) -> None:
        for group in self.world.shard._state.groups.values():
            assert isinstance(group, ClassicGroup)
            counted = group.metadata_bytes() - sum(len(one) + MEMBER_BYTES for one in group.pending_members)
            assert counted == sum(member.metadata_bytes() for member in group.members.values())
        self.world.check_held_bytes()

    def converge(self) -> None:
        """From wherever the group is."""
        self.live(HEALING_S)
        there = [self.clients[number] for number in sorted(self.present) if not self.clients[number].fenced]
        members = [client for client in there if client.owned is not None]
        assert len(members) == min(len(there), self.size_max), self.world.describe()
        if members:
            assert self.world.state() == "Stable"
            assert {client.generation for client in members} == {self.history.newest}
            owned = sorted(partition for client in members for partition in client.owned or b"")
            assert owned == list(range(PARTITIONS))
        assert {member.member_id for member in self.world.describe().members} == {
            client.member_id for client in members
        }
        assert self.world.unanswered() == set()


def step(
    name: str, *arguments: st.SearchStrategy[object]
) -> st.SearchStrategy[tuple[str, tuple[object, ...]]]:
    return st.tuples(st.just(name), st.tuples(*arguments))


LIVE = step("live", st.integers(1, 40))
STEPS = st.one_of(
    LIVE,
    LIVE,
    LIVE,
    step("step", NUMBERS, st.integers(1, 4)),
    step("hang_up", NUMBERS),
    step("crash", NUMBERS, st.booleans()),
    step("leave", NUMBERS),
    step("change_topics", NUMBERS, st.sampled_from((("t",), ("t", "u"), ("v",)))),
    step("come_twice_with_one_instance_id", NUMBERS),
    step("pass_time", st.sampled_from((1, 1_000, 3_000, 9_999, 40_000))),
    step("fail_over"),
    step("commit", NUMBERS, st.integers(0, 1), st.integers(0, 2)),
    step("commit_from_outside", st.integers(0, 1)),
    step("strangers_ask", st.sampled_from(("", "c0-1", "i-1", "x")), st.integers(-1, 3)),
)


@examples(90, phases=(Phase.explicit, Phase.generate))  # shrinking such a run takes minutes
@given(st.sampled_from((0, 3_000)), st.sampled_from((3, 100)), st.lists(STEPS, min_size=20, max_size=40))
def test_edge_43_a_group_converges_whatever_happened(
    delay_ms: int, size_max: int, steps: list[tuple[str, tuple[object, ...]]]
) -> None:
    scenario = Scenario(delay_ms, size_max)
    for name, arguments in steps:
        getattr(scenario, name)(*arguments)
        scenario.offsets_are_the_last_that_were_accepted()
        scenario.no_request_waits_without_an_end()
        scenario.what_members_hold_is_counted()
    scenario.converge()
