"""Running one seed's plan and checking the results.

There are two phases: the plan's faults are injected while the clients run; then all faults are ended, and the
cluster *must* converge within a time limit and return every acknowledged record. The verdict's exit code is
the type of failure: a program crashed, no convergence, or a wrong result.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.descriptions import ConfigChange, NewTopic, ResourceType
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.topic import GROUP_METADATA_TOPIC
from nilometer.runtime import Runtime
from nilometer.simulation.checkers import compaction, disks, failed_folders, metadata
from nilometer.simulation.checkers.bounds import Bounds
from nilometer.simulation.checkers.convergence import group_not_settled, not_converged
from nilometer.simulation.checkers.failed_disks import FailedDisks
from nilometer.simulation.checkers.groups import GroupLedger
from nilometer.simulation.checkers.history import Outcome
from nilometer.simulation.checkers.history_checker import check
from nilometer.simulation.checkers.leader_invariants import LeaderInvariants
from nilometer.simulation.checkers.long_history import LongHistory
from nilometer.simulation.checkers.retention import Retention, policies_of
from nilometer.simulation.checkers.services import Services
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.faults import FaultDriver
from nilometer.simulation.log_capture import LogCapture
from nilometer.simulation.loop import Deadlock, Livelock
from nilometer.simulation.plan import Plan, TopicPlan
from nilometer.simulation.transaction_workload import TransactionWorkload
from nilometer.simulation.verdict import Exit, Verdict
from nilometer.simulation.workload.admin_program import AdminProgram
from nilometer.simulation.workload.compacted_topic import PARTITION, CompactedTopicWriter
from nilometer.simulation.workload.consumers import Reader
from nilometer.simulation.workload.members import GroupMember
from nilometer.simulation.workload.membership import Membership
from nilometer.simulation.workload.moves import Mover
from nilometer.simulation.workload.producers import Writer
from nilometer.simulation.workload.random_administrator import TOPICS as RANDOM_TOPICS
from nilometer.simulation.workload.random_administrator import RandomAdministrator
from nilometer.simulation.workload.reused_names import NameReuser
from nilometer.simulation.workload.rogue_client import RogueClient
from nilometer.simulation.workload.topics import KEY, TopicChurn
from nilometer.simulation.workload.transactions.program import TransactionalProgram
from nilometer.simulation.workload.trimmer import Trimmer
from nilometer.simulation.world import World

CONVERGENCE_S = 120.0
"""The time after healing within which the cluster must converge. Longest single waits: a connection attempt
(10 s), a session (6 s), a follower's lag (10 s), a fetch that hangs on a dead connection (10.5 s)."""
SETTLE_S = 180.0
"""How long clients may take to finish after healing: their deliveries time out after 40 s."""
LOOK_S = 0.25
LOOKS_BETWEEN_BOUNDS = 20
"""Resource bounds are checked every five seconds, since a leak only grows."""
FINDINGS_SHOWN = 10
LAST_READER = "last"


def run(
    plan: Plan, *, only: Iterable[int] | None = None, sink: Callable[[str], object] | None = None
) -> Verdict:
    """Run ``plan`` and return the verdict.

    ``only``: numbers of the faults to inject, default all; ``sink`` is called with each trace line.
    """
    verdict = Verdict(plan)
    world = World(plan.seed, sink=sink)
    begun = time.perf_counter()
    with LogCapture(world) as log_capture:
        run = _Run(world, plan, only, verdict, log_capture)
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
    verdict.digest = world.trace.digest
    verdict.simulated_s = world.loop.time()
    verdict.real_s = time.perf_counter() - begun
    return verdict


_Operator = AdminProgram | RogueClient | RandomAdministrator
_Client = Writer | _Operator | TransactionalProgram | Reader | GroupMember


