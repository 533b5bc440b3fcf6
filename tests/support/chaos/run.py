"""One chaos run: a cluster under load, in which faults are injected and ended; at the end it is checked.

    with ChaosRun("kill-leaders", folder, seed=7) as run:
        run.wait_load()
        run.cluster.kill(run.leader(0))
        run.heal()

Leaving the block stops the load, waits until every replica is in sync, reads everything to its end, and
checks (`verdict`): no acknowledged record is lost or repeated, each producer's records are in order, no
consumer saw a record change or offsets decrease or be skipped, the latest offset never decreased, and all
replicas have the same batches. If a check fails, the history, the brokers' logs and their data are kept, and
the command that repeats the run is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from nilometer.client.admin.replica_survey import ReplicaSurvey, Survey
from nilometer.identifiers import NO_LEADER
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

from ..brokers.nilometer_cluster import NilometerCluster
from ..brokers.quorum_brokers import QuorumBrokers
from ..brokers.replica_comparison import compare_replicas
from ..eventually import eventually
from ..evidence import record as evidence
from ..evidence.jepsen_history import Fault
from ..logs.segments import segment_files
from ..simulation.history import Outcome, check
from .administration import DirectoryMover, Mover, TopicReuse
from .crash_load import Reader
from .leaders import LeadersWatcher
from .load import ChaosLoad

TOPIC = "chaos"
LEADERS_TOPIC = "leaders"
PARTITIONS = 3
SESSION_TIMEOUT_MS = 1_500
OVERRIDES = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "broker.heartbeat.interval.ms": str(SESSION_TIMEOUT_MS // 5),
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "num.replica.fetchers": "2",
    "log.segment.bytes": "1048576",
    "min.insync.replicas": "2",
}
HEALED_TIMEOUT_S = 60.0
QUIET_S = 5.0
"""Many times the interval at which segments are copied and deleted."""
KEPT = Path(__file__).resolve().parents[3] / "build" / "chaos"


class OutsideFault(Protocol):
    """A fault outside the brokers (network, disk, store) that must be ended before a cluster can heal."""

    def heal(self) -> None: ...


class ChaosRun:
    def __init__(
        self,
        name: str,
        folder: Path,
        seed: int,
        *,
        overrides: Mapping[str, str] | None = None,
        partitions: int = PARTITIONS,
        outside_faults: Sequence[OutsideFault] = (),
        watch_leaders: bool = False,
        quorum: bool = False,
        configs: Mapping[str, str] | None = None,
        **cluster_options: Any,
    ) -> None:
        """``quorum``: the brokers keep their metadata themselves; ``configs``: of the topic under load."""
        self.name = name
        self.folder = folder
        self.seed = seed
        self.chance = random.Random(seed)
        self.partitions = partitions
        self._configs = configs
        kind = QuorumBrokers if quorum else NilometerCluster
        self.cluster = kind(folder, 3, {**OVERRIDES, **(overrides or {})}, **cluster_options)
        self.load: ChaosLoad | None = None
        self.leaders: LeadersWatcher | None = None
        self._watch_leaders = watch_leaders
        self.timeline: list[str] = []
        self.faults = Counter[str]()
        """How many rounds there were of each fault."""
        self._faulty: list[Fault] = []
        self._found: list[str] = []
        self._outside_faults = outside_faults
        self._programs: list[TopicReuse | Mover | DirectoryMover] = []
        self._idle = threading.Event()
        self._began = time.monotonic()

    # --- beginning and end

    def __enter__(self) -> ChaosRun:
        try:
            self.cluster.start()
            self.cluster.create_topic(TOPIC, self.partitions, configs=self._configs)
            self.load = ChaosLoad(self.cluster.bootstrap, TOPIC, self.partitions)
            self.load.start()
            if self._watch_leaders:
                self.cluster.create_topic(LEADERS_TOPIC, self.partitions)
                self.leaders = LeadersWatcher(
                    self.cluster.bootstrap, LEADERS_TOPIC, self.partitions, SESSION_TIMEOUT_MS / 1000
                )
                self.leaders.start()
            self.wait_load()
        except BaseException:
            self._keep()
            self.cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.verdict()
        except BaseException as wrong:
            self._keep()
            self._keep_evidence(self._found or [str(wrong)])
            raise
        else:
            if kind is not None:
                self._keep()
            self._keep_evidence([] if kind is None else [f"{kind.__name__}: {error}"])
        finally:
            self.cluster.close()

    def record(self, what: str) -> None:
        """Add a line to the timeline, for the analysis of a failure."""
        self._faulty.append((len(self.load.history.operations) if self.load is not None else 0, what))
        self.timeline.append(f"{time.monotonic() - self._began:7.2f} s  {what}")

    def wait_load(self, records: int = 5, timeout_s: float = 40.0) -> None:
        """Wait until every producer has got ``records`` more acknowledgements from every partition."""
        load = self.load
        assert load is not None
        before = load.acknowledged

        def is_going_on() -> bool:
            return all(count >= before[where] + records for where, count in load.acknowledged.items())

        try:
            eventually(is_going_on, f"every producer gets {records} more acknowledgements", timeout_s)
        except AssertionError as error:
            found = [*load.findings, *(self.leaders.findings if self.leaders is not None else ())]
            raise AssertionError(
                "\n".join([f"{error}: from {before} to {load.acknowledged}", *found])
            ) from None

    def heal(self) -> None:
        """End all faults, start all brokers, wait until every replica is in sync and the load continues."""
        self.record("heals")
        for one in self._outside_faults:
            one.heal()
        for broker_id in self.cluster.brokers:
            self.cluster.resume(broker_id)
        self.start_down()
        self.wait_in_sync()
        self.wait_load()
        self.record("healed")

    # --- faults of brokers, recorded in the timeline

    def kill(self, *broker_ids: int) -> None:
        self.record(f"kills {broker_ids}")
        self.cluster.kill(*broker_ids)

    def stop(self, broker_id: int) -> None:
        self.record(f"stops {broker_id}")
        code = self.cluster.stop(broker_id)
        assert code == 0, f"broker {broker_id} ended with {code}"

    def pause(self, broker_id: int) -> None:
        self.record(f"pauses {broker_id}")
        self.cluster.pause(broker_id)

    def resume(self, broker_id: int) -> None:
        self.record(f"resumes {broker_id}")
        self.cluster.resume(broker_id)

    def start(self, *broker_ids: int) -> None:
        self.record(f"starts {broker_ids}")
        self.cluster.start(*broker_ids)

    def launch(self, broker_id: int) -> None:
        """Start a broker that may need others to be ready: a single node of a quorum waits for a majority."""
        self.record(f"launches {broker_id}")
        self.cluster.brokers[broker_id].launch()

    def pass_time(self, seconds: float) -> None:
        """Sleep, to keep the present fault for this time; do not use it to wait for a condition."""
        self._idle.wait(seconds)

    def start_down(self) -> None:
        """Start brokers that are down, and wait for these and for those that were launched."""
        down = [one for one, broker in self.cluster.brokers.items() if not broker.alive()]
        if down:
            self.start(*down)
        self.cluster.wait_ready()

    def wait_in_sync(self) -> None:
        self.cluster.wait_full_isr(TOPIC, HEALED_TIMEOUT_S)
        for program in self._programs:
            if isinstance(program, TopicReuse):
                eventually(
                    lambda one=program: self._is_whole(one.topic), "reused topics in sync", HEALED_TIMEOUT_S
                )

    def _is_whole(self, topic: str) -> bool:
        """Whether all replicas are in sync in the metadata of every running broker that knows the topic."""
        for broker_id in self.cluster.running:
            try:
                known = self.cluster.metadata_of(broker_id, [topic]).topics.get(topic)
            except KafkaError:
                return False
            if known and any(set(one.in_sync_replicas) != set(one.replicas) for one in known.partitions):
                return False
        return True

    def administer(self, *programs: TopicReuse | Mover | DirectoryMover) -> None:
        """Start programs, which run until the verdict."""
        self._programs += programs
        for program in programs:
            program.start()

    # --- leaders, followers, controller

    def leader(self, partition: int = 0) -> int:
        return self.cluster.wait_leader(TOPIC, partition, timeout_s=60)

    def leads_nothing(self, broker_id: int) -> bool:
        """Whether, for all other running brokers, every partition has a leader other than ``broker_id``."""
        for other in self.cluster.running:
            if other == broker_id:
                continue
            try:
                known = self.cluster.metadata_of(other, [TOPIC]).topics[TOPIC]
            except KafkaError:
                return False
            if any(partition.leader_id in (NO_LEADER, broker_id) for partition in known.partitions):
                return False
        return True

    def wait_replaced(self, broker_id: int) -> None:
        """Wait until other brokers are the leaders of all partitions."""
        eventually(lambda: self.leads_nothing(broker_id), f"others lead in place of {broker_id}", 20)
        self.record(f"others lead in place of {broker_id}")

    def wait_not_led_by(self, broker_id: int, partitions: Sequence[int]) -> None:
        """Wait until another broker has seen each of these partitions with another leader than ``broker_id``.

        Not all at the same time, since replicas may be moved meanwhile.
        """
        left = set(partitions)

        def is_seen() -> bool:
            for other in self.cluster.running:
                if other != broker_id:
                    with contextlib.suppress(KafkaError):
                        known = self.cluster.metadata_of(other, [TOPIC]).topics[TOPIC].partitions
                        left.difference_update(one.partition for one in known if one.leader_id != broker_id)
            return not left

        if self.cluster.running != [broker_id]:
            eventually(is_seen, f"broker {broker_id} stops leading {sorted(partitions)}", 60)
            self.record(f"broker {broker_id} leads none of {sorted(partitions)}")

    def followers(self, partition: int = 0) -> list[int]:
        leader = self.leader(partition)
        return [one for one in self.cluster.running if one != leader]

    def controller(self) -> int:
        found: list[int] = []

        def is_known() -> bool:
            controller = self.cluster.controller()
            found.append(controller or 0)
            return controller is not None

        eventually(is_known, "the brokers agree on a controller")
        return found[-1]

    # --- the verdict

    def verdict(self) -> None:
        """Heal, stop the load, read everything, run the checks. Raises AssertionError with the findings."""
        load = self.load
        assert load is not None
        self.heal()
        for program in self._programs:
            program.stop()
        self.heal()
        load.stop_writing()
        self.record("the load has stopped")
        wrong = [*self._read_to_end(), *self._compare_replicas()]
        load.stop_reading()
        if self.leaders is not None:
            self.leaders.stop()
            wrong += self.leaders.findings
            self.record(f"leaders accepted {self.leaders.accepted} writes of who watches them")
        anomalies = check(load.history)
        wrong += [*load.findings, *(str(each) for each in anomalies)]
        wrong += [finding for program in self._programs for finding in program.findings]
        sends = load.history.sends
        unsettled = [str(send) for send in sends if send.outcome is not Outcome.OK]
        wrong += [f"neither acknowledged nor refused: {timeline}" for timeline in unsettled]
        if not load.latest.answers:
            wrong.append("no client could ask for latest offsets")
        counts = f"{len(sends)} records, {len(load.history.polls)} polls, {load.latest.answers} times latest"
        self.record(counts)
        print(f"chaos {self.name}: {counts}, {time.monotonic() - self._began:.1f} s, seed {self.seed}")
        self._found = wrong
        assert not wrong, f"{len(wrong)} findings:\n" + "\n".join(wrong[:30])

    def _read_to_end(self) -> list[str]:
        load = self.load
        assert load is not None
        last = Reader("last", self.cluster.bootstrap, TOPIC, self.partitions, load.history)
        ends = last.ends()
        last.read_past(ends)
        last.close()
        load.history.read_to_end("last")
        wrong: list[str] = []
        for name, at in (("the tail reader", load.reader.at), ("our own reader", load.own.at)):
            try:
                _follow(name, at, ends)
            except AssertionError:
                wrong.append(f"{name} is stuck at {at}, the ends are {ends}")
        return wrong

    def _compare_replicas(self) -> list[str]:
        """Compare the replicas' batches from where the last one begins to the lowest high watermark."""
        eventually(self._are_level, "all replicas know that everything is committed")
        if (self._configs or {}).get("remote.storage.enable") == "true":
            self._wait_until_nothing_is_copied()
        wrong: list[str] = []
        for partition in range(self.partitions):
            states = [row.state for row in self.survey().rows if row.partition == partition]
            start = max(
                *(state.log_start_offset for state in states if state is not None),
                *self._first_segments(partition),
            )
            end = min(state.high_watermark for state in states if state is not None)
            data_dirs = {
                broker_id: broker.log_dir_of(TOPIC, partition)
                for broker_id, broker in self.cluster.brokers.items()
            }
            wrong += [str(each) for each in compare_replicas(data_dirs, TOPIC, partition, start, end)]
        return wrong

    def _first_segments(self, partition: int) -> list[int]:
        """Return where the segments of each replica begin: in a tiered topic later than its log does."""
        folders = [broker.log_dir_of(TOPIC, partition) for broker in self.cluster.brokers.values()]
        return [int(segment_files(folder, TOPIC, partition)[0].stem) for folder in folders]

    def _wait_until_nothing_is_copied(self) -> None:
        """Wait until no replica has deleted a segment for a while."""
        known, since = list[list[int]](), time.monotonic()

        def is_quiet() -> bool:
            nonlocal known, since
            found = [self._first_segments(partition) for partition in range(self.partitions)]
            if found != known:
                known, since = found, time.monotonic()
            return time.monotonic() > since + QUIET_S

        eventually(is_quiet, "everything is in remote storage", HEALED_TIMEOUT_S)
        self.record(f"the replicas begin at {known}")

    def _are_level(self) -> bool:
        try:
            rows = self.survey().rows
        except KafkaError:
            return False
        ends: dict[int, set[int]] = {}
        for row in rows:
            if row.state is None:
                return False
            ends.setdefault(row.partition, set()).update((row.state.log_end_offset, row.state.high_watermark))
        return len(ends) == self.partitions and all(len(found) == 1 for found in ends.values())

    def survey(self) -> Survey:
        """Return the state of every replica, as its broker reports it now."""

        async def look() -> Survey:
            async with ReplicaSurvey(Runtime.system(), self.cluster.bootstrap.split(",")) as survey:
                return await survey.look([TOPIC])

        return asyncio.run(look())

    # --- evidence

    def _keep_evidence(self, wrong: Sequence[str]) -> None:
        load = self.load
        if load is None or not evidence.is_wanted():
            return
        sends = load.history.sends
        counts = Counter[str](
            {
                "records sent": len(sends),
                "records acknowledged": sum(send.outcome is Outcome.OK for send in sends),
                "records read": sum(len(poll.records) for poll in load.history.polls),
                "latest offsets asked": load.latest.answers,
            }
        )
        for program in self._programs:
            if isinstance(program, TopicReuse):
                counts["topics deleted and created again"] += program.cycles
            else:
                counts["replicas moved"] += program.moves
        evidence.keep(
            evidence.lines(load.history, faults=self._faulty),
            seed=self.seed,
            seconds=time.monotonic() - self._began,
            counts=counts,
            faults=self.faults,
            wrong=[*wrong, *(line for line in self.cluster.output().splitlines() if "Traceback" in line)],
        )

    def _keep(self) -> None:
        """Copy everything needed for the analysis of a failure to a folder that is kept."""
        target = KEPT / f"{self.name}-seed-{self.seed}-{os.getpid()}"
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(self.folder, target, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        except shutil.Error as error:
            print(f"not everything could be kept, brokers are still running: {error}")
        (target / "timeline.txt").write_text("\n".join(self.timeline) + "\n")
        if self.load is not None:
            self.load.history.save(target / "history.jsonl")
            (target / "producers.log").write_text("\n".join(self.load.log.lines) + "\n")
        try:
            (target / "replicas.txt").write_text("\n".join(str(row) for row in self.survey().rows) + "\n")
        except KafkaError as error:
            (target / "replicas.txt").write_text(f"{error}\n")
        print("\n".join(self.timeline))
        print(f"kept: {target}")
        print(f"again: NILOMETER_CHAOS_SEED={self.seed} .venv/bin/pytest tests/process/chaos -k {self.name}")


def seed_from_environment(default: int) -> int:
    return int(os.environ.get("NILOMETER_CHAOS_SEED", default))


def _follow(name: str, at: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Wait until a reader is ``at`` the ends of all partitions; on a busy machine it reads slowly.

    Raises AssertionError when it has read nothing for half a minute."""

    def is_there() -> bool:
        return all(at[one] >= end for one, end in ends.items())

    while not is_there():
        before = dict(at)
        eventually(lambda before=before: is_there() or dict(at) != before, f"{name} reads on", 30)
