"""Running one seed's plan and checking the results.

There are two phases: the plan's faults are injected while the clients run; then all faults are ended, and the
cluster *must* converge within a time limit and return every acknowledged record. The verdict's exit code is
the type of failure: a program crashed, no convergence, or a wrong result.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable

from nilometer.client.admin.admin import Admin, ResourceType
from nilometer.runtime import Runtime
from nilometer.simulation.checkers import compaction, disks, failed_folders, metadata
from nilometer.simulation.checkers.bounds import Bounds
from nilometer.simulation.checkers.checkpoint_files import CheckpointFiles
from nilometer.simulation.checkers.convergence import not_converged
from nilometer.simulation.checkers.failed_disks import FailedDisks
from nilometer.simulation.checkers.history import Outcome
from nilometer.simulation.checkers.history_checker import check
from nilometer.simulation.checkers.leader_invariants import LeaderInvariants
from nilometer.simulation.checkers.long_history import LongHistory
from nilometer.simulation.checkers.metadata_responses import MetadataResponses
from nilometer.simulation.checkers.retention import Retention, policies_of
from nilometer.simulation.checkers.services import Services
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.faults import FaultDriver
from nilometer.simulation.log_capture import LogCapture
from nilometer.simulation.loop import Deadlock, Livelock
from nilometer.simulation.plan import Plan
from nilometer.simulation.recording.cluster_recorder import ClusterRecorder
from nilometer.simulation.run_clients import FINDINGS_SHOWN, SETTLE_S, RunClients
from nilometer.simulation.verdict import Exit, Verdict
from nilometer.simulation.workload.membership import Membership
from nilometer.simulation.workload.random_administrator import TOPICS as RANDOM_TOPICS
from nilometer.simulation.workload.rights.grantor import USERS
from nilometer.simulation.workload.topics import KEY
from nilometer.simulation.world import World

CONVERGENCE_S = 120.0
"""The time after healing within which the cluster must converge. Longest single waits: a connection attempt
(10 s), a session (6 s), a follower's lag (10 s), a fetch that hangs on a dead connection (10.5 s)."""
LOOK_S = 0.25
LOOKS_BETWEEN_BOUNDS = 20
"""Resource bounds are checked every five seconds, since a leak only grows."""
LAST_READER = "last"


Record = Callable[[Cluster], ClusterRecorder]


def run(
    plan: Plan,
    *,
    only: Iterable[int] | None = None,
    sink: Callable[[str], object] | None = None,
    record: Record | None = None,
) -> Verdict:
    """Run ``plan`` and return the verdict.

    ``only``: numbers of the faults to inject, default all; ``sink`` is called with each trace line;
    ``record`` makes the recorder of the cluster.
    """
    verdict = Verdict(plan)
    world = World(plan.seed, sink=sink)
    begun = time.perf_counter()
    with LogCapture(world) as log_capture:
        run = _Run(world, plan, only, verdict, log_capture)
        run.recorder = record(run.cluster) if record is not None else None
        try:
            world.run(lambda _: run.play(), limit_s=plan.minutes * 60 + 2_000)
        except TimeoutError:
            verdict.find(Exit.NO_CONVERGENCE, ["the simulated time ran out"])
        except (Livelock, Deadlock) as stuck:
            verdict.find(Exit.NO_CONVERGENCE, [f"{type(stuck).__name__.lower()}: {stuck}"])
        except Exception as error:
            verdict.find(Exit.CRASH, [f"the run itself failed: {error!r}"])
            if verdict.exit is Exit.CRASH and not log_capture.unexpected:
                raise
        verdict.find(Exit.CRASH, (f"crash: {text}" for text in log_capture.unexpected[:5]))
        verdict.find(Exit.CRASH, (f"crash: {error!r}" for error in world.failures[:5]))
        verdict.process_logs = log_capture.last()
    if run.recorder is not None:
        run.recorder.end(verdict.findings)
    verdict.digest = world.trace.digest
    verdict.simulated_s = world.loop.time()
    verdict.real_s = time.perf_counter() - begun
    return verdict


