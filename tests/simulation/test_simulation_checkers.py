"""The judges of disks, metadata and topics name each planted violation, and nothing where there is none."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import crc32c
import pytest

from nilometer.broker.broker import StartFailed
from nilometer.coordination.store import BrokerIdInUse, StoreUnavailable
from nilometer.replication.leader import LeaderRole
from nilometer.simulation.checkers import logs, metadata
from nilometer.simulation.checkers.cleanup import SLACK_BYTES, Policy, Retention
from nilometer.simulation.checkers.history import History
from nilometer.simulation.checkers.logs import StoredBatch, StoredReplica
from nilometer.simulation.checkers.running_brokers import LeaderInvariants
from nilometer.simulation.cluster import STORE_GRACE_S, StoreFaults, UnexpectedExit
from nilometer.simulation.disk import FileNode, FolderNode, HostDisk
from nilometer.simulation.fault_kinds import Fault, Kind
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.workload.admin_programs import KEY, Existence, KnownTopic, TopicChurn
from nilometer.simulation.world import World


def _batch(base: int, count: int, epoch: int, content: bytes = b"x") -> StoredBatch:
    tail = struct.pack(">hiqqqhii", 0, count - 1, 0, 0, -1, -1, -1, count) + content
    head = struct.pack(">qiibI", base, 4 + 1 + 4 + len(tail), epoch, 2, crc32c.crc32c(tail))
    return StoredBatch(base, base + count - 1, epoch, head + tail)


def _replica(broker: int, *batches: StoredBatch, epochs: tuple[tuple[int, int], ...]) -> StoredReplica:
    return StoredReplica(broker, batches, epochs)


FIRST, SECOND = _batch(0, 3, 0), _batch(3, 2, 1)
CHAIN = ((0, 0), (1, 3))


def test_equal_replicas_are_equal_even_where_one_is_longer() -> None:
    longer = _replica(2, FIRST, SECOND, _batch(5, 1, 1), epochs=CHAIN)
    assert logs.compare("t-0", [_replica(1, FIRST, SECOND, epochs=CHAIN), longer]) == []


def test_one_other_byte_is_divergence() -> None:
    other = _replica(2, FIRST, _batch(3, 2, 1, b"y"), epochs=CHAIN)
    [error] = logs.compare("t-0", [_replica(1, FIRST, SECOND, epochs=CHAIN), other])
    assert error.startswith("divergence: t-0 at 3")


def test_holes_damage_and_falling_epochs_are_named() -> None:
    torn = StoredBatch(6, 6, 0, _batch(6, 1, 0).data[:-1] + b"z")
    replica = _replica(1, FIRST, _batch(5, 1, 1), torn, epochs=((0, 0), (1, 5)))
    kinds = [error.partition(":")[0] for error in logs.compare("t-0", [replica])]
    assert kinds == ["hole", "damage", "epochs", "epoch chain"]


def _disk(files: dict[str, bytes]) -> HostDisk:
    disk = HostDisk(VirtualLoop(), random.Random(1), lambda who, what: None)
    for path, data in files.items():
        *folders, name = path.strip("/").split("/")
        folder = disk.root
        for part in folders:
            following = folder.entries.setdefault(part, FolderNode())
            assert isinstance(following, FolderNode)
            folder = following
        folder.entries[name] = FileNode(data)
    return disk


def test_a_replica_is_read_off_the_bytes() -> None:
    files = {
        "/data/t-0/00000000000000000000.log": FIRST.data,
        "/data/t-0/00000000000000000003.log": SECOND.data + b"torn",
        "/data/t-0/leader-epoch-checkpoint": b"0\n2\n0 0\n1 3\n",
    }
    assert logs.read_replica(_disk(files), "/data/t-0", 4) == _replica(4, FIRST, SECOND, epochs=CHAIN)
    assert logs.read_replica(_disk(files), "/data/t-1", 4) is None


def test_a_torn_epoch_checkpoint_is_wrong_only_beside_records() -> None:
    torn = {"/data/t-0/leader-epoch-checkpoint": b"0\n1\n0\0\0"}
    empty = logs.read_replica(_disk(torn), "/data/t-0", 4)
    assert empty == _replica(4, epochs=())
    whole = logs.read_replica(
        _disk({"/data/t-0/00000000000000000000.log": FIRST.data, **torn}), "/data/t-0", 4
    )
    assert whole is not None
    [error] = logs.compare("t-0", [whole])
    assert error.startswith("epoch chain: ")


BECOMES_CONTROLLER = {"type": "TakeOffice"}  # codespell:ignore


def _entry(controllership: tuple[int, str, int], *records: dict[str, object]) -> bytes:
    body = {
        "controller_id": controllership[0],
        "controller_incarnation": controllership[1],
        "controller_epoch": controllership[2],
        "records": records,
    }
    return json.dumps(body).encode()


def test_the_fold_of_the_log_leaves_out_deposed_controllers() -> None:
    first, second = (1, "1", 1), (2, "1", 2)
    entries = [
        _entry(first, BECOMES_CONTROLLER, {"type": "TopicCreated", "topic_id": "i", "name": "t"}),
        _entry(first, {"type": "PartitionCreated", "topic_id": "i", "partition": 0, "replicas": [1, 2]}),
        _entry(second, BECOMES_CONTROLLER),
        _entry(first, {"type": "TopicDeleted", "topic_id": "i"}),
        _entry(
            second,
            {"type": "PartitionChanged", "topic_id": "i", "partition": 0, "leader": 2, "leader_epoch": 1}
            | {"partition_epoch": 1, "isr": [2]},
        ),
    ]
    folded = metadata.fold(list(enumerate(entries)))
    assert (folded.number, folded.topics) == (4, {"i": "t"})
    assert folded.partitions["i", 0] == {
        "replicas": [1, 2],
        "isr": [2],
        "leader": 2,
        "leader_epoch": 1,
        "partition_epoch": 1,
    }


def test_a_broker_that_enters_an_isr_serves() -> None:
    controllership = (1, "1", 1)

    def entry(kind: str, **fields: object) -> bytes:
        return _entry(controllership, {"type": kind, **fields})

    def changed(isr: list[int], leader: int = 1) -> bytes:
        return entry("PartitionChanged", topic_id="i", partition=0, isr=isr, leader=leader)

    began = [
        _entry(
            controllership,
            BECOMES_CONTROLLER,
            {"type": "TopicCreated", "topic_id": "i", "name": "t"},
        ),
        *(entry("BrokerRegistered", broker_id=broker_id) for broker_id in (1, 2)),
        entry("PartitionCreated", topic_id="i", partition=0, replicas=[1, 2]),
        changed([1]),
    ]
    for end, back, is_eligible in (
        ("BrokerFenced", (changed([], -1), changed([1, 2], -1)), True),
        ("BrokerFenced", (), False),
        ("BrokerInControlledShutdown", (), False),
        ("BrokerUnregistered", (), False),
        ("BrokerFenced", (entry("BrokerRegistered", broker_id=2),), True),
    ):
        entries = [*began, entry(end, broker_id=2), *back, changed([1, 2])]
        folded = metadata.fold(list(enumerate(entries)))
        assert [error.partition(":")[0] for error in folded.violations] == ["ineligible"] * (not is_eligible)


def test_topics_and_settings_that_were_acknowledged_must_be_there() -> None:
    churn = TopicChurn(World(1).host("clients"), "none:1")
    churn.topics = {
        "kept": KnownTopic(Existence.EXISTS, {"7", "8"}),
        "gone": KnownTopic(Existence.DELETED),
        "perhaps": KnownTopic(Existence.UNKNOWN, {"1"}),
    }
    assert churn.judge({"kept": "8"}) == []
    assert churn.judge({"kept": "8", "perhaps": "3"}) == []
    assert [each.partition(":")[0] for each in churn.judge({"gone": None})] == [
        "lost topic",
        "deleted topic still present",
    ]
    [error] = churn.judge({"kept": "6"})
    assert error.startswith("lost setting") and f"{KEY}=6" in error


def test_faults_of_an_ensemble_excuse_brokers_that_cannot_reach_it__but_no_id_in_use() -> None:
    def failed(cause: Exception) -> StartFailed:
        error = StartFailed(str(cause))
        error.__cause__ = cause
        return error

    unreachable, in_use = failed(StoreUnavailable("no server responded")), failed(BrokerIdInUse(1, "another"))

    def excused(error: BaseException | None, *felt: Kind, failed: Iterable[str] = ()) -> bool:
        return UnexpectedExit(error, 10.0, ("/data/1", "/data/1-b"), frozenset(failed)).is_excused(felt)

    assert excused(unreachable, Kind.ZOOKEEPER_CRASH)
    assert not excused(unreachable)
    assert not excused(in_use, Kind.ZOOKEEPER_CRASH)
    assert excused(in_use, Kind.STORE_STALL), "a folder that hangs may show a session of before"
    assert excused(None, Kind.STORE) and not excused(None, Kind.SIGNAL)
    assert excused(unreachable, failed=["/coordination/entries"])


def test_a_broker_may_end_when_all_its_log_directories_failed__and_not_before() -> None:
    def excused(*failed: str) -> bool:
        return UnexpectedExit(None, 10.0, ("/data/1", "/data/1-b"), frozenset(failed)).is_excused(())

    assert not excused()
    assert not excused("/data/1")
    assert not excused("/data/1", "/data/2")
    assert excused("/data/1", "/data/1-b")
    assert excused("/data"), "it is made durable when a broker starts"


def test_a_fault_of_the_store_has_effects_for_a_while_after_its_end() -> None:
    fault = Fault(number=0, at_s=5, kind=Kind.STORE, target=1, other=0, duration_s=1, size=0.5)
    violations = StoreFaults()
    violations.begin(fault, 5.0)
    violations.begin(replace(fault, kind=Kind.CUT), 5.0)
    assert violations.affecting_at(4.0) == frozenset()
    assert violations.affecting_at(1e9) == {Kind.STORE}
    violations.end_all(6.0)
    assert violations.affecting_at(6.0 + STORE_GRACE_S) == {Kind.STORE}
    assert violations.affecting_at(6.1 + STORE_GRACE_S) == frozenset()


@pytest.mark.parametrize(("topic", "found"), [("t", ["leader completeness"]), ("random-0", [])])
def test_committed_records_may_only_be_lost_where_nothing_is_promised(topic: str, found: list[str]) -> None:
    """A machine with all replicas lost power, and the next leader begins below what was committed."""
    partition = Mock(topic=topic, log=Mock(log_start_offset=0, log_end_offset=2))
    image = Mock(number=1, partitions=list, partition_by_id=lambda *_: None)
    node = Mock(id=1, image=image, partitions=[partition], holds_ended_session=lambda: False)
    cluster: Any = Mock(nodes={1: node})
    leader_invariants = LeaderInvariants(cluster, unpromised={"random-0"})
    for epoch, begins_at, high_watermark in ((0, 0, 2), (1, 1, 1)):
        role = Mock(
            spec=LeaderRole,
            leader_epoch=epoch,
            epoch_start_offset=begins_at,
            high_watermark=high_watermark,
        )
        partition.replica = Mock(role=role, high_watermark=high_watermark)
        leader_invariants.look(damaged=[])
    assert [violation.partition(":")[0] for violation in leader_invariants.violations] == found


def test_what_a_broker_deleted_before_it_served_is_explained_by_the_clock_of_that_time() -> None:
    """It deletes while it starts; the clock has jumped back when it is looked at again."""

    def look(wall_ms: int, *, serves: bool, begins_at: int) -> None:
        partition = Mock(log=Mock(log_start_offset=begins_at, segments=()), __str__=lambda _: "t-0")
        node.host.clock.wall_ms = lambda: wall_ms
        node.is_serving, node.partitions = serves, [partition] if serves else []
        retention.look()

    history = History()
    send = history.send("w", "t-0", "first", at_ms=1_000)
    node = Mock(places_of=lambda _: [])
    node.name = "broker-1"
    cluster: Any = Mock(nodes={1: node}, known={1: node})
    retention = Retention(cluster, history, {"t-0": Policy(retention_ms=5_000)})
    look(2_000, serves=True, begins_at=0)
    send.acknowledged(0)
    look(9_000, serves=False, begins_at=0)
    look(2_000, serves=False, begins_at=0)
    look(2_000, serves=True, begins_at=1)
    assert retention.violations == []
    history.send("w", "t-0", "second", at_ms=2_000).acknowledged(1)
    look(2_000, serves=True, begins_at=2)
    assert [violation.partition(":")[0] for violation in retention.violations] == ["retention"]


@pytest.mark.parametrize(("last", "found"), [(300, []), (200, ["retention"])])
def test_one_round_deletes_by_size_and_from_there_on_by_time(last: int, found: list[str]) -> None:
    """The record at 15 is too young for retention by time: its segment must be due by size."""

    def look(wall_ms: int, *segments: tuple[int, int]) -> None:
        log = Mock(log_start_offset=segments[0][0])
        log.segments = [Mock(base_offset=base, size=size + SLACK_BYTES // 2) for base, size in segments]
        node.host.clock.wall_ms = lambda: wall_ms
        node.partitions = [Mock(log=log, __str__=lambda _: "t-0")]
        retention.look()

    history = History()
    for offset, at_ms in ((5, 1_000), (15, 9_000), (25, 2_000)):
        history.send("w", "t-0", f"at {offset}", at_ms=at_ms).acknowledged(offset)
    node = Mock(id=1, places_of=lambda _: [], is_serving=True)
    node.name = "broker-1"
    cluster: Any = Mock(nodes={1: node}, known={1: node})
    limit = 2 * 300 + SLACK_BYTES + SLACK_BYTES
    retention = Retention(cluster, history, {"t-0": Policy(retention_ms=5_000, retention_bytes=limit)})
    before = [(0, 300), (10, 300), (20, last), (30, last)]
    look(9_500, *before)
    look(9_500, *before[3:])
    assert [violation.partition(":")[0] for violation in retention.violations] == found
