"""Three voters of a metadata quorum on machines of the simulation, each recorded, and the judge of an image.

A voter promises by what it sends. Marks: ``identity`` (its directory id); ``epoch`` (epoch) of a fetch that
it sends; ``vote`` (epoch, the candidate's directory id) before it asks for votes, and before it grants one;
``durable`` (offset, epoch of the record before, or -1) of a fetch, by which the records below it count, and
of a leader that counts itself; ``diverges`` (offset) when the leader says that its log agrees to there, or
sends a snapshot of what is below.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nilometer.coordination.quorum.commands import AppliedState, PutSecret
from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.quorum.peers import Fetched, Peers, Request
from nilometer.coordination.store import CoordinationError
from nilometer.identifiers import BrokerId
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica
from nilometer.raft.exchange import BeginEpochRequest, QuorumFetch, VoteRequest, VoteResponse
from nilometer.raft.quorum_state import claim, identify
from nilometer.raft.recovery import LOG_CONFIG, METADATA_LOG, format_folder, recover
from nilometer.raft.snapshot_files import snapshot_values
from nilometer.raft.voters import VoterKey
from nilometer.replication.epochs import NO_DIVERGENCE
from nilometer.runtime import Runtime
from nilometer.simulation.disk import FolderNode
from nilometer.simulation.loop import Pace
from nilometer.simulation.quorum import SimulatedPeers, serve_peers
from nilometer.simulation.run import LogCapture
from nilometer.simulation.world import EPOCH_MS, Host, Process, World
from nilometer.storage.directories.log_directory import MetaProperties, new_directory_id
from nilometer.wire.record_batch import batches
from support.crash_images.images import mounted
from support.crash_images.recording import Mark, Operation, Recording, RecordingDisk, Write
from support.logs.memory_disk import MemoryDisk

ROOT = "/data"
DIRECTORY = f"{ROOT}/1"
FOLDER = f"{DIRECTORY}/{METADATA_LOG}"
VOTERS = (1, 2, 3)
PORT = 9292
SNAPSHOT_BYTES = 1_500
RESTART_S = (0.2, 3.0)


class Voter:
    def __init__(self, world: World, node_id: int, key: VoterKey) -> None:
        self.node_id = node_id
        self.key = key
        self.host: Host = world.host(f"voter-{node_id}")
        self.host.disk.pace = Pace(sync_ms=(0.1, 20.0))
        self.host.disk.root.entries["data"] = FolderNode()
        self.recording = Recording(ROOT, [])
        self.disk: RecordingDisk | None = None
        self.node: QuorumNode | None = None
        self.process: Process | None = None

    @property
    def entry(self) -> VoterEntry:
        return VoterEntry(self.key, (Endpoint("CONTROLLER", self.host.name, PORT),))

    def mark(self, kind: str, *values: str | int) -> None:
        self.recording.operations.append(Mark(kind, values))

    def start(self, all_voters: Sequence[VoterEntry]) -> None:
        self.process = self.host.start(f"node-{self.node_id}", partial(self._main, all_voters))

    async def _main(self, all_voters: Sequence[VoterEntry], runtime: Runtime) -> None:
        disk = RecordingDisk(
            Path(ROOT),
            inner=runtime.disk,
            identity=lambda path: id(self.host.disk.file(path)),
            before=self.disk,
        )
        is_new, self.disk, self.recording = self.disk is None, disk, disk.recording
        runtime = dataclasses.replace(runtime, disk=disk)
        if is_new:
            disk.make_directories(DIRECTORY)
            disk.sync_directory(DIRECTORY)
            disk.sync_directory(ROOT)
            claim(disk, DIRECTORY, MetaProperties(BrokerId(self.node_id), None, self.key.directory_id))
            format_folder(disk, FOLDER, all_voters, runtime.clock.wall_ms())
        key = identify(disk, DIRECTORY, BrokerId(self.node_id), None, runtime.entropy.uuid())
        self.mark("identity", key.directory_id)
        replica = DurableReplica.open(runtime, FOLDER, key)
        node = self.node = QuorumNode(
            runtime, replica, _MarkingPeers(runtime, self), snapshot_bytes=SNAPSHOT_BYTES
        )
        await node.start()
        listener = await serve_peers(runtime, PORT, partial(self._serve, node, all_voters))
        while node.failure is None:
            await node.wait_change()
        listener.close()
        raise node.failure

    async def _serve(self, node: QuorumNode, all_voters: Sequence[VoterEntry], request: Request) -> Any:
        if isinstance(request, BeginEpochRequest):
            (leader,) = (each for each in all_voters if each.key.node_id == request.leader)
            node.on_announced(request, leader.endpoints)
        response = await node.serve(request)
        if isinstance(request, QuorumFetch) and node.leads:
            self.mark("durable", node.replica.core.flushed_end, -1)
        if isinstance(request, VoteRequest) and not request.pre_vote:
            assert isinstance(response, VoteResponse)
            if response.granted:
                self.mark("vote", request.epoch, request.candidate.directory_id)
        return response


class _MarkingPeers(Peers):
    def __init__(self, runtime: Runtime, voter: Voter) -> None:
        self._peers = SimulatedPeers(runtime)
        self._voter = voter

    async def ask(self, to: VoterEntry, request: Request) -> Any:
        if isinstance(request, VoteRequest) and not request.pre_vote:
            self._voter.mark("vote", request.epoch, request.candidate.directory_id)
        if isinstance(request, QuorumFetch):
            self._voter.mark("epoch", request.epoch)
            self._voter.mark("durable", request.fetch_offset, request.last_fetched_epoch)
        response = await self._peers.ask(to, request)
        if isinstance(response, Fetched):
            diverging, snapshot = response.response.diverging, response.response.snapshot
            if diverging is not NO_DIVERGENCE:
                self._voter.mark("diverges", diverging.end_offset)
            elif snapshot is not None:
                self._voter.mark("diverges", snapshot.end_offset)
        return response


def record_voters(seed: int, rounds: int) -> list[Recording]:
    """Return the recordings of three voters that are killed and cut off by chance, under commands."""
    world, chance = World(seed), random.Random(seed)
    keys = [
        VoterKey(BrokerId(node_id), new_directory_id(uuid.UUID(int=chance.getrandbits(128), version=4)))
        for node_id in VOTERS
    ]
    voters = [Voter(world, key.node_id, key) for key in keys]
    entries = [voter.entry for voter in voters]

    async def main(world: World) -> None:
        for voter in voters:
            voter.start(entries)
        for _ in range(rounds):
            await _round(world, voters, entries, chance)
        world.network.heal_all()
        for voter in voters:
            assert voter.process is not None
            if not voter.process.alive:
                voter.start(entries)
        await asyncio.sleep(10.0)
        assert any(voter.node is not None and voter.node.leads for voter in voters)

    with LogCapture(world) as log:
        world.run(main)
    assert world.failures == log.unexpected == [], (world.failures, log.unexpected)
    return [voter.recording for voter in voters]


async def _round(
    world: World, voters: Sequence[Voter], entries: Sequence[VoterEntry], chance: random.Random
) -> None:
    match chance.randrange(8):
        case 0:
            victim = chance.choice(voters)
            assert victim.process is not None
            if victim.process.alive:
                victim.process.crash()
                await asyncio.sleep(chance.uniform(*RESTART_S))
                victim.start(entries)
        case 1 | 2:
            leaders = [each for each in voters if each.node is not None and each.node.leads]
            apart = leaders[-1] if leaders else chance.choice(voters)
            others = [each.host.name for each in voters if each is not apart]
            world.network.separate([apart.host.name], others)
            for each in voters:
                _propose(each, chance)
            await asyncio.sleep(chance.uniform(0.1, 5.0))
            for each in voters:
                _propose(each, chance)
            await asyncio.sleep(chance.uniform(0.1, 2.0))
            world.network.heal_all()
        case _:
            _propose(chance.choice(voters), chance)
    await asyncio.sleep(chance.uniform(0.0, 0.5))


def _propose(voter: Voter, chance: random.Random) -> None:
    node, process = voter.node, voter.process
    if node is None or process is None or not process.alive:
        return
    commands = [
        PutSecret(None, chance.randrange(50), chance.randbytes(chance.randint(1, 300)))
        for _ in range(chance.randint(1, 4))
    ]

    async def propose(command: PutSecret) -> None:
        with suppress(CoordinationError):
            async with asyncio.timeout(5.0):
                await node.propose(command)

    async def propose_all() -> None:
        with suppress(TimeoutError):
            await asyncio.gather(*map(propose, commands))

    world = process.world
    world.loop.in_process(0.0, process, lambda: world.loop.create_task(propose_all()))


class Written(NamedTuple):
    """A batch of the metadata log: its offset and epoch determine all that is before it."""

    base_offset: int
    epoch: int


class History:
    """All batches that any voter wrote, and which followed which."""

    def __init__(self, recordings: Iterable[Recording]) -> None:
        self.content: dict[Written, bytes] = {}
        self.followed: set[tuple[Written, Written]] = set()
        for recording in recordings:
            self._read(recording.operations)

    def _read(self, operations: Iterable[Operation]) -> None:
        chain: list[tuple[Written, int]] = []
        paths: dict[int, str] = {}
        for each in operations:
            if hasattr(each, "path") and hasattr(each, "file"):
                paths[each.file] = each.path  # type: ignore[union-attr]
            if not isinstance(each, Write) or not paths[each.file].endswith(".log"):
                continue
            for position, header in batches(each.data):
                batch = Written(header.base_offset, header.partition_leader_epoch)
                content = bytes(each.data[position : position + header.size])
                assert self.content.setdefault(batch, content) == content, "an epoch has one leader"
                while chain and chain[-1][0].base_offset >= batch.base_offset:
                    chain.pop()
                if chain and chain[-1][1] == batch.base_offset:
                    self.followed.add((chain[-1][0], batch))
                chain.append((batch, header.next_offset))


@dataclasses.dataclass
class Said:
    """What a voter's marks say."""

    identity: str | None = None
    epoch: int = 0
    votes: dict[int, str] = dataclasses.field(default_factory=dict[int, str])
    durable: int = 0
    last_epoch: int = -1
    """Of the record before ``durable``; -1: not known."""

    @classmethod
    def by(cls, marks: Iterable[Mark]) -> Said:
        said = cls()
        for mark in marks:
            match mark.kind, mark.values:
                case "identity", (str() as directory_id,):
                    said.identity = directory_id
                case "epoch", (int() as epoch,):
                    said.epoch = max(said.epoch, epoch)
                case "vote", (int() as epoch, str() as candidate):
                    said.epoch = max(said.epoch, epoch)
                    assert said.votes.setdefault(epoch, candidate) == candidate, "one vote in an epoch"
                case "durable", (int() as offset, int() as epoch):
                    said.durable, said.last_epoch = offset, epoch
                case "diverges", (int() as offset,):
                    if offset < said.durable:
                        said.durable, said.last_epoch = offset, -1
                case _:
                    raise AssertionError(mark)
        return said


