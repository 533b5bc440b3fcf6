"""Replicas with their folders, on disks that lose what was not synced: what was committed stays.

A failing seed is played again by ``pytest tests/unit/raft/test_durable_replicas.py -k 'seed-N'``.
"""

from __future__ import annotations

import errno
import random
import uuid
from typing import Any

import pytest

from nilometer.identifiers import uuid_to_text
from nilometer.invariants import InvariantBroken
from nilometer.raft import snapshot_files
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica, QuorumStopped, Turn
from nilometer.raft.exchange import (
    BeginEpochRequest,
    ChangeRefused,
    EndEpochRequest,
    EpochResponse,
    QuorumFetch,
    QuorumFetchResponse,
    SnapshotFetch,
    VoteRequest,
)
from nilometer.raft.leading import Leading
from nilometer.raft.quorum_state import read_election
from nilometer.raft.recovery import METADATA_LOG, QuorumDamaged, format_folder, write_committed
from nilometer.raft.snapshot_files import SnapshotMaking
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import VoterKey
from nilometer.replication.epochs import EpochEnd
from nilometer.runtime.runtime import Runtime, SeededEntropy
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.flushing import FlushPlan
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import NONE, CorruptBatch, KafkaError
from nilometer.wire.record_batch import batches
from nilometer.wire.records import decode_records
from support.logs.memory_disk import MemoryDisk
from support.step_clock import StepClock

FOLDER = f"/meta/{METADATA_LOG}"
LOG_CONFIG = LogConfig(retention_ms=-1, retention_bytes=-1, segment_bytes=600)


def key_of(node: int) -> VoterKey:
    return VoterKey(node, uuid_to_text(uuid.UUID(int=node << 64)))


def entry_of(node: int) -> VoterEntry:
    return VoterEntry(key_of(node), (Endpoint("CONTROLLER", f"host-{node}", 9093),))


class Node:
    """A machine with its disk, and the replica that runs there, if any."""

    def __init__(self, node: int, clock: StepClock, seed: int, voters: range) -> None:
        self.key = key_of(node)
        self.clock = clock
        self.disk = MemoryDisk(seed * 100 + node)
        self.entropy = SeededEntropy(random.Random(seed * 100 + node))
        self.replica: DurableReplica | None = None
        self.values: dict[int, bytes] = {}
        """What its state machine has applied, by offset."""
        self.applied = 0
        self.plan: FlushPlan | None = None
        """A flush that is under way, and a snapshot that is being written: events happen meanwhile."""
        self.making: SnapshotMaking | None = None
        if node in voters:
            format_folder(self.disk, FOLDER, list(map(entry_of, voters)), wall_ms=1)
        self.start()

    def start(self) -> None:
        runtime: Any = Runtime(self.clock, self.disk, None, self.entropy)  # type: ignore[arg-type]
        self.replica = DurableReplica.open(runtime, FOLDER, self.key, log_config=LOG_CONFIG)
        self.values, self.applied = {}, 0
        self.plan = self.making = None

    def crash(self, *, machine: bool) -> None:
        self.replica = None
        if machine:
            self.disk.crash_machine()
        else:
            self.disk.crash_process()

    def apply(self) -> None:
        """Read what is committed, as a state machine does."""
        replica = self.replica
        assert replica is not None
        snapshot = replica.core.snapshot
        if snapshot is not None and snapshot.id.end_offset > self.applied:
            found = snapshot_files.snapshot_values(self.disk, FOLDER, snapshot.id)
            self.values = {int(value): value for value in found}
            self.applied = snapshot.id.end_offset
        while self.applied < replica.high_watermark:
            part = replica.read_committed(self.applied, 10_000)
            assert part.next_offset > self.applied, "what is committed is in the log"
            for position, header in batches(part.records):
                if not header.is_control:
                    for record in decode_records(part.records, position, header):
                        assert record.value is not None
                        self.values[int(record.value)] = record.value
            self.applied = part.next_offset


