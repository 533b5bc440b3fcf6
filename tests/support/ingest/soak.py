"""Runs `nilometer ingest` with real brokers, rotated logs and killed processes; checks that no line is lost.

    with IngestSoak(folder, seed=17) as soak:
        soak.play(minutes=3)

Each line must be in the topic once at the end. ``timeline`` records the faults. Ingest may exit if its
brokers are down; then it is started again, as a service manager does, and ``exits`` counts that. It must not
exit with a traceback.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from nilometer.client.consumer.consumer import Consumer
from nilometer.runtime import Runtime

from ..brokers.nilometer_cluster import NilometerCluster
from ..eventually import eventually
from .rotated_logs import NAMES, RotatedLogs

TOPIC = "lines"
PARTITIONS = 3
OVERRIDES = {
    "zookeeper.session.timeout.ms": "1500",
    "replica.lag.time.max.ms": "2000",
    "min.insync.replicas": "2",
}
ZOOKEEPER_OVERRIDES = {"zookeeper.session.timeout.ms": "6000"}
"""A long timeout: on a busy machine ZooKeeper may not respond for a second or two."""
CLIENT = {"request.timeout.ms": "5000", "socket.connection.setup.timeout.ms": "1000"}
LAST_RUN_S = 300
START_PATIENCE_S = 60.0
WRITE_EVERY_S = 0.02


class IngestSoak:
    def __init__(
        self, folder: Path, seed: int, *, by_folder: bool | None = None, coordination: str | None = None
    ) -> None:
        """``by_folder`` tells whether ingest gets the folder or the files; None: the seed decides."""
        self.seed = seed
        self.chance = random.Random(seed)
        overrides = {**OVERRIDES, **(ZOOKEEPER_OVERRIDES if coordination else {})}
        self.cluster = NilometerCluster(folder / "cluster", 3, overrides, coordination=coordination)
        self.logs = RotatedLogs(folder / "logs", random.Random(seed + 1))
        self.timeline: list[str] = []
        self.counts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self._folder = folder
        self._began = time.monotonic()
        self._ingest: subprocess.Popen[bytes] | None = None
        self._ingest_is_paused = False
        self._state_before = 0
        whole = self.chance.random() < 0.5 if by_folder is None else by_folder
        self._paths = [self.logs.folder] if whole else self.logs.paths

    def __enter__(self) -> IngestSoak:
        try:
            self.cluster.start()
            self.cluster.create_topic(TOPIC, PARTITIONS)
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_ingest()
        self.cluster.close()
        if kind is not None:
            print("\n".join(self.timeline))

    def record(self, what: str) -> None:
        self.timeline.append(f"{time.monotonic() - self._began:7.2f} s  {what}")

    # --- ingest

    def _command(self, *options: str) -> list[str]:
        settings = [part for name, value in CLIENT.items() for part in ("-X", f"{name}={value}")]
        return [
            *(sys.executable, "-m", "nilometer.cli", "ingest", *map(str, self._paths)),
            *("--topic", TOPIC, "--state", str(self._folder / "ingest.json")),
            *("--bootstrap-server", self.cluster.bootstrap, *settings, *options),
        ]

    def start_ingest(self) -> None:
        if self._ingest is None:
            self.record("start ingest")
            self._state_before = self._state_stamp()
            with (self._folder / "ingest.out").open("ab") as output:
                command = self._command("--follow")
                self._ingest = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def wait_ingest(self) -> None:
        """Wait until ingest has written its state since it was started, after its first look."""
        eventually(lambda: self._state_stamp() != self._state_before, "ingest has begun", START_PATIENCE_S)

    def wait_first_look(self) -> None:
        """Wait until ingest knows all files: files rotated before its first look are not guaranteed."""
        names = [str(path) for path in self.logs.paths]
        state = self._folder / "ingest.json"
        eventually(
            lambda: state.exists() and all(name in state.read_text() for name in names),
            "ingest knows all files",
            START_PATIENCE_S,
        )

    def _state_stamp(self) -> int:
        path = self._folder / "ingest.json"
        return path.stat().st_mtime_ns if path.exists() else 0

    def kill_ingest(self) -> None:
        self._end_ingest(signal.SIGKILL)

    def _end_ingest(self, how: signal.Signals) -> None:
        process, self._ingest, self._ingest_is_paused = self._ingest, None, False
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
            process.wait()

    def pause_ingest(self) -> None:
        if self._ingest is not None:
            self._ingest.send_signal(signal.SIGSTOP)
            self._ingest_is_paused = True

    def resume_ingest(self) -> None:
        if self._ingest is not None and self._ingest_is_paused:
            self._ingest.send_signal(signal.SIGCONT)
            self._ingest_is_paused = False

    def _supervise(self) -> None:
        """Record the exit of ingest, if it has exited, and start it again."""
        process = self._ingest
        if process is not None and process.poll() is not None:
            last = (self.output.splitlines() or [""])[-1]
            self.exits[last[:100]] += 1
            self.record(f"ingest ended ({process.returncode}): {last}")
            self._ingest = None
            self.start_ingest()

    @property
    def output(self) -> str:
        path = self._folder / "ingest.out"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- the course

    def write_for(self, seconds: float, lines_max: int = 20) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.logs.write(self.chance.randint(1, lines_max))
            self._supervise()
            time.sleep(WRITE_EVERY_S)

    def play(self, minutes: float) -> None:
        """Write lines and inject faults drawn from the seed, for ``minutes``."""
        acts: dict[str, Callable[[], None]] = {
            "rotation": self.rotate_some,
            "kill of ingest": self.restart_ingest_after_a_kill,
            "stop of ingest": self.restart_ingest_after_a_stop,
            "pause of ingest": self.pause_ingest_a_while,
            "kill of a broker": self.kill_a_broker,
            "pause of a broker": self.pause_a_broker,
            "folder away": self.take_the_folder_away,
        }
        weights = [10, 4, 1, 2, 2, 3, 2]
        end = time.monotonic() + 60 * minutes
        self.start_ingest()
        self.wait_first_look()
        while time.monotonic() < end:
            [name] = self.chance.choices(list(acts), weights)
            self.record(name)
            self.counts[name] += 1
            acts[name]()
            self.write_for(self.chance.uniform(0.1, 2))

    def rotate_some(self) -> None:
        """Rotate up to three files in quick succession."""
        for name in self.chance.choices(NAMES, k=self.chance.randint(1, 3)):
            self.logs.rotate(name)
            self.write_for(self.chance.choice([0.0, 0.05, 0.7]))

    def restart_ingest_after_a_kill(self) -> None:
        self.kill_ingest()
        self._while_it_is_down()

    def restart_ingest_after_a_stop(self) -> None:
        self._end_ingest(signal.SIGTERM)
        self._while_it_is_down()

    def _while_it_is_down(self) -> None:
        if self.chance.random() < 0.5:
            self.write_for(self.chance.uniform(0.1, 1))
            self.rotate_some()
        self.start_ingest()

    def pause_ingest_a_while(self) -> None:
        self.pause_ingest()
        self.rotate_some()
        self.write_for(self.chance.uniform(0.1, 2))
        self.resume_ingest()

    def kill_a_broker(self) -> None:
        broker_id = self.chance.choice(sorted(self.cluster.brokers))
        self.record(f"kill broker {broker_id}")
        self.cluster.kill(broker_id)
        self.write_for(self.chance.uniform(0.1, 3))
        self._maybe_kill_ingest()
        self.cluster.start(broker_id)

    def pause_a_broker(self) -> None:
        broker_id = self.chance.choice(sorted(self.cluster.brokers))
        self.record(f"pause broker {broker_id}")
        self.cluster.pause(broker_id)
        try:
            self.write_for(self.chance.uniform(0.1, 4))
            self._maybe_kill_ingest()
            if self.chance.random() < 0.5:
                self.rotate_some()
        finally:
            self.cluster.resume(broker_id)

    def _maybe_kill_ingest(self) -> None:
        if self.chance.random() < 0.5:
            self.record("kill ingest meanwhile")
            self.kill_ingest()
            self.start_ingest()

    def take_the_folder_away(self) -> None:
        restart = self.chance.choice([self.kill_ingest, None])
        if restart is not None:
            restart()
        self.logs.take_away()
        self.record("the folder is away")
        if restart is not None:
            self.start_ingest()
        self.write_for(self.chance.uniform(0.5, 4))
        if restart is not None and self.chance.random() < 0.5:
            restart()
        self.logs.bring_back()
        self.start_ingest()

    # --- the verdict

    def finish(self) -> None:
        """End all faults, run ingest to the end, and compare topic and files. Raises AssertionError."""
        self.logs.bring_back()
        self.resume_ingest()
        for broker_id in self.cluster.brokers:
            self.cluster.resume(broker_id)
        self.cluster.start()
        self.cluster.wait_full_isr(TOPIC, 60)
        self._end_ingest(signal.SIGTERM)
        self.record("last run")
        done = subprocess.run(self._command(), capture_output=True, timeout=LAST_RUN_S, check=False)
        self.record(f"last run ended ({done.returncode}): {done.stdout.decode()}{done.stderr.decode()}")
        assert "Traceback" not in self.output + done.stderr.decode(), self.output[-4000:]
        found = asyncio.run(lines_in_topic(self.cluster.bootstrap, TOPIC))
        self._judge(found)

    def _judge(self, found: Counter[bytes]) -> None:
        lost = [line for line in self.logs.written if not found[line]]
        repeated = [line for line, times in found.items() if times > 1]
        foreign = found.keys() - set(self.logs.written)
        summary = (
            f"{len(self.logs.written)} lines written, {len(lost)} lost, {len(repeated)} repeated, "
            f"{len(foreign)} foreign; {dict(self.counts)}, rotations {self.logs.rotations}, "
            f"ingest ended by itself: {dict(self.exits)}"
        )
        self.record(summary)
        for what, lines in (("lost", lost), ("repeated", repeated), ("foreign", sorted(foreign))):
            for line in lines[:5]:
                self.record(f"{what}: {line[:60]!r}")
        assert not lost and not repeated and not foreign, summary
        assert found.total() == len(self.logs.written)
        assert _digest(found) == _digest(self.logs.written)
        print(summary)


async def lines_in_topic(bootstrap: str, topic: str) -> Counter[bytes]:
    """Return how often each value is in the topic."""
    found: Counter[bytes] = Counter()
    async with Consumer(Runtime.system(), {"bootstrap.servers": bootstrap}) as consumer:
        partitions = await consumer.partitions_for(topic)
        ends = await consumer.end_offsets(partitions)
        left = {one: end for one, end in ends.items() if end}
        consumer.assign(left)
        consumer.seek_to_beginning(*left)
        while left:
            for record in await consumer.poll(timeout_ms=10_000):
                found[record.value or b""] += 1
            for one in list(left):
                if await consumer.position(one) >= left[one]:
                    del left[one]
    return found


def _digest(lines: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(line + b"\n")
    return digest.hexdigest()