class _Run:
    def __init__(
        self, world: World, plan: Plan, only: Iterable[int] | None, verdict: Verdict, log_capture: LogCapture
    ) -> None:
        self._world = world
        self._plan = plan
        self._verdict = verdict
        self._log_capture = log_capture
        self.recorder: ClusterRecorder | None = None
        self.cluster = self._cluster = Cluster(
            world,
            brokers=plan.brokers,
            one_machine=plan.one_machine,
            settings=plan.settings,
            pace=plan.pace,
            ensemble=plan.ensemble,
            folders=plan.folders,
            first_epoch=plan.transactions.first_epoch if plan.transactions is not None else 0,
            users=USERS if plan.rights else (),
        )
        self._client_host = world.host("clients")
        self._leader_invariants = LeaderInvariants(self._cluster, unpromised=RANDOM_TOPICS)
        self._bounds = Bounds(self._cluster)
        self._services = Services(self._cluster)
        self._failed_disks = FailedDisks(self._cluster)
        self._checkpoint_files = CheckpointFiles(self._cluster)
        self._compactions = compaction.CompactionCounts(self._cluster)
        for host in self._cluster.machines:
            host.disk.on_error = self._failed_disks.on_error
        self._history = LongHistory(kept_whole=frozenset({LAST_READER}))
        self._retention = Retention(self._cluster, self._history, policies_of(plan))
        self._clients = RunClients(plan, self._cluster, self._client_host, self._history, self._retention)
        self._membership = (
            Membership(self._cluster, self._client_host, plan.membership)
            if plan.membership is not None
            else None
        )
        self._driver = FaultDriver(self._cluster, self._clients.all, plan, only, self._clients.has_decided)
        self._breaches = self._driver.broken_invariants
        log_capture.excuse = lambda error: self._failed_disks.excuses(error) or self._breaches.excuses(error)

    async def play(self) -> None:
        self._set_up_world()
        await self._cluster.set_up()
        if not await self._finishes("admin", self._clients.create_topics, SETTLE_S):
            return
        watching = asyncio.create_task(self._watch())
        for client in self._clients.all:
            client.start()
        self._driver.start()
        if self._membership is not None:
            self._membership.start()
        await asyncio.sleep(self._plan.fault_phase_s)
        if self._membership is not None:
            self._membership.stop()
        await self._driver.heal()
        if self._driver.failed_folders:
            await self._until(lambda: not failed_folders.not_converged(self._cluster), CONVERGENCE_S)
            self._verdict.find(Exit.NO_CONVERGENCE, failed_folders.not_converged(self._cluster))
        self._driver.heal_folders()
        self._clients.stop_disrupting()
        for client in self._clients.changers:
            client.stop()
        await self._until(lambda: not self._busy(), SETTLE_S)
        stuck = (f"{name} does not end" for name in self._busy())
        self._verdict.find(Exit.NO_CONVERGENCE, stuck)
        await self._until(lambda: not self._not_converged(), CONVERGENCE_S)
        self._verdict.find(Exit.NO_CONVERGENCE, self._not_converged())
        if not self._verdict.findings:
            await self._until(lambda: not self._bounds.waiting_at_rest(), CONVERGENCE_S)
            self._bounds.look_at_rest(self._clients.producers())
            await self._until(lambda: not self._services.late(), CONVERGENCE_S)
            self._services.look_at_rest()
        await self._until(lambda: not self._clients.group_not_settled(), CONVERGENCE_S)
        self._verdict.find(Exit.NO_CONVERGENCE, self._clients.group_not_settled())
        for reader in (*self._clients.readers, *self._clients.members):
            reader.stop()
        await self._until(lambda: not self._clients.reading(), SETTLE_S)
        if watching.done():
            watching.result()  # raises the error of a checker that failed
        watching.cancel()
        if self._membership is not None:
            self._membership.cancel()
        await self._driver.stop()
        if not self._verdict.findings:
            await self._judge_at_rest()
        self._judge_history()
        self._verdict.find(Exit.CRASH, self._clients.failed())

    def _busy(self) -> list[str]:
        """Return the names of the clients that still write or change metadata."""
        operator = ["operator"] if self._membership is not None and self._membership.is_busy else []
        return [*self._clients.busy(), *operator]

    def _not_converged(self) -> list[str]:
        return (
            not_converged(self._cluster) or self._retention.not_converged() or self._clients.not_converged()
        )

    def _set_up_world(self) -> None:
        self._world.network.delay_spike_share = self._plan.delay_spike_share
        rates = dict(zip(self._cluster.nodes, self._plan.clock_rates, strict=False))
        for broker_id, node in self._cluster.nodes.items():
            node.host.clock.rate = rates.get(broker_id, 1.0)
            node.host.disk.cold = self._plan.cold
        if not self._plan.one_machine:
            self._cluster.store_disk.pace = self._plan.store_pace

    async def _watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()
            looks += 1
            if looks % LOOKS_BETWEEN_BOUNDS == 0:
                self._bounds.look(self._clients.producers())
                self._services.look()

    def _look(self) -> None:
        self._leader_invariants.look(self._driver.damaged)
        self._retention.look()
        self._failed_disks.look()
        self._checkpoint_files.look()
        self._breaches.look()
        self._compactions.look()
        if self._clients.transactions is not None:
            self._clients.transactions.look()
        if self.recorder is not None:
            checkers = (
                self._leader_invariants,
                self._retention,
                self._failed_disks,
                self._checkpoint_files,
                self._breaches,
            )
            self.recorder.look(text for checker in checkers for text in checker.violations)

    async def _until(self, condition: Callable[[], bool], limit_s: float) -> None:
        deadline = self._world.loop.time() + limit_s
        while not condition() and self._world.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    async def _finishes(self, name: str, main: Callable[[Runtime], object], limit_s: float) -> bool:
        """Run a client program to its end; return whether it ended in time without an error."""
        process = self._client_host.start(name, main)  # type: ignore[arg-type]
        await self._until(lambda: not process.alive, limit_s)
        if process.alive:
            self._verdict.find(Exit.NO_CONVERGENCE, [f"{name} does not end"])
            return False
        await process.exited
        error = process.exited.result()
        self._verdict.find(Exit.NO_CONVERGENCE, [f"{name} failed: {error!r}"] if error is not None else [])
        return error is None

    def _workloads(self) -> Counter[str]:
        """Return how often each operation was executed, by name."""
        done = self._clients.done()
        if self._membership is not None:
            done["brokers joined"] = int(self._membership.joined is not None)
            done["brokers removed"] = int(self._membership.left is not None)
        done["log start offsets advanced"] = self._retention.taken
        done.update(self._compactions.done())
        return +done

    # ---- checking

    async def _judge_at_rest(self) -> None:
        present: dict[str, str | None] = {}
        last = self._clients.reader(LAST_READER)

        async def list_topics(runtime: Runtime) -> None:
            async with Admin(runtime, {"bootstrap.servers": self._cluster.bootstrap_servers}) as admin:
                for name in await admin.list_topics():
                    settings = await admin.describe_configs(ResourceType.TOPIC, name)
                    present[name] = settings[KEY].value

        if not await self._finishes("last", last.read_to_end, SETTLE_S):
            return
        self._retention.look()
        self._clients.readers.append(last)
        self._driver.repair_damage()
        if not await self._finishes("lister", list_topics, SETTLE_S):
            return
        await self._until(lambda: not self._not_converged(), CONVERGENCE_S)
        if self._clients.churn is not None:
            self._verdict.find(Exit.WRONG_RESULT, self._clients.churn.judge(present))
        self._leader_invariants.compare_images()
        self._verdict.find(Exit.WRONG_RESULT, disks.compare_cluster(self._cluster, self._clients.partitions))
        self._verdict.find(Exit.WRONG_RESULT, metadata.compare_cluster(self._cluster))
        if self._clients.rights is None:  # else what a client is told depends on its rights
            responses = MetadataResponses(self._cluster)
            await self._finishes("metadata at rest", responses.ask, SETTLE_S)
            self._verdict.find(Exit.WRONG_RESULT, responses.violations[:FINDINGS_SHOWN])
        self._verdict.find(Exit.WRONG_RESULT, self._clients.judge_compacted())
        if self._clients.rights is not None:
            await self._finishes("guests at rest", self._clients.rights.ask_at_rest, SETTLE_S)
        transactions = self._clients.transactions
        if transactions and await self._finishes("last committed", transactions.read_at_rest, SETTLE_S):
            self._verdict.find(Exit.WRONG_RESULT, transactions.judge_at_rest())

    def _judge_history(self) -> None:
        verdict = self._verdict
        verdict.find(Exit.WRONG_RESULT, self._leader_invariants.violations)
        verdict.find(Exit.WRONG_RESULT, self._retention.violations[:FINDINGS_SHOWN])
        verdict.find(Exit.WRONG_RESULT, self._bounds.violations[:FINDINGS_SHOWN])
        verdict.find(Exit.WRONG_RESULT, self._services.violations)
        verdict.find(Exit.CRASH, self._failed_disks.violations)
        verdict.find(Exit.WRONG_RESULT, self._checkpoint_files.violations)
        verdict.find(Exit.WRONG_RESULT, self._breaches.violations[:FINDINGS_SHOWN])
        verdict.highest = self._bounds.highest
        self._clients.judge_changers(verdict)
        verdict.find(Exit.WRONG_RESULT, (str(each) for each in check(self._history)[:20]))
        self._clients.judge_readers(verdict)
        for node in self._cluster.known.values():
            reasons = (
                f"{node.name} ended by itself: {end}"
                for end in node.unexpected_exits
                if not end.is_excused(self._driver.store_faults.affecting_at(end.at_s))
            )
            verdict.find(Exit.CRASH, reasons)
        sends = self._history.sends
        verdict.sends = len(sends)
        verdict.acknowledged = sum(send.outcome is Outcome.OK for send in sends)
        verdict.faults = self._driver.played
        verdict.workloads = self._workloads()