class Cluster:
    """Three voters, and what their owners do: deliver messages, fetch, flush, crash, as a seed decides."""

    def __init__(self, seed: int, nodes: int = 3, voters: int = 3) -> None:
        self.chance = random.Random(seed)
        self.clock = StepClock()
        self.nodes = {
            node: Node(node, self.clock, seed, range(1, voters + 1)) for node in range(1, nodes + 1)
        }
        self.messages: list[tuple[int, int, Any]] = []
        self.next_value = 0
        self.acknowledged: dict[int, int] = {}
        """Values that were acknowledged, and where they end."""
        self.reads: list[tuple[DurableReplica, int, int, int]] = []
        """Reads that are not confirmed: replica, round, high watermark, the end of what was acknowledged."""
        self.confirmed = 0
        self.pending: list[tuple[int, int, int, int]] = []
        """Appended values: node, epoch, end offset and value."""

    # ── one step ────────────────────────────────────────────────────────────────────────────────
    def finish(self, node: Node, turn: Turn[Any], may_crash: float = 0.0) -> Any:
        """Do what an owner does after an event. The power may fail before the election is stored."""
        if turn.work is not None:
            if self.chance.random() < may_crash:
                node.crash(machine=True)
                raise ConnectionError
            turn.work()
        self.messages += [(int(node.key.node_id), int(one.to.node_id), one.request) for one in turn.messages]
        for path in turn.removable:
            if node.disk.exists(path):
                node.disk.remove(path)
        return turn.response

    def deliver(self, source: Node, target: Node, request: Any, may_crash: float = 0.0) -> None:
        to, back = target.replica, source.replica
        if to is None:
            return
        if isinstance(request, VoteRequest):
            response = self.finish(target, to.on_vote_request(request), may_crash)
            if back is not None and source.replica is back:
                self.finish(source, back.on_vote_response(request.voter, request, response))
        elif isinstance(request, BeginEpochRequest | EndEpochRequest):
            begins = isinstance(request, BeginEpochRequest)
            turn = to.on_begin_epoch(request) if begins else to.on_end_epoch(request)
            response = self.finish(target, turn, may_crash)
            if back is not None and source.replica is back:
                self.finish(source, back.on_epoch_response(response))

    def fetch(self, node: Node) -> None:
        replica = node.replica
        fetch = None if replica is None else replica.next_fetch()
        leader = None if fetch is None else self.nodes.get(int(fetch.leader))
        if replica is None or leader is None or leader.replica is None:
            return
        if isinstance(fetch, SnapshotFetch):
            response = self.finish(leader, leader.replica.on_snapshot_fetch(fetch))
            response, part = leader.replica.part_for(response, self.chance.choice((50, 10_000)))
            self.finish(node, replica.on_snapshot_response(fetch, response, part))
        elif isinstance(fetch, QuorumFetch):
            response = self.finish(leader, leader.replica.on_fetch(fetch))
            records = b""
            if response.error is NONE:
                response, records = leader.replica.records_for(
                    fetch, response, self.chance.choice((1, 10_000))
                )
            self.finish(node, replica.on_fetch_response(fetch, response, records))

    def discover(self, node: Node, other: Node) -> None:
        """An observer asks another for the leader."""
        if node.replica is not None and other.replica is not None and not node.replica.core.is_voter:
            told = other.replica.core
            response = EpochResponse(NONE, told.epoch, told.leader)
            self.finish(node, node.replica.on_epoch_response(response))

    def flush(self, node: Node, *, at_once: bool = True) -> None:
        """Begin a flush, or end the one that is under way."""
        replica = node.replica
        if replica is None:
            return
        if node.plan is None and replica.needs_flush:
            node.plan = replica.flush_plan()
            if not at_once:
                return
        if node.plan is not None:
            plan, node.plan = node.plan, None
            plan.run()
            self.finish(node, replica.on_flushed(plan))

    def read_snapshot(self, node: Node) -> None:
        if node.replica is not None and node.replica.reading is not None:
            node.replica.reading.run()
            self.finish(node, node.replica.on_snapshot_read(node.replica.reading))

    def append(self, node: Node) -> None:
        replica = node.replica
        if replica is not None and isinstance(replica.core.role, Leading):
            self.next_value += 1
            end = replica.append([b"%d" % self.next_value])
            assert end is not None
            self.pending.append((int(node.key.node_id), replica.core.epoch, end, self.next_value))

    def snapshot(self, node: Node, *, at_once: bool = True) -> None:
        """Begin a snapshot, or end the one that is under way."""
        if node.replica is None:
            return
        if node.making is None:
            node.apply()
            values = [value for _, value in sorted(node.values.items())]
            node.making = node.replica.begin_snapshot(node.applied, values)
            if not at_once:
                return
        if node.making is not None:
            made, node.making = node.making, None
            made.run()
            self.finish(node, node.replica.on_snapshot_made(made))

    def time(self, ms: int) -> None:
        self.clock.us += ms * 1_000
        for node in self.nodes.values():
            if node.replica is not None:
                deadline_ms = node.replica.deadline_ms()
                if deadline_ms is not None and deadline_ms <= self.clock.monotonic_ms():
                    self.finish(node, node.replica.on_time())

    def step(self, *, faults: bool) -> None:
        node = self.chance.choice(list(self.nodes.values()))
        other = self.chance.choice(list(self.nodes.values()))
        draw = self.chance.random()
        may_crash = 0.1 if faults else 0.0
        try:
            if draw < 0.3 and self.messages:
                source, target, request = self.messages.pop(self.chance.randrange(len(self.messages)))
                if not faults or self.chance.random() < 0.9:
                    self.deliver(self.nodes[source], self.nodes[target], request, may_crash)
            elif draw < 0.6:
                self.fetch(node)
            elif draw < 0.75:
                self.flush(node, at_once=self.chance.random() < 0.5)
            elif draw < 0.82:
                if faults:
                    self.append(node)
            elif draw < 0.86:
                self.snapshot(node, at_once=self.chance.random() < 0.5)
            elif draw < 0.88:
                self.read_snapshot(node)
            elif draw < 0.9 and node.replica is not None:
                plan = node.replica.committed_plan()
                if plan is not None:
                    plan()
            elif draw < 0.91:
                self.begin_read(node)
            elif draw < 0.92:
                self.discover(node, other)
            elif draw < 0.97 or not faults:
                self.time(self.chance.randint(0, 400))
            elif node.replica is not None:
                node.crash(machine=self.chance.random() < 0.7)
            if node.replica is None and self.chance.random() < 0.5:
                node.start()
        except ConnectionError:
            pass
        self.note_acknowledged()
        self.check_reads()

    def note_acknowledged(self) -> None:
        """A value is acknowledged once its leader, in the same epoch, has committed it."""
        left = []
        for node, epoch, end, value in self.pending:
            replica = self.nodes[node].replica
            if replica is None or replica.core.epoch != epoch or not isinstance(replica.core.role, Leading):
                continue
            if replica.high_watermark >= end:
                self.acknowledged[value] = end
            else:
                left.append((node, epoch, end, value))
        self.pending = left

    def begin_read(self, node: Node) -> None:
        replica = node.replica
        number = None if replica is None else replica.begin_read()
        if replica is not None and number is not None:
            end = max(self.acknowledged.values(), default=0)
            self.reads.append((replica, number, replica.high_watermark, end))

    def check_reads(self) -> None:
        waiting = []
        for read in self.reads:
            replica, number, high_watermark, acknowledged = read
            confirmed = replica.core.confirmed_round()
            is_alive = any(node.replica is replica for node in self.nodes.values())
            if confirmed is None or not is_alive:
                continue
            if confirmed >= number:
                self.confirmed += 1
                assert high_watermark >= acknowledged, "a read sees what was acknowledged before"
            else:
                waiting.append(read)
        self.reads = waiting

    def leader(self) -> Node:
        """Return the node that leads the latest epoch; any one if none does."""

        def rank(node: Node) -> tuple[bool, int]:
            core = None if node.replica is None else node.replica.core
            return (False, -1) if core is None else (isinstance(core.role, Leading), core.epoch)

        return max(self.nodes.values(), key=rank)

    def heal(self) -> None:
        for node in self.nodes.values():
            if node.replica is None:
                node.start()
        for _ in range(20_000):
            self.step(faults=False)
            replicas = [node.replica for node in self.nodes.values() if node.replica is not None]
            ends = {(one.log_end_offset, one.high_watermark) for one in replicas}
            if len(ends) == 1 and any(isinstance(one.core.role, Leading) for one in replicas):
                (end, high_watermark) = ends.pop()
                if end == high_watermark:
                    return
        raise AssertionError("the quorum does not come to rest")

    def check_equal(self) -> None:
        first: dict[int, bytes] | None = None
        for node in self.nodes.values():
            node.apply()
            assert self.acknowledged.keys() <= node.values.keys(), "what was acknowledged is there"
            assert first is None or node.values == first, "all have the same"
            first = node.values


