"""Consumers of the classic protocol as naive as can be: they do the next thing, and react to each error.

What they were told is kept in a :class:`History`, which checks it as it grows:

- all members of a generation hear of one protocol; only the leader learns the members;
- generations only rise in the order of the answers, which clients may hear late;
- in a generation each partition belongs to one member (a static member is one under all its ids);
- an assignment, once told, is told again unchanged, and is not undone.

A fail-over undoes a generation whose assignment was not written yet: its number is given again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from group_harness import GroupWorld, protocols

from nilometer.coordinators import Token
from nilometer.groups.requests import JoinGroupProtocol, JoinGroupResult, SyncGroupResult
from nilometer.wire.errors import ErrorCode

PARTITIONS = 4
DONE = ErrorCode.none


@dataclass
class History:
    world: GroupWorld
    leaders: dict[int, tuple[str, str | None]] = field(default_factory=dict[int, tuple[str, str | None]])
    owners: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    assignments: dict[tuple[int, str], bytes] = field(default_factory=dict[tuple[int, str], bytes])

    _answers: int = 0
    _newest: int = 0

    @property
    def newest(self) -> int:
        """The newest generation, which a member may have been told without having heard it yet."""
        self._look_at_answers()
        return self._newest

    def _look_at_answers(self) -> None:
        for reply in islice(self.world.replies.values(), self._answers, None):
            if isinstance(reply, JoinGroupResult) and reply.error_code is DONE:
                assert reply.generation_id >= self._newest, "a generation that has gone by"
                self._newest = reply.generation_id
        self._answers = len(self.world.replies)

    def on_fail_over(self) -> None:
        """After it: members ask a coordinator that knows only what was written."""
        self._look_at_answers()
        self._newest = self.world.written_generation()
        told = {generation for generation, _ in (*self.owners, *self.assignments)}
        assert max(told, default=0) <= self._newest, "an assignment is undone"
        self.leaders = {number: leader for number, leader in self.leaders.items() if number <= self._newest}

    def on_joined(self, reply: JoinGroupResult, version: int) -> None:
        told = self.leaders.setdefault(reply.generation_id, (reply.leader, reply.protocol_name))
        assert told[1] == reply.protocol_name
        is_leader = reply.leader == reply.member_id
        assert bool(reply.members) == is_leader
        if is_leader:
            assert reply.member_id in {member.member_id for member in reply.members}
        assert reply.generation_id <= self.newest

    def on_synced(self, generation: int, name: str, assignment: bytes) -> None:
        assert self.assignments.setdefault((generation, name), assignment) == assignment
        for partition in assignment:
            owner = self.owners.setdefault((generation, partition), name)
            assert owner == name, f"partition {partition} of generation {generation}: {owner} and {name}"


@dataclass
class Client:
    """``name`` stands for whatever makes it one and the same: its instance id, or one incarnation of it."""

    world: GroupWorld
    history: History
    client_id: str
    instance: str | None
    version: int
    offers: tuple[JoinGroupProtocol, ...] = field(default_factory=lambda: protocols("range", "sticky"))
    member_id: str = ""
    generation: int = -1
    joining: Token | None = None
    syncing: Token | None = None
    given: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """By the leader to all members, itself included."""
    owned: bytes | None = None
    """None: not a member of a generation in which it knows its part."""
    fenced: bool = False
    forgotten: bool = False
    """A fail-over undid that this static member replaced its former self: Kafka fences it, too."""

    @property
    def name(self) -> str:
        return self.member_id if self.instance is None else self.instance

    def step(self) -> None:
        """The next thing to do."""
        if self.fenced:
            return
        if self.joining is not None:
            self._hear_join(self.joining)
        elif self.syncing is not None:
            self._hear_sync(self.syncing)
        elif self.generation < 0:
            self._join()
        elif self.owned is None:
            self._sync()
        else:
            self._react(self.world.heartbeat(self.member_id, self.generation, instance=self.instance))

    def _join(self) -> None:
        self.owned = None
        self.joining = self.world.join(
            self.member_id,
            client=self.client_id,
            instance=self.instance,
            offers=self.offers,
            version=self.version,
        )
        self._hear_join(self.joining)

    def _hear_join(self, token: Token) -> None:
        if not self.world.is_answered(token):
            return
        self.joining = None
        reply = self.world.joined(token)
        if reply.error_code is ErrorCode.member_id_required:
            self.member_id = reply.member_id
        if reply.error_code is not DONE:
            self._react(reply.error_code)
            return
        self.history.on_joined(reply, self.version)
        self.member_id, self.generation = reply.member_id, reply.generation_id
        ids = [member.member_id for member in reply.members]
        self.given = {} if reply.skip_assignment else deal(ids)

    def _sync(self) -> None:
        self.syncing = self.world.sync(self.member_id, self.generation, self.given, instance=self.instance)
        self._hear_sync(self.syncing)

    def _hear_sync(self, token: Token) -> None:
        if not self.world.is_answered(token):
            return
        self.syncing = None
        reply: SyncGroupResult = self.world.synced(token)
        if reply.error_code is not DONE:
            self._react(reply.error_code)
            return
        self.owned = reply.assignment
        self.history.on_synced(self.generation, self.name, reply.assignment)

    def _react(self, error_code: ErrorCode) -> None:
        if error_code is DONE:
            return
        self.generation, self.owned = -1, None
        if error_code in (ErrorCode.unknown_member_id, ErrorCode.group_max_size_reached):
            self.member_id = ""
        elif error_code is ErrorCode.fenced_instance_id:
            assert self.forgotten, "fenced, and no other has come in its place"
            self.fenced = True
        else:
            assert error_code in (
                ErrorCode.rebalance_in_progress,
                ErrorCode.illegal_generation,
                ErrorCode.member_id_required,
            ), error_code

    # -- what may happen to it -----------------------------------------------------------------------------

    def change_topics(self, *topics: str) -> None:
        """It joins again at once, if it is not in the middle of something."""
        self.offers = protocols("range", "sticky", topics=topics)
        if self.joining is None and self.syncing is None:
            self.generation, self.owned = -1, None

    def hang_up(self) -> None:
        """The connection is gone: what it waits for is not heard."""
        for token in (self.joining, self.syncing):
            if token is not None:
                self.world.forget(token)
        self.joining = self.syncing = None
        self.generation, self.owned = -1, None

    def restart(self) -> None:
        """Without having left: it remembers nothing."""
        self.hang_up()
        self.member_id = ""
        self.fenced = self.forgotten = False

    def on_fail_over(self) -> None:
        """No answer comes; the group knows only what was written."""
        self.hang_up()
        ids = {member.group_instance_id: member.member_id for member in self.world.describe().members}
        if self.instance is not None and self.member_id:
            self.forgotten = ids.get(self.instance, self.member_id) != self.member_id

    def leave(self) -> None:
        if self.member_id:
            self.world.leave((self.member_id, self.instance))
        self.restart()


def deal(member_ids: list[str]) -> dict[str, bytes]:
    """All partitions, in turn."""
    return {
        member_id: bytes(range(number, PARTITIONS, len(member_ids)))
        for number, member_id in enumerate(member_ids)
    }