def judge_voter(image: FolderNode, node_id: int, marks: Iterable[Mark], history: History) -> list[str]:
    """Return what is wrong with the image of one voter's power cut; the others are not needed for that."""
    said = Said.by(marks)
    disk = MemoryDisk()
    disk.root = mounted(image, ROOT)
    if said.identity is None and not disk.exists(f"{DIRECTORY}/meta.properties"):
        return []  # it was not formatted yet
    if said.identity is None:
        return _judge_format(disk, node_id)
    key = identify(disk, DIRECTORY, BrokerId(node_id), None, uuid.UUID(int=7))
    findings: list[str] = []
    if key.directory_id != said.identity:
        findings.append(f"the voter is {key}, not {said.identity}")
    found = recover(disk, FOLDER, LOG_CONFIG, EPOCH_MS)
    election = found.election
    voted = None if election.voted is None else election.voted.directory_id
    if election.epoch < said.epoch:
        findings.append(f"the epoch is {election.epoch}, after {said.epoch}")
    if said.votes.get(election.epoch, voted) != voted:
        findings.append(f"in epoch {election.epoch} it voted for {said.votes[election.epoch]}, not {voted}")
    log, start = found.log, found.log.log_start_offset
    if log.log_end_offset < said.durable:
        findings.append(f"the log ends at {log.log_end_offset}; up to {said.durable} was durable")
    elif said.last_epoch >= 0 and said.durable > start:
        epoch = log.epochs.epoch_for_offset(said.durable - 1)
        if epoch != said.last_epoch:
            findings.append(f"offset {said.durable - 1} has epoch {epoch}, not {said.last_epoch}")
    findings += _judge_batches(found.log, start, history)
    if found.snapshot is not None:
        AppliedState.from_bytes(b"".join(snapshot_values(disk, FOLDER, found.snapshot.id)))
    log.files.pool.close()
    return findings


def _judge_format(disk: MemoryDisk, node_id: int) -> list[str]:
    """A format that was interrupted can be repeated: what is there is of this node."""
    key = identify(disk, DIRECTORY, BrokerId(node_id), None, uuid.UUID(int=7))
    recover(disk, FOLDER, LOG_CONFIG, EPOCH_MS).log.files.pool.close()
    return [] if key.node_id == node_id else [f"the directory is of {key}"]


def _judge_batches(log: Any, start: int, history: History) -> list[str]:
    before: Written | None = None
    offset = start
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, log.log_end_offset)
        for position, header in batches(part.records):
            batch = Written(header.base_offset, header.partition_leader_epoch)
            content = bytes(part.records[position : position + header.size])
            if history.content.get(batch) != content:
                return [f"{batch} was not written"]
            if before is not None and (before, batch) not in history.followed:
                return [f"{batch} follows {before}"]
            before = batch
        offset = part.next_offset
    return []