class _Run:
    def __init__(
        self, world: World, plan: Plan, only: Iterable[int] | None, verdict: Verdict, log_capture: LogCapture
    ) -> None:
        self._world = world
        self._plan = plan
        self._verdict = verdict
        self._log_capture = log_capture
        self._cluster = Cluster(
            world,
            brokers=plan.brokers,
            one_machine=plan.one_machine,
            settings=plan.settings,
            pace=plan.pace,
            ensemble=plan.ensemble,
            folders=plan.folders,
            first_epoch=plan.transactions.first_epoch if plan.transactions is not None else 0,
        )
        self._clients = world.host("clients")
        self._leader_invariants = LeaderInvariants(self._cluster, unpromised=RANDOM_TOPICS)
        self._bounds = Bounds(self._cluster)
        self._services = Services(self._cluster)
        self._failed_disks = FailedDisks(self._cluster)
        self._compactions = compaction.CompactionCounts(self._cluster)
        for host in self._cluster.machines:
            host.disk.on_error = self._failed_disks.on_error
        self._history = LongHistory(kept_whole=frozenset({LAST_READER}))
        self._partitions = [partition for topic in plan.topics for partition in _partitions_of(topic)]
        servers = self._cluster.bootstrap_servers
        self._writers = [
            Writer(f"writer{number}", self._clients, servers, each, self._history)
            for number, each in enumerate(plan.writers)
        ]
        self._readers = [self._reader("tail"), self._reader("again", polls_per_incarnation=40)]
        self._retention = Retention(self._cluster, self._history, policies_of(plan))
        trimmed = [one for topic in plan.topics if topic.is_deleted for one in _partitions_of(topic)]
        self._trimmer = Trimmer(self._clients, servers, trimmed, self._retention) if trimmed else None
        self._membership = (
            Membership(self._cluster, self._clients, plan.membership) if plan.membership is not None else None
        )
        self._churn = TopicChurn(self._clients, servers) if plan.churn else None
        self._mover = (
            Mover(self._clients, servers, self._partitions, lambda: self._cluster.open_to_replicas)
            if plan.moves
            else None
        )
        self._ledger = GroupLedger("readers")
        self._members: list[GroupMember] = []
        if (group := plan.group) is not None:
            names = [topic.name for topic in plan.topics]
            self._members = [
                GroupMember(f"member{number}", self._clients, servers, group, names, self._ledger)
                for number in range(group.members)
            ]
        durable = plan.machines_lost_max > 1 or (plan.one_machine and Kind.POWER in plan.kinds)
        self._reuser = NameReuser(self._clients, servers, flush_each=durable) if plan.reuses_names else None
        self._compactor = (
            CompactedTopicWriter(self._clients, servers, flush_each=durable) if plan.compacts else None
        )
        self._transactions = (
            TransactionWorkload(self._cluster, self._clients, plan.transactions, flush_each=durable)
            if plan.transactions is not None
            else None
        )
        programs = self._transactions.programs if self._transactions is not None else []
        self._readers += self._transactions.readers if self._transactions is not None else []
        self._rogue = RogueClient(self._clients, self._cluster) if plan.rogue else None
        self._random_admin = RandomAdministrator(self._clients, self._cluster) if plan.administers else None
        operators = (self._churn, self._mover, self._trimmer, self._reuser, self._rogue, self._random_admin)
        changers = (*self._writers, *operators, self._compactor, *programs)
        self._changers = [each for each in changers if each is not None]
        """Clients that write or change metadata: they must end before the cluster is checked."""
        has_decided = self._transactions.coordinators.has_decided if self._transactions is not None else None
        clients = [*self._changers, *self._readers, *self._members]
        self._driver = FaultDriver(self._cluster, clients, plan, only, has_decided)
        self._breaches = self._driver.broken_invariants
        log_capture.excuse = lambda error: self._failed_disks.excuses(error) or self._breaches.excuses(error)

    def _reader(self, name: str, polls_per_incarnation: int | None = None) -> Reader:
        return Reader(
            name,
            self._clients,
            self._cluster.bootstrap_servers,
            self._partitions,
            self._history,
            polls_per_incarnation=polls_per_incarnation,
            deleted=self._plan.deletes,
        )

    async def play(self) -> None:
        self._set_up_world()
        await self._cluster.set_up()
        if not await self._finishes("admin", self._create_topics, SETTLE_S):
            return
        watching = asyncio.create_task(self._watch())
        for client in (*self._changers, *self._readers, *self._members):
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
        for member in self._members:
            member.stop_disrupting()
            if member.process is None or not member.process.alive:
                member.start()  # it had crashed and was to be started again later
        if self._transactions is not None:
            self._transactions.restart_transformers()
        for client in self._changers:
            client.stop()
        await self._until(lambda: not self._busy(), SETTLE_S)
        stuck = (f"{name} does not end" for name in self._busy())
        self._verdict.find(Exit.NO_CONVERGENCE, stuck)
        await self._until(lambda: not self._not_converged(), CONVERGENCE_S)
        self._verdict.find(Exit.NO_CONVERGENCE, self._not_converged())
        if not self._verdict.findings:
            await self._until(lambda: not self._bounds.waiting_at_rest(), CONVERGENCE_S)
            self._bounds.look_at_rest(self._producers())
            await self._until(lambda: not self._services.late(), CONVERGENCE_S)
            self._services.look_at_rest()
        await self._until(lambda: not self._group_not_settled(), CONVERGENCE_S)
        self._verdict.find(Exit.NO_CONVERGENCE, self._group_not_settled())
        for reader in (*self._readers, *self._members):
            reader.stop()
        await self._until(lambda: not _alive([*self._readers, *self._members]), SETTLE_S)
        if watching.done():
            watching.result()  # raises the error of a checker that failed
        watching.cancel()
        if self._membership is not None:
            self._membership.cancel()
        await self._driver.stop()
        if not self._verdict.findings:
            await self._judge_at_rest()
        self._judge_history()
        self._verdict.find(Exit.CRASH, self._failed_clients())

    def _producers(self) -> int:
        programs = [one for one in (self._reuser, self._compactor, self._transactions) if one is not None]
        return sum(each.incarnations for each in self._writers) + sum(each.producers for each in programs)

    def _busy(self) -> list[str]:
        """Return the names of the clients that still write or change metadata."""
        operator = ["operator"] if self._membership is not None and self._membership.is_busy else []
        return [*_alive(self._changers), *operator]

    def _not_converged(self) -> list[str]:
        hanging = self._transactions.not_converged() if self._transactions is not None else []
        return not_converged(self._cluster) or self._retention.not_converged() or hanging

    def _failed_clients(self) -> Iterable[str]:
        for client in (*self._changers, *self._readers, *self._members):
            process = client.process
            if process is not None and process.exited.done() and process.exited.result() is not None:
                yield f"{client.name} failed: {process.exited.result()!r}"

    def _set_up_world(self) -> None:
        self._world.network.delay_spike_share = self._plan.delay_spike_share
        rates = dict(zip(self._cluster.nodes, self._plan.clock_rates, strict=False))
        for broker_id, node in self._cluster.nodes.items():
            node.host.clock.rate = rates.get(broker_id, 1.0)
            node.host.disk.cold = self._plan.cold
        if not self._plan.one_machine:
            self._cluster.store_disk.pace = self._plan.store_pace

    async def _create_topics(self, runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": self._cluster.bootstrap_servers}) as admin:
            for topic in self._plan.topics:
                await admin.create_topic(NewTopic(topic.name, topic.partitions, 3, topic.configs))
            if self._members:
                await self._create_group_topic(admin)
            if self._transactions is not None:
                await self._transactions.create_topics(runtime, admin)

    async def _create_group_topic(self, admin: Admin) -> None:
        """Create the offsets topic, as the first member would; synced per message if machines lose power."""
        await admin.client.retry(Coordinator(admin.client, self._ledger.group_id).find, int(SETTLE_S * 1000))
        if Kind.POWER in self._plan.kinds:
            durable = [ConfigChange("flush.messages", "1")]
            await admin.incremental_alter_configs(ResourceType.TOPIC, GROUP_METADATA_TOPIC, durable)

    async def _watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()
            looks += 1
            if looks % LOOKS_BETWEEN_BOUNDS == 0:
                self._bounds.look(self._producers())
                self._services.look()

    def _look(self) -> None:
        self._leader_invariants.look(self._driver.damaged)
        self._retention.look()
        self._failed_disks.look()
        self._breaches.look()
        self._compactions.look()
        if self._transactions is not None:
            self._transactions.look()

    async def _until(self, condition: Callable[[], bool], limit_s: float) -> None:
        deadline = self._world.loop.time() + limit_s
        while not condition() and self._world.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    async def _finishes(self, name: str, main: Callable[[Runtime], object], limit_s: float) -> bool:
        """Run a client program to its end; return whether it ended in time without an error."""
        process = self._clients.start(name, main)  # type: ignore[arg-type]
        await self._until(lambda: not process.alive, limit_s)
        if process.alive:
            self._verdict.find(Exit.NO_CONVERGENCE, [f"{name} does not end"])
            return False
        await process.exited
        error = process.exited.result()
        self._verdict.find(Exit.NO_CONVERGENCE, [f"{name} failed: {error!r}"] if error is not None else [])
        return error is None

    def _group_not_settled(self) -> list[str]:
        if not self._members:
            return []
        return (
            group_not_settled(self._members, self._partitions)
            or (self._ledger.missing(self._acknowledged())[:FINDINGS_SHOWN])
        )

    def _acknowledged(self) -> list[tuple[str, str]]:
        return [
            (send.partition, send.value)
            for send in self._history.sends
            if send.outcome is Outcome.OK and not self._history.may_be_gone(send)
        ]

    def _workloads(self) -> Counter[str]:
        """Return how often each operation was executed, by name."""
        plan, done = self._plan, Counter[str]()
        for writer in self._writers:
            kind = "idempotent" if writer.plan.idempotent else f"plain, acks={writer.plan.acks}"
            done[f"sends, {kind}"] += writer.sent
        done["topics created, altered, deleted"] = self._churn.done if self._churn is not None else 0
        done["reassignments"] = self._mover.asked if self._mover is not None else 0
        if plan.group is not None:
            done[f"group generations, {plan.group.protocol}"] = self._ledger.generations
        if self._membership is not None:
            done["brokers joined"] = int(self._membership.joined is not None)
            done["brokers removed"] = int(self._membership.left is not None)
        done["topics of a reused name"] = self._reuser.incarnations if self._reuser is not None else 0
        done["log start offsets advanced"] = self._retention.taken
        done["deletions of records requested"] = self._trimmer.trimmed if self._trimmer is not None else 0
        done["writes to a compacted topic"] = self._compactor.written if self._compactor is not None else 0
        done.update(self._compactions.done())
        tried = self._rogue.tried.total() if self._rogue is not None else 0
        done["requests of a client in the name of a broker"] = tried
        if self._random_admin is not None:
            done["responses to random requests"] = self._random_admin.answers.total()
        done.update(self._transactions.done() if self._transactions is not None else {})
        return +done

    # ---- checking

    async def _judge_at_rest(self) -> None:
        present: dict[str, str | None] = {}
        last = self._reader(LAST_READER)

        async def list_topics(runtime: Runtime) -> None:
            async with Admin(runtime, {"bootstrap.servers": self._cluster.bootstrap_servers}) as admin:
                for name in await admin.list_topics():
                    settings = await admin.describe_configs(ResourceType.TOPIC, name)
                    present[name] = settings[KEY].value

        if not await self._finishes("last", last.read_to_end, SETTLE_S):
            return
        self._retention.look()
        self._readers.append(last)
        self._driver.repair_damage()
        if not await self._finishes("lister", list_topics, SETTLE_S):
            return
        await self._until(lambda: not self._not_converged(), CONVERGENCE_S)
        if self._churn is not None:
            self._verdict.find(Exit.WRONG_RESULT, self._churn.judge(present))
        self._leader_invariants.compare_images()
        self._verdict.find(Exit.WRONG_RESULT, disks.compare_cluster(self._cluster, self._partitions))
        self._verdict.find(Exit.WRONG_RESULT, metadata.compare_cluster(self._cluster))
        if self._compactor is not None and self._compactor.is_created:
            found = compaction.compare_cluster(self._cluster, PARTITION, self._compactor.judge)
            self._verdict.find(Exit.WRONG_RESULT, found)
        transactions = self._transactions
        if transactions and await self._finishes("last committed", transactions.read_at_rest, SETTLE_S):
            self._verdict.find(Exit.WRONG_RESULT, transactions.judge_at_rest())

    def _judge_history(self) -> None:
        verdict = self._verdict
        verdict.find(Exit.WRONG_RESULT, self._leader_invariants.violations)
        verdict.find(Exit.WRONG_RESULT, self._retention.violations[:FINDINGS_SHOWN])
        verdict.find(Exit.WRONG_RESULT, self._bounds.violations[:FINDINGS_SHOWN])
        verdict.find(Exit.WRONG_RESULT, self._services.violations)
        verdict.find(Exit.CRASH, self._failed_disks.violations)
        verdict.find(Exit.WRONG_RESULT, self._breaches.violations[:FINDINGS_SHOWN])
        verdict.highest = self._bounds.highest
        if self._trimmer is not None:
            verdict.find(Exit.WRONG_RESULT, self._trimmer.violations)
        if self._rogue is not None:
            verdict.find(Exit.WRONG_RESULT, self._rogue.violations[:FINDINGS_SHOWN])
        if self._reuser is not None:
            verdict.find(Exit.WRONG_RESULT, self._reuser.violations)
        if self._compactor is not None:
            verdict.find(Exit.WRONG_RESULT, self._compactor.violations[:FINDINGS_SHOWN])
        if self._random_admin is not None:
            verdict.find(Exit.CRASH, self._random_admin.violations)
        if self._transactions is not None:
            verdict.find(Exit.WRONG_RESULT, self._transactions.judge())
            verdict.error_counts += self._transactions.error_counts
        verdict.find(Exit.WRONG_RESULT, (str(each) for each in check(self._history)[:20]))
        for reader in self._readers:
            verdict.find(Exit.WRONG_RESULT, reader.violations[:10])
            verdict.read += reader.read
            verdict.error_counts += reader.error_counts
        for writer in self._writers:
            verdict.error_counts += writer.error_counts
        verdict.find(Exit.WRONG_RESULT, self._ledger.violations())
        for member in self._members:
            verdict.find(Exit.WRONG_RESULT, member.violations[:FINDINGS_SHOWN])
            verdict.error_counts += member.error_counts
        verdict.generations = self._ledger.generations
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


def _partitions_of(topic: TopicPlan) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(topic.partitions)]


def _alive(clients: Sequence[_Client]) -> list[str]:
    """Return the names of the clients that still run."""
    return [client.name for client in clients if client.process is not None and client.process.alive]
