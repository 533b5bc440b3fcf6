"""A broker as a process: how it starts, refuses to start, stops, dies, and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import batch
from support.brokers.values import produce, side_of, values
from support.eventually import eventually
from support.logs.segments import stored_batches
from support.ports import HOST, free_ports
from support.wire.wire_peer import WirePeer, make

TIMEOUT_S = 60
MARKER = ".kafka_cleanshutdown"


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


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("no.such.key=1", "no.such.key"),
        ("num.partitions=many", "num.partitions"),
        ("num.partitions=0", "num.partitions"),
        ("log.cleanup.policy=shred", "log.cleanup.policy"),
        ("listeners=SSL://127.0.0.1:9092", "ssl.keystore.location"),
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


@pytest.mark.quick
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


@pytest.mark.quick
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


def test_a_broker_starts_with_the_settings_of_a_kraft_node_of_its_own(tmp_path: Path) -> None:
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
        assert "The metadata quorum is formed, of the voters 1-" in broker.output


def test_a_serving_broker_loads_no_compiler_and_no_data_frames() -> None:
    """Compiling holds the interpreter, and with it the event loop, for seconds."""
    program = (
        "import sys, nilometer.broker.broker, nilometer.broker.process;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:])))"
    )
    heavy = ("numba", "llvmlite", "pyspark", "pandas", "pyarrow", "numpy")
    done = subprocess.run(
        [sys.executable, "-c", program, *heavy], check=True, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.stdout.split() == []
