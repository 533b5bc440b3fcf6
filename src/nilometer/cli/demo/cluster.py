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

from nilometer.cli.cluster_options import COMMAND_CONFIG_VARIABLE
from nilometer.cli.demo.demo_run import TOPIC_PREFIX, Demo, DemoFailed
from nilometer.local.local_cluster import LocalCluster

BROKERS = 3
PORTS = range(15_000, 32_000)


@contextmanager
def brokers(demo: Demo) -> Generator[None, None, None]:
    """Run three brokers with their data in the demo's folder during the block, and always stop them."""
    with demo.step(f"Starting {BROKERS} brokers on {demo.data_dir} ..."):
        try:
            demo.bootstrap = _up(demo)
        except BaseException:
            if LocalCluster(demo.data_dir).broker_ids():
                _nilometer(demo, "down", "--data-dir", str(demo.data_dir))
            raise
    try:
        demo.print_step(f"Brokers ready: bootstrap.servers={demo.bootstrap}")
        watch = f"nilometer replicas --watch --bootstrap-server {demo.bootstrap}"
        if demo.security is not None:
            demo.print_step(f"TLS, SCRAM and ACLs; the clients' settings are in {demo.security.client_path}")
            watch += f" --command-config {demo.security.admin_path}"
        demo.print_step(f"To see LEO, HW and ISR move meanwhile, in another terminal: {watch}")
        yield
    finally:
        _nilometer(demo, "down", "--data-dir", str(demo.data_dir))
        demo.print_step("Brokers stopped")


def _up(demo: Demo, *ports: str) -> str:
    """Start the brokers that are down; return the bootstrap servers. ``ports`` are options of ``up``."""
    options = list(ports or ("--port", str(_free_ports(BROKERS))))
    if demo.secure:
        options.append("--secure")
    if demo.zookeeper is not None:
        options += ["--coordination", f"zookeeper://{demo.zookeeper}"]
    where = ("--data-dir", str(demo.data_dir))
    said = _nilometer(demo, "up", "--brokers", str(BROKERS), *where, "--detach", *options)
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


def _nilometer(demo: Demo, *arguments: str, as_admin: bool = False) -> str:
    """Run the ``nilometer`` command and return its standard output. Raises DemoFailed if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "nilometer.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(demo, as_admin=as_admin),
    )
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DemoFailed(f"nilometer {' '.join(arguments[:2])}: {reason}")
    return done.stdout


def _environment(demo: Demo, *, as_admin: bool = False) -> dict[str, str]:
    """Return the environment of commands: it names the file with the settings of clients."""
    if demo.security is None:
        return dict(os.environ)
    path = demo.security.admin_path if as_admin else demo.security.client_path
    return {**os.environ, COMMAND_CONFIG_VARIABLE: os.fspath(path)}


def ingest_while_leader_dies(demo: Demo, files: Sequence[Path]) -> int:
    """Ingest the files; meanwhile kill the leader of the topic's first partition, and start it again.

    Returns the number of records that the topic then contains.
    """
    at = ("--bootstrap-server", demo.bootstrap)
    replicas = ("--partitions", "2", "--replication-factor", str(BROKERS))
    _nilometer(demo, "topic", "create", demo.topic, *replicas, *at)
    leader = _leaders(demo)[0][0]
    pid = _pid_of(demo, leader)
    command = [sys.executable, "-m", "nilometer.cli", "ingest", *map(str, files), "--topic", demo.topic]
    command += ["--state", str(demo.run_dir / "ingest-state.json"), *at]
    ingest = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(demo)
    )
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
    _up(demo, "--port", demo.bootstrap.split(",")[0].rpartition(":")[2])
    demo.print_step(f"Broker {leader} is back, and follows the new leader")
    return sum(high_watermark for _, high_watermark in _leaders(demo))


def _bytes_written(demo: Demo, broker_id: int) -> int:
    """Return the size of a broker's log of the topic's first partition, in bytes."""
    segments = (demo.data_dir / f"broker-{broker_id}" / "logs" / f"{demo.topic}-0").glob("*.log")
    return sum(segment.stat().st_size for segment in segments)


def _leaders(demo: Demo) -> list[tuple[int, int]]:
    """Return (broker id, high watermark) of the leader of each partition of the demo's topic."""
    asked = ("replicas", "--topic", demo.topic, "--json", "--bootstrap-server", demo.bootstrap)
    said = json.loads(_nilometer(demo, *asked, as_admin=True))
    return [
        (replica["broker_id"], replica["high_watermark"])
        for replica in said["replicas"]
        if replica["role"] == "leader"
    ]


def _pid_of(demo: Demo, broker_id: int) -> int:
    asked = ("status", "--json", "--data-dir", str(demo.data_dir))
    brokers = json.loads(_nilometer(demo, *asked, as_admin=True))["brokers"]
    return next(one["pid"] for one in brokers if one["id"] == broker_id)


def drop_old_topics(demo: Demo) -> None:
    """Delete the topics of earlier runs whose tables were removed."""
    at = ("--bootstrap-server", demo.bootstrap)
    listed = json.loads(_nilometer(demo, "topic", "list", "--json", *at))["topics"]
    kept = {path.name for path in demo.run_dir.parent.iterdir()}
    old = [one["name"] for one in listed if one["name"].startswith(TOPIC_PREFIX) and one["name"] not in kept]
    if old:
        _nilometer(demo, "topic", "delete", *old, "--yes", *at)
