"""Replicas with their folders, on disks that lose what was not synced: what was committed stays.

A failing seed is played again by ``pytest tests/unit/raft/test_durable_replicas.py -k 'seed-N'``.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from nilometer.identifiers import uuid_to_text
from nilometer.raft import snapshot_files
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica, Turn
from nilometer.raft.exchange import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochResponse,
    QuorumFetch,
    SnapshotFetch,
    VoteRequest,
)
from nilometer.raft.leading import Leading
from nilometer.raft.recovery import METADATA_LOG
from nilometer.raft.voters import VoterKey
from nilometer.runtime.runtime import Runtime, SeededEntropy
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import NONE
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
        self.disk.make_directories(FOLDER)
        if node in voters:
            snapshot_files.write_snapshot(
                self.disk, FOLDER, snapshot_files.BOOTSTRAP, list(map(entry_of, voters)), (), wall_ms=1
            )
        self.disk.sync_directory("/meta")
        self.disk.sync_directory("/")
        self.start()

    def start(self) -> None:
        runtime: Any = Runtime(self.clock, self.disk, None, self.entropy)  # type: ignore[arg-type]
        self.replica = DurableReplica.open(runtime, FOLDER, self.key, log_config=LOG_CONFIG)
        self.values, self.applied = {}, 0

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
        self.acknowledged: set[int] = set()
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
            if replica.reading is not None:
                replica.reading.run()
                self.finish(node, replica.on_snapshot_read(replica.reading))
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

    def flush(self, node: Node) -> None:
        if node.replica is not None and node.replica.needs_flush:
            plan = node.replica.flush_plan()
            plan.run()
            self.finish(node, node.replica.on_flushed(plan))

    def append(self, node: Node) -> None:
        replica = node.replica
        if replica is not None and isinstance(replica.core.role, Leading):
            self.next_value += 1
            end = replica.append([b"%d" % self.next_value])
            assert end is not None
            self.pending.append((int(node.key.node_id), replica.core.epoch, end, self.next_value))

    def snapshot(self, node: Node) -> None:
        if node.replica is None:
            return
        node.apply()
        values = [value for _, value in sorted(node.values.items())]
        made = node.replica.begin_snapshot(node.applied, values)
        if made is not None:
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
                self.flush(node)
            elif draw < 0.82:
                self.append(node)
            elif draw < 0.86:
                self.snapshot(node)
            elif draw < 0.9 and node.replica is not None:
                plan = node.replica.committed_plan()
                if plan is not None:
                    plan()
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

    def note_acknowledged(self) -> None:
        """A value is acknowledged once its leader, in the same epoch, has committed it."""
        left = []
        for node, epoch, end, value in self.pending:
            replica = self.nodes[node].replica
            if replica is None or replica.core.epoch != epoch or not isinstance(replica.core.role, Leading):
                continue
            if replica.high_watermark >= end:
                self.acknowledged.add(value)
            else:
                left.append((node, epoch, end, value))
        self.pending = left

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
            assert self.acknowledged <= node.values.keys(), "what was acknowledged is there"
            assert first is None or node.values == first, "all have the same"
            first = node.values


def play(seed: int, steps: int, nodes: int = 3) -> Cluster:
    cluster = Cluster(seed, nodes)
    for _ in range(steps):
        cluster.step(faults=True)
    cluster.heal()
    cluster.check_equal()
    return cluster


@pytest.mark.parametrize("seed", range(6), ids="seed-{}".format)
def test_what_is_acknowledged_survives_every_crash(seed: int) -> None:
    cluster = play(seed, 700, nodes=3 + seed % 2)
    assert cluster.acknowledged