def play(seed: int, steps: int, nodes: int = 3) -> Cluster:
    cluster = Cluster(seed, nodes)
    for _ in range(steps):
        cluster.step(faults=True)
    cluster.heal()
    for _ in range(
        5
    ):  # a leader that is slow to be fetched from is replaced, and what it has appended is lost
        cluster.append(cluster.leader())
        cluster.heal()
        if cluster.next_value in cluster.acknowledged:
            break
    assert cluster.next_value in cluster.acknowledged, "the quorum takes records again"
    cluster.check_equal()
    return cluster


@pytest.mark.parametrize("seed", range(6), ids="seed-{}".format)
def test_what_is_acknowledged_survives_every_crash(seed: int) -> None:
    play(seed, 1_000, nodes=3 + seed % 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_300), ids="seed-{}".format)
def test_what_is_acknowledged_survives_many_crashes(seed: int) -> None:
    play(seed, 2_500, nodes=3 + seed % 2)


# ── planted faults ──────────────────────────────────────────────────────────────────────────────
def flush_nothing(self: FlushPlan) -> None:
    pass


def append_and_count(self: DurableReplica, batch: bytes) -> None:
    _append(self, batch)
    self.core.flushed_end = self.log_end_offset


_append = DurableReplica._append  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(FlushPlan, "run", flush_nothing), (DurableReplica, "_append", append_and_count)],
    ids=["a flush syncs nothing", "what is appended counts as flushed"],
)
def test_what_is_planted_is_found(
    owner: type, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises((AssertionError, QuorumDamaged, QuorumStopped, KafkaError, CorruptCheckpoint)):
        for seed in range(40):
            play(seed, 700)


# ── one after another ───────────────────────────────────────────────────────────────────────────
def alone(**options: Any) -> tuple[Cluster, Node, DurableReplica]:
    """A quorum of one that leads epoch 1 and has committed three records of its own."""
    cluster = Cluster(0, nodes=1, voters=1, **options)
    node = cluster.nodes[1]
    cluster.time(2_000)
    cluster.flush(node)
    assert node.replica is not None and node.replica.high_watermark == 3
    return cluster, node, node.replica


def test_an_election_is_durable_before_the_next_event() -> None:
    node = Cluster(0).nodes[1]
    assert node.replica is not None
    request = VoteRequest(1, key_of(2), key_of(1), -1, 0, pre_vote=False)
    turn = node.replica.on_vote_request(request)
    assert turn.response.granted and turn.work is not None
    assert read_election(node.disk, FOLDER) is None, "so the vote must not be sent yet"
    with pytest.raises(InvariantBroken, match="durable before the next event"):
        node.replica.on_time()
    turn.work()
    node.crash(machine=True)
    node.start()
    assert not node.replica.on_vote_request(request._replace(candidate=key_of(3))).response.granted


def test_a_truncation_is_durable_before_the_next_event() -> None:
    """Or a power failure could leave the removed records below those of the new leader."""
    cluster, node, replica = alone()
    replica.append([b"1"])
    turn = replica.on_begin_epoch(BeginEpochRequest(2, 9))
    assert turn.work is not None
    turn.work()
    cluster.flush(node)
    fetch = replica.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    turn = replica.on_fetch_response(fetch, QuorumFetchResponse(NONE, 2, 9, diverging=EpochEnd(1, 3)))
    assert replica.log_end_offset == 3 and turn.work is not None
    with pytest.raises(InvariantBroken, match="a truncation is durable before the next event"):
        replica.on_time()
    turn.work()
    replica.on_time()


@pytest.mark.parametrize("number", range(1, 4))
def test_a_replica_whose_disk_fails_does_nothing_more(number: int) -> None:
    _, node, replica = alone()
    node.disk.fail_once(number)
    with pytest.raises(QuorumStopped, match=FOLDER):
        while True:
            replica.append([b"1"])
    assert not isinstance(replica.core.role, Leading)
    node.disk.work_again()
    for event in (replica.on_time, replica.flush_plan, replica.next_fetch, lambda: replica.append([b"1"])):
        with pytest.raises(QuorumStopped):
            event()
    assert not replica.needs_flush


def test_a_sync_that_fails_ends_the_replica() -> None:
    _, node, replica = alone()
    replica.append([b"1"])
    plan = replica.flush_plan()
    node.disk.fail_from(1)
    with pytest.raises(OSError) as failed:
        plan.run()
    replica.fail(failed.value)
    node.disk.work_again()
    with pytest.raises(QuorumStopped):
        replica.on_flushed(plan)


def test_a_log_that_lost_what_was_committed_is_not_opened() -> None:
    _, node, replica = alone()
    plan = replica.committed_plan()
    assert plan is not None
    plan()
    assert replica.committed_plan() is None
    write_committed(node.disk, FOLDER, 4)
    node.crash(machine=False)
    with pytest.raises(QuorumDamaged, match="up to 4 were committed"):
        node.start()


def test_a_fetched_snapshot_replaces_the_log_also_after_a_crash_in_between() -> None:
    _, node, replica = alone()
    replica.append([b"1"])
    node.crash(machine=False)
    snapshot = SnapshotId(9, 5)
    entries = [entry_of(1), entry_of(2)]
    snapshot_files.write_snapshot(node.disk, FOLDER, snapshot, entries, [b"7"], wall_ms=1)
    node.start()
    assert node.replica is not None
    core = node.replica.core
    assert (node.replica.log_end_offset, node.replica.high_watermark, core.epoch) == (9, 9, 5)
    assert snapshot_files.find_snapshots(node.disk, FOLDER) == [snapshot], "none before the log begins"
    assert core.voters.latest.voters == (key_of(1), key_of(2))
    assert node.replica.entry_of(key_of(2)) == entry_of(2)
    node.apply()
    assert node.values == {7: b"7"}


@pytest.mark.parametrize(
    ("snapshot", "log_end_offset"),
    [
        (SnapshotId(3, 1), 4),  # of its own log: the records after it are kept
        (SnapshotId(4, 1), 4),
        (SnapshotId(3, 5), 3),  # the log has a record of epoch 1 there
        (SnapshotId(4, 5), 4),
    ],
    ids=str,
)
def test_a_snapshot_that_the_log_contradicts_replaces_it(snapshot: SnapshotId, log_end_offset: int) -> None:
    _, node, replica = alone()
    replica.append([b"1"])
    node.crash(machine=False)
    snapshot_files.write_snapshot(node.disk, FOLDER, snapshot, [entry_of(1)], [b"7"], wall_ms=1)
    node.start()
    assert node.replica is not None
    assert node.replica.log_end_offset == log_end_offset
    assert node.replica.core.epoch == snapshot.epoch
    log = node.replica._log  # pyright: ignore[reportPrivateUsage]
    assert log.log_start_offset == snapshot.end_offset
    asked = VoteRequest(9, key_of(2), key_of(1), snapshot.epoch, log_end_offset - 1, pre_vote=False)
    assert not node.replica.on_vote_request(asked).response.granted, "its log is longer"


def test_a_log_whose_snapshot_was_removed_is_not_opened() -> None:
    cluster, node, replica = alone()
    for _ in range(3):
        for _ in range(20):
            cluster.append(node)
        cluster.flush(node)
        cluster.snapshot(node)
    assert len(snapshot_files.find_snapshots(node.disk, FOLDER)) == 3, "the first voters, and two"
    assert replica._log.segments.first.base_offset > 0  # pyright: ignore[reportPrivateUsage]
    node.crash(machine=False)
    for name in node.disk.list_directory(FOLDER):
        if name.endswith(snapshot_files.SUFFIX):
            node.disk.remove(f"{FOLDER}/{name}")
    with pytest.raises(CorruptCheckpoint, match="no snapshot reaches it"):
        node.start()


def test_a_leader_whose_disk_is_full_says_so_at_once() -> None:
    cluster = Cluster(0)
    node = cluster.nodes[1]
    assert node.replica is not None
    while not isinstance(node.replica.core.role, Leading):
        cluster.clock.us = max(cluster.clock.us, 1_000 * (node.replica.deadline_ms() or 0))
        cluster.finish(node, node.replica.on_time())
        while cluster.messages:
            source, target, request = cluster.messages.pop(0)
            cluster.deliver(cluster.nodes[source], cluster.nodes[target], request)
    node.disk.fail_once(1, errno.ENOSPC)
    with pytest.raises(QuorumStopped) as stopped:
        node.replica.append([b"1"])
    assert {one.to for one in stopped.value.messages} == {key_of(2), key_of(3)}
    assert all(isinstance(one.request, EndEpochRequest) for one in stopped.value.messages)


def test_a_snapshot_ends_with_a_batch() -> None:
    _, node, replica = alone()
    replica.append([b"1", b"2"])
    plan = replica.flush_plan()
    plan.run()
    replica.on_flushed(plan)
    with pytest.raises(ValueError, match="cannot end at offset 4: it is inside the batch that ends at 5"):
        replica.begin_snapshot(4, [])
    assert replica.begin_snapshot(6, []) is None, "not committed"
    made = replica.begin_snapshot(5, [])
    assert made is not None
    made.run()
    replica.on_snapshot_made(made)
    content = snapshot_files.read_snapshot(node.disk, FOLDER, SnapshotId(5, 1))
    assert content.last_timestamp == 2_000, "of the last record"
    assert content.snapshot == replica.core.snapshot


def test_a_folder_is_formatted_once() -> None:
    disk = Cluster(0).nodes[1].disk
    with pytest.raises(FileExistsError):
        format_folder(disk, FOLDER, [entry_of(1)], wall_ms=1)


def test_records_that_do_not_continue_the_log_are_refused() -> None:
    cluster, _, leader = alone()
    follower = Node(2, cluster.clock, 0, range(0))
    assert follower.replica is not None
    cluster.nodes[2] = follower
    cluster.finish(follower, follower.replica.on_epoch_response(EpochResponse(NONE, 1, 1)))
    fetch = follower.replica.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    response, records = leader.records_for(fetch, leader.on_fetch(fetch).response, 10_000)
    for wrong, moved in (
        (bytes(records[:-1]) + b"\x01", 0),  # the checksum differs
        (records, 1),  # they begin below
    ):
        with pytest.raises(CorruptBatch):
            follower.replica.on_fetch_response(fetch._replace(fetch_offset=moved), response, wrong)
    with pytest.raises(CorruptBatch, match="epoch 1"):
        follower.replica.on_fetch_response(fetch, response._replace(epoch=0), records)
    assert follower.replica.log_end_offset == 0
    cluster.finish(follower, follower.replica.on_fetch_response(fetch, response, records))
    assert follower.replica.log_end_offset == 3
    assert follower.replica.core.voters.latest.voters == (key_of(1),), "the log has named them"
    assert follower.replica.entry_of(key_of(1)) == entry_of(1)


def test_a_leader_that_would_truncate_what_is_committed_ends_the_replica() -> None:
    _, _, replica = alone()
    turn = replica.on_begin_epoch(BeginEpochRequest(2, 9))
    assert turn.work is not None
    turn.work()
    fetch = replica.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    diverging = QuorumFetchResponse(NONE, 2, 9, diverging=EpochEnd(0, 0))
    with pytest.raises(QuorumStopped, match="never truncated"):
        replica.on_fetch_response(fetch, diverging)
    with pytest.raises(QuorumStopped):
        replica.on_vote_request(VoteRequest(3, key_of(2), key_of(1), 9, 99, pre_vote=False))


def test_a_voter_is_added_with_where_it_listens_and_removed() -> None:
    cluster, node, leader = alone()
    cluster.nodes[2] = follower = Node(2, cluster.clock, 0, range(0))
    assert leader.add_voter(entry_of(2)) is ChangeRefused.NOT_CAUGHT_UP
    assert follower.replica is not None
    cluster.finish(follower, follower.replica.on_epoch_response(EpochResponse(NONE, 1, 1)))
    for _ in range(2):
        cluster.fetch(follower)
        cluster.flush(follower)
    added = leader.add_voter(entry_of(2))
    assert isinstance(added, Turn)
    cluster.finish(node, added)
    cluster.heal()
    assert follower.replica.core.is_voter and follower.replica.entry_of(key_of(2)) == entry_of(2)
    follower.crash(machine=True)
    follower.start()
    assert follower.replica is not None and follower.replica.core.is_voter
    moved = VoterEntry(key_of(2), (Endpoint("CONTROLLER", "elsewhere", 9093),))
    assert leader.update_voter(entry_of(3)) is ChangeRefused.NO_VOTER
    updated = leader.update_voter(moved)
    assert isinstance(updated, Turn)
    assert leader.update_voter(moved) is ChangeRefused.CHANGE_NOT_COMMITTED
    cluster.heal()
    assert follower.replica.entry_of(key_of(2)) == moved and follower.replica.core.is_voter
    removed = leader.remove_voter(key_of(2))
    assert isinstance(removed, Turn)


def test_a_change_of_the_voters_that_is_not_committed_survives_a_restart() -> None:
    cluster, node, leader = alone()
    cluster.nodes[2] = follower = Node(2, cluster.clock, 0, range(0))
    assert follower.replica is not None
    cluster.finish(follower, follower.replica.on_epoch_response(EpochResponse(NONE, 1, 1)))
    for _ in range(2):
        cluster.fetch(follower)
        cluster.flush(follower)
    added = leader.add_voter(entry_of(2))
    assert isinstance(added, Turn)
    cluster.finish(node, added)
    for _ in range(2):
        cluster.flush(node)
    assert leader.core.flushed_end > leader.core.voters.latest_offset >= leader.high_watermark
    node.crash(machine=True)
    node.start()
    assert node.replica is not None
    assert node.replica.core.voters.latest.voters == (key_of(1), key_of(2))
    assert node.replica.entry_of(key_of(2)) == entry_of(2)


def test_an_address_whose_record_is_truncated_does_not_count() -> None:
    cluster, node, leader = alone()
    cluster.nodes[2] = follower = Node(2, cluster.clock, 0, range(0))
    assert follower.replica is not None
    cluster.finish(follower, follower.replica.on_epoch_response(EpochResponse(NONE, 1, 1)))
    for _ in range(2):
        cluster.fetch(follower)
        cluster.flush(follower)
    added = leader.add_voter(entry_of(2))
    assert isinstance(added, Turn)
    cluster.finish(node, added)
    cluster.heal()
    end_offset = leader.log_end_offset
    moved = VoterEntry(key_of(1), (Endpoint("CONTROLLER", "elsewhere", 9093),))
    updated = leader.update_voter(moved)
    assert isinstance(updated, Turn)
    assert leader.entry_of(key_of(1)) == moved
    making = leader.begin_snapshot(end_offset, ())
    assert making is not None
    making.run()
    content = snapshot_files.read_snapshot(node.disk, FOLDER, making.id)
    assert content.entries[0] == entry_of(1), "a snapshot has what is committed"
    cluster.flush(node)
    cluster.finish(node, leader.on_begin_epoch(BeginEpochRequest(2, 2)))
    fetch = leader.next_fetch()
    assert isinstance(fetch, QuorumFetch)
    diverging = QuorumFetchResponse(NONE, 2, 2, diverging=EpochEnd(1, end_offset))
    turn = leader.on_fetch_response(fetch, diverging)
    assert leader.log_end_offset == end_offset
    assert leader.entry_of(key_of(1)) == entry_of(1)
    synced: list[str] = []
    node.disk.fails = lambda _, verb, path: synced.append(path) if verb == "sync" else None
    cluster.finish(node, turn)
    assert synced == [f"{FOLDER}/00000000000000000000.log", FOLDER], "before the next leader's records"


def test_too_large_a_batch_is_refused() -> None:
    _, _, replica = alone()
    with pytest.raises(ValueError, match="in one batch"):
        replica.append([bytes(5 << 20), bytes(5 << 20)])
    assert replica.log_end_offset == 3 and replica.append([b"1"]) == 4
