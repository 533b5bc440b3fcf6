"""A broker as a process: how it starts, refuses to start, stops, dies, and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side, batch, produce_fields, records_of
from support.eventually import eventually
from support.logs.segments import stored_batches
from support.ports import HOST, free_ports
from support.wire.wire_peer import WirePeer, make

TIMEOUT_S = 60
MARKER = ".kafka_cleanshutdown"


def side_of(broker: NilometerBroker) -> Side:
    return Side("Nilometer", broker.bootstrap)


def run_broker(*overrides: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    """To its end, which comes at once where it cannot start."""
    command = [sys.executable, "-m", "nilometer.broker"]
    if config is not None:
        command += ["--config", str(config)]
    for override in overrides:
        command += ["--override", override]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def settings(folder: Path, port: int | None = None) -> list[str]:
    return [
        "node.id=1",
        f"log.dirs={folder}",
        f"listeners=PLAINTEXT://{HOST}:{port or free_ports(1)[0]}",
    ]


def produce(side: Side, topic: str, *values: bytes, acks: int = -1, partition: int = 0) -> ErrorCode:
    fields = produce_fields(9, topic, {partition: batch(*values)}, acks)
    return side.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0].error_code


def values(side: Side, topic: str, partition: int = 0, offset: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        part = make(
            ApiKey.FETCH,
            11,
            "FetchPartition",
            partition=partition,
            fetch_offset=offset + len(found),
            partition_max_bytes=1 << 24,
        )
        asked = make(ApiKey.FETCH, 11, "FetchTopic", topic=topic, partitions=(part,))
        answer = (
            side.message(ApiKey.FETCH, 11, topics=(asked,), max_bytes=1 << 25, min_bytes=1, session_epoch=-1)
            .responses[0]
            .partitions[0]
        )
        assert answer.error_code == ErrorCode.none, answer.error_code
        records = [value for at, _, value in records_of(answer.records or b"") if at >= offset + len(found)]
        if not records:
            return found
        found += records


# ── starting ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("no.such.key=1", "no.such.key"),
        ("num.partitions=many", "num.partitions"),
        ("num.partitions=0", "num.partitions"),
        ("log.cleanup.policy=shred", "log.cleanup.policy"),
        ("listeners=SSL://127.0.0.1:9092", "listeners"),
        ("listeners=nonsense", "listeners"),
        ("node.id=-5", "node.id"),
        ("nilometer.coordination=paxos", "nilometer.coordination"),
        ("broker.id=7", "broker.id"),
    ],
)
def test_a_bad_setting_is_refused_by_name(tmp_path: Path, override: str, named: str) -> None:
    done = run_broker(*settings(tmp_path / "data"), override)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists(), "nothing has been touched"


def test_a_bad_line_of_the_file_is_refused_by_place(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("# a comment\nnode.id=1\nthis is no setting\n")
    done = run_broker(config=config)
    assert done.returncode == 2
    assert f"{config}, line 3" in done.stderr


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run_broker(config=tmp_path / "absent.properties")
    assert done.returncode == 2
    assert "absent.properties" in done.stderr


def test_an_override_wins_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("node.id=1\nnum.partitions=3\nnum.io.threads=8\n")
    done = run_broker("num.partitions=none", config=config)
    assert done.returncode == 2
    assert "Invalid value none for configuration num.partitions" in done.stderr


def test_an_override_without_a_value_is_refused() -> None:
    done = run_broker("node.id")
    assert done.returncode == 2
    assert "KEY=VALUE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_refused_at_once(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "first") as broker:
        done = run_broker(*settings(tmp_path / "second", broker.port))
    assert done.returncode == 1
    assert f"cannot listen on {HOST}:{broker.port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_data_in_use_is_refused_at_once_and_left_alone(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        side = side_of(broker)
        side.create("kept")
        done = run_broker(*settings(tmp_path / "data"))
        assert done.returncode == 1
        assert f"process {broker.pid} uses {tmp_path / 'data'}" in done.stderr
        assert produce(side, "kept", b"still served") == ErrorCode.none
        side.hang_up()


def test_data_of_another_broker_is_refused(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data"):
        pass
    done = run_broker(*settings(tmp_path / "data"), "node.id=2")
    assert done.returncode == 1
    assert "belongs to node 1, this is node 2" in done.stderr
    assert "Traceback" not in done.stderr


# ── stopping ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_stopping_in_order(tmp_path: Path, how: signal.Signals) -> None:
    """Exit code 0, the marker of an orderly stop, and a next start that has nothing to recover."""
    broker = NilometerBroker(tmp_path / "data")
    broker.start()
    side = side_of(broker)
    side.create("kept")
    assert produce(side, "kept", b"a", b"b") == ErrorCode.none
    waiting = side_of(broker)
    waiting.peer.tell(ApiKey.FETCH, 11, **waiting_fetch("kept", 2))
    assert not (broker.data_dir / MARKER).exists()
    os.kill(broker.pid, how)
    eventually(lambda: not broker.alive(), "it has stopped")
    assert broker.stop() == 0
    assert (broker.data_dir / MARKER).exists()
    side.hang_up()
    waiting.hang_up()
    with broker:
        assert not (broker.data_dir / MARKER).exists(), "files are only to be trusted while no broker writes"
        again = side_of(broker)
        assert values(again, "kept") == [b"a", b"b"]
        again.hang_up()
    assert " ERROR " not in broker.output and "Traceback" not in broker.output


def waiting_fetch(topic: str, offset: int) -> dict[str, object]:
    part = make(
        ApiKey.FETCH, 11, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1000
    )
    asked = make(ApiKey.FETCH, 11, "FetchTopic", topic=topic, partitions=(part,))
    return {
        "topics": (asked,),
        "max_bytes": 1000,
        "min_bytes": 1,
        "max_wait_ms": 600_000,
        "session_epoch": -1,
    }


def test_stopping_while_it_starts(tmp_path: Path) -> None:
    broker = NilometerBroker(tmp_path / "data")
    for _ in range(3):
        broker.launch()
        assert broker.stop() in (0, -signal.SIGTERM), (
            "before its own handlers are there, the system's ends it"
        )
    assert "Traceback" not in broker.output
    with broker:
        side = side_of(broker)
        assert side.create("works")
        side.hang_up()


def test_killed_and_back(tmp_path: Path) -> None:
    """kill -9: what was acknowledged is there; a torn tail is cut, what lies before it kept."""
    broker = NilometerBroker(tmp_path / "data")
    broker.start()
    side = side_of(broker)
    side.create("kept")
    for number in range(20):
        assert produce(side, "kept", b"%d" % number) == ErrorCode.none
    broker.kill()
    side.hang_up()
    assert not (broker.data_dir / MARKER).exists()
    with (broker.data_dir / "kept-0" / f"{0:020}.log").open("ab") as log:
        log.write(batch(b"torn")[:-3])
    with broker:
        side = side_of(broker)
        eventually(lambda: side.leaders("kept") == [1], "it leads again")
        assert values(side, "kept") == [b"%d" % number for number in range(20)]
        assert produce(side, "kept", b"next") == ErrorCode.none
        assert values(side, "kept", offset=20) == [b"next"]
        side.hang_up()
    assert [found.base_offset for found in stored_batches(broker.data_dir, "kept", 0)] == list(range(21))


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────


def delete(side: Side, name: str) -> None:
    state = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name)
    answer = side.message(ApiKey.DELETE_TOPICS, 6, topics=(state,), timeout_ms=10_000)
    assert answer.responses[0].error_code == ErrorCode.none


def folders(broker: NilometerBroker, topic: str) -> list[str]:
    return sorted(path.name for path in broker.data_dir.glob(f"{topic}-*"))


def test_a_deleted_topic_is_renamed_and_then_removed(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        side = side_of(broker)
        side.create("slow", 2, file_delete_delay_ms="600000")
        side.create("quick", 2, file_delete_delay_ms="1")
        assert produce(side, "slow", b"old") == ErrorCode.none
        delete(side, "quick")
        delete(side, "slow")
        assert all(name.endswith("-delete") for name in folders(broker, "slow"))
        assert len(folders(broker, "slow")) == 2
        assert produce(side, "slow", b"none") == ErrorCode.unknown_topic_or_partition
        eventually(lambda: not folders(broker, "quick"), "its folders are removed")
        side.create("slow")
        assert values(side, "slow") == []
        assert produce(side, "slow", b"new") == ErrorCode.none
        side.hang_up()
        broker.kill()
        broker.start()
        side = side_of(broker)
        assert values(side, "slow") == [b"new"]
        eventually(lambda: folders(broker, "slow") == ["slow-0"], "what was left to remove is removed")
        side.hang_up()


def test_topics_neither_created_nor_deleted_without_a_request(tmp_path: Path) -> None:
    off = {"auto.create.topics.enable": "false", "delete.topic.enable": "false"}
    with NilometerBroker(tmp_path / "data", off) as broker:
        side = side_of(broker)
        asked = make(ApiKey.METADATA, 9, "MetadataRequestTopic", name="wanted")
        for _ in range(2):
            found = side.message(ApiKey.METADATA, 9, topics=(asked,), allow_auto_topic_creation=True)
            assert found.topics[0].error_code == ErrorCode.unknown_topic_or_partition
        assert not folders(broker, "wanted")
        name = side.create("stays")
        state = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name)
        answer = side.message(ApiKey.DELETE_TOPICS, 6, topics=(state,), timeout_ms=10_000)
        assert answer.responses[0].error_code == ErrorCode.topic_deletion_disabled
        assert side.leaders(name) == [1]
        side.hang_up()


# ── settings that change while it runs ──────────────────────────────────────────────────────────────


def alter(side: Side, topic: str, **changes: str | None) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = tuple(
        make(
            key,
            1,
            "AlterableConfig",
            name=name.replace("_", "."),
            config_operation=0 if value is not None else 1,
            value=value,
        )
        for name, value in changes.items()
    )
    resource = make(key, 1, "AlterConfigsResource", resource_type=2, resource_name=topic, configs=configs)
    answer = side.message(key, 1, resources=(resource,))
    assert answer.responses[0].error_code == ErrorCode.none


def test_topic_settings_take_effect_at_once(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        side = side_of(broker)
        side.create("changing")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        alter(side, "changing", max_message_bytes="1000")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.message_too_large
        alter(side, "changing", max_message_bytes=None)
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        alter(side, "changing", compression_type="gzip")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        alter(side, "changing", message_timestamp_type="LogAppendTime")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        side.hang_up()
        assert [found.attributes for found in stored_batches(broker.data_dir, "changing", 0)] == [0, 0, 1, 9]


FAST_REBALANCE_CHECKS = {"log.retention.check.interval.ms": "200", "log.segment.delete.delay.ms": "1"}


def earliest(side: Side, topic: str) -> int:
    key = ApiKey.LIST_OFFSETS
    asked = make(key, 7, "ListOffsetsPartition", partition_index=0, timestamp=-2, current_leader_epoch=-1)
    answer = side.message(
        key,
        7,
        replica_id=-1,
        topics=(make(key, 7, "ListOffsetsTopic", name="" + topic, partitions=(asked,)),),
    )
    return answer.topics[0].partitions[0].offset


def segments(broker: NilometerBroker, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (broker.data_dir / f"{topic}-0").glob("*.log"))


@pytest.mark.parametrize(
    "retention",
    [
        pytest.param(lambda side: alter(side, "old", retention_bytes=str(2 << 20)), id="by-size"),
        pytest.param(lambda side: alter(side, "old", retention_ms="1000"), id="by-time"),
    ],
)
def test_retention_while_it_runs(tmp_path: Path, retention: Callable[[Side], None]) -> None:
    """Set while the topic is in use: old segments go, their files with them; what is left reads on."""
    with NilometerBroker(tmp_path / "data", FAST_REBALANCE_CHECKS) as broker:
        side = side_of(broker)
        side.create("old", segment_bytes=str(1 << 20), retention_ms="-1")
        for number in range(60):
            assert produce(side, "old", b"%02d" % number + b"." * 100_000) == ErrorCode.none
        before = segments(broker, "old")
        assert len(before) > 4
        assert earliest(side, "old") == 0
        retention(side)
        eventually(lambda: earliest(side, "old") > 0, "the log start has moved")
        eventually(lambda: segments(broker, "old")[0] == earliest(side, "old"), "files are gone")
        start = earliest(side, "old")
        left = values(side, "old", offset=start)
        assert [int(value[:2]) for value in left if value] == list(range(start, 60))
        assert produce(side, "old", b"next", acks=1) == ErrorCode.none
        side.hang_up()
        broker.kill()
        broker.start()
        side = side_of(broker)
        assert earliest(side, "old") >= start, "it does not go back"
        side.hang_up()


# ── group commit ────────────────────────────────────────────────────────────────────────────────────


WATCHED = "write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,fsync,fdatasync"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_with_flush_messages_1_an_fsync_comes_before_the_acknowledgement(tmp_path: Path) -> None:
    """Watched from outside: between a batch's write to the log and the answer lies an fsync of that log.

    Descriptors are named by strace; the answer is the next write to the client's socket.
    """
    trace = tmp_path / "trace"
    with NilometerBroker(tmp_path / "data") as broker:
        side = side_of(broker)
        side.create("safe", flush_messages="1")
        side.create("fast")
        assert produce(side, "safe", b"warm") == produce(side, "fast", b"warm") == ErrorCode.none
        watching = subprocess.Popen(
            ["strace", "-f", "-y", "-e", f"trace={WATCHED}", "-o", str(trace), "-p", str(broker.pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stderr is not None
        if "attached" not in (said := watching.stderr.readline()):
            pytest.skip(f"strace may not watch here: {said}")
        for number in range(10):
            assert produce(side, "safe", b"%d" % number) == ErrorCode.none
        for number in range(10):
            assert produce(side, "safe", b"%d" % number, acks=1) == ErrorCode.none
        for number in range(10):
            assert produce(side, "fast", b"%d" % number) == ErrorCode.none
        watching.terminate()
        watching.wait(TIMEOUT_S)
        side.hang_up()
    events = [kind for line in trace.read_text().splitlines() if (kind := _event(line)) is not None]
    assert events[:60] == ["write safe", "sync safe", "answer"] * 20
    assert events[60:80] == ["write fast", "answer"] * 10


def _event(line: str) -> str | None:
    """Begun calls are told in the order they began; of a sync, its end is what counts."""
    for topic in ("safe", "fast"):
        if f"{topic}-0/{0:020}.log" in line and "write" in line:
            return f"write {topic}"
        if f"{topic}-0/{0:020}.log" in line and "sync(" in line:
            return f"sync {topic}"
    if ("socket:[" in line or "TCP:[" in line) and any(call in line for call in ("write", "send")):
        return "answer"
    return None


def test_a_broker_starts_with_the_settings_of_a_kraft_node_and_opens_no_controller_listener(
    tmp_path: Path,
) -> None:
    client_port, controller_port = free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENTS:PLAINTEXT,SSL:SSL",
        "listeners": f"CLIENTS://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}",
        "inter.broker.listener.name": "CLIENTS",
        "share.coordinator.state.topic.replication.factor": "1",
    }
    with NilometerBroker(tmp_path / "data", settings, port=client_port) as broker:
        with WirePeer(broker.bootstrap) as peer:
            found = peer.ask(ApiKey.DESCRIBE_CLUSTER, 0)
        assert [(each.broker_id, each.port) for each in found.brokers] == [(1, client_port)]
        with pytest.raises(ConnectionRefusedError):
            WirePeer(f"127.0.0.1:{controller_port}")
        assert "Not opened: CONTROLLER" in broker.output
