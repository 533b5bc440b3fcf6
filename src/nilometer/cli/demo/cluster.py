"""Starts the demo's three brokers, ingests files, kills one broker meanwhile, and always stops them.

Everything is done with the ``nilometer`` command, as a user would do it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nilometer.cli.demo.demo_run import DATA_DIR, TOPIC_PREFIX, Demo, DemoFailed

BROKERS = 3
PORTS = range(15_000, 32_000)


@contextmanager
def brokers(demo: Demo) -> Generator[None, None, None]:
    """Run three brokers with their data in the demo's folder during the block, and always stop them."""
    with demo.step(f"Starting {BROKERS} brokers on {DATA_DIR} ..."):
        try:
            demo.bootstrap = _up()
        except BaseException:
            _nilometer("down", "--data-dir", str(DATA_DIR))
            raise
    try:
        demo.print_step(f"Brokers ready: bootstrap.servers={demo.bootstrap}")
        watch = f"nilometer replicas --watch --bootstrap-server {demo.bootstrap}"
        demo.print_step(f"To see LEO, HW and ISR move meanwhile, in another terminal: {watch}")
        yield
    finally:
        _nilometer("down", "--data-dir", str(DATA_DIR))
        demo.print_step("Brokers stopped")


def _up(*ports: str) -> str:
    """Start the brokers that are down; return the bootstrap servers. ``ports`` are options of ``up``."""
    base = ports or ("--port", str(_free_ports(BROKERS)))
    said = _nilometer("up", "--brokers", str(BROKERS), "--data-dir", str(DATA_DIR), "--detach", *base)
    return said.rpartition("bootstrap.servers=")[2].split()[0]


def _free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports, below the ports of outgoing connections."""
    for number in range(PORTS.stop - PORTS.start):
        base = PORTS.start + (os.getpid() * 101 + number) % (PORTS.stop - PORTS.start)
        if all(_is_free(base + offset) for offset in range(count)):
            return base
    raise DemoFailed(f"no {count} free ports in a row between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _nilometer(*arguments: str) -> str:
    """Run the ``nilometer`` command and return its standard output. Raises DemoFailed if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "nilometer.cli.main", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DemoFailed(f"nilometer {' '.join(arguments[:2])}: {reason}")
    return done.stdout


def ingest_while_leader_dies(demo: Demo, files: Sequence[Path]) -> int:
    """Ingest the files; meanwhile kill the leader of the topic's first partition, and start it again.

    Returns the number of records that the topic then contains.
    """
    at = ("--bootstrap-server", demo.bootstrap)
    _nilometer("topic", "create", demo.topic, "--partitions", "2", "--replication-factor", str(BROKERS), *at)
    leader = _leaders(demo)[0][0]
    pid = _pid_of(leader)
    command = [sys.executable, "-m", "nilometer.cli.main", "ingest", *map(str, files), "--topic", demo.topic]
    command += ["--state", str(demo.run_dir / "ingest-state.json"), *at]
    ingest = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not (written := _bytes_written(demo, leader)) and ingest.poll() is None:
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        when = "while lines flowed" if ingest.poll() is None else "just after the last line"
        demo.print_step(
            f"Killed broker {leader}, a leader, with SIGKILL {when} ({written:,} bytes were in its log)"
        )
        _, said = ingest.communicate()
    except BaseException:
        ingest.kill()
        ingest.wait()
        raise
    if ingest.returncode:
        raise DemoFailed(f"nilometer ingest: {said.strip() or f'exit code {ingest.returncode}'}")
    _up("--port", demo.bootstrap.split(",")[0].rpartition(":")[2])
    demo.print_step(f"Broker {leader} is back, and follows the new leader")
    return sum(high_watermark for _, high_watermark in _leaders(demo))


def _bytes_written(demo: Demo, broker_id: int) -> int:
    """Return the size of a broker's log of the topic's first partition, in bytes."""
    segments = (DATA_DIR / f"broker-{broker_id}" / "logs" / f"{demo.topic}-0").glob("*.log")
    return sum(segment.stat().st_size for segment in segments)


def _leaders(demo: Demo) -> list[tuple[int, int]]:
    """Return (broker id, high watermark) of the leader of each partition of the demo's topic."""
    said = json.loads(
        _nilometer("replicas", "--topic", demo.topic, "--json", "--bootstrap-server", demo.bootstrap)
    )
    return [
        (replica["broker_id"], replica["high_watermark"])
        for replica in said["replicas"]
        if replica["role"] == "leader"
    ]


def _pid_of(broker_id: int) -> int:
    brokers = json.loads(_nilometer("status", "--json", "--data-dir", str(DATA_DIR)))["brokers"]
    return next(one["pid"] for one in brokers if one["id"] == broker_id)


def drop_old_topics(demo: Demo) -> None:
    """Delete the topics of earlier runs whose tables were removed."""
    at = ("--bootstrap-server", demo.bootstrap)
    listed = json.loads(_nilometer("topic", "list", "--json", *at))["topics"]
    kept = {path.name for path in demo.run_dir.parent.iterdir()}
    old = [one["name"] for one in listed if one["name"].startswith(TOPIC_PREFIX) and one["name"] not in kept]
    if old:
        _nilometer("topic", "delete", *old, *at)
