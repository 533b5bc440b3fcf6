"""Running one seed's plan and checking the results.

There are two phases: the plan's faults are injected while the clients run; then all faults are ended, and the
cluster *must* converge within a time limit and return every acknowledged record. The verdict's exit code is
the type of failure: a program crashed, no convergence, or a wrong result.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Protocol

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import GROUP_METADATA_TOPIC
from nilometer.runtime import Runtime
from nilometer.simulation.checkers import cleanup, logs, metadata, tier
from nilometer.simulation.checkers.checkpoints import CheckpointFiles
from nilometer.simulation.checkers.cleanup import Retention, policies_of
from nilometer.simulation.checkers.failed_disks import FailedDisks, not_failed_over
from nilometer.simulation.checkers.group_ledger import GroupLedger
from nilometer.simulation.checkers.history import LongHistory, Outcome, check
from nilometer.simulation.checkers.metadata import MetadataResponses
from nilometer.simulation.checkers.running_brokers import (
    Bounds,
    LeaderInvariants,
    Services,
    group_not_settled,
    not_converged,
)
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.faults import FaultDriver
from nilometer.simulation.loop import CURRENT, Deadlock, Livelock
from nilometer.simulation.object_store import StoreFaults
from nilometer.simulation.plan import TIERED, Plan, TopicPlan
from nilometer.simulation.recorded_starts import RecordedStarts
from nilometer.simulation.share_workload import ShareWorkload
from nilometer.simulation.transaction_workload import TransactionWorkload
from nilometer.simulation.workload.admin_programs import (
    KEY,
    AdminProgram,
    DirectoryMover,
    Mover,
    NameReuser,
    TopicChurn,
    Trimmer,
)
from nilometer.simulation.workload.compacted_topic import PARTITION, CompactedTopicWriter
from nilometer.simulation.workload.consumers import GroupMember, Reader
from nilometer.simulation.workload.foreign_producers import ForeignProducer
from nilometer.simulation.workload.membership import Membership
from nilometer.simulation.workload.metadata_writers import WRITERS, MetadataLedger, MetadataWriter
from nilometer.simulation.workload.producers import Writer
from nilometer.simulation.workload.random_administrator import TOPICS as RANDOM_TOPICS
from nilometer.simulation.workload.random_administrator import RandomAdministrator
from nilometer.simulation.workload.rights import USERS, Grantor, Guest, RightsWorkload
from nilometer.simulation.workload.rogue_client import RogueClient
from nilometer.simulation.workload.transactions import TransactionalProgram
from nilometer.simulation.world import Host, Program, World

# The verdict of a run: clean or the most severe type of failure, with findings and statistics.


class Exit(enum.IntEnum):
    CLEAN = 0
    CRASH = 10
    NO_CONVERGENCE = 11
    WRONG_RESULT = 12


SEVERITY_ORDER = (Exit.CLEAN, Exit.NO_CONVERGENCE, Exit.CRASH, Exit.WRONG_RESULT)


@dataclass(slots=True)
class Verdict:
    plan: Plan
    exit: Exit = Exit.CLEAN
    findings: list[str] = field(default_factory=list[str])
    digest: str = ""
    simulated_s: float = 0.0
    real_s: float = 0.0
    faults: Counter[Kind] = field(default_factory=Counter[Kind])
    sends: int = 0
    acknowledged: int = 0
    read: int = 0
    workloads: Counter[str] = field(default_factory=Counter[str])
    """How often clients and operators executed each operation, by name."""
    highest: dict[str, int] = field(default_factory=dict[str, int])
    """The highest observed values of bounded resources, by name."""
    generations: int = 0
    """Number of generations of the consumer group, if there was one."""
    process_logs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    error_counts: Counter[str] = field(default_factory=Counter[str])

    def find(self, exit: Exit, findings: Iterable[str]) -> None:
        """Add findings; the most severe exit code of all becomes the run's."""
        found = list(findings)
        if found and SEVERITY_ORDER.index(exit) > SEVERITY_ORDER.index(self.exit):
            self.exit = exit
        self.findings += found


# Capturing the last log lines of each process, which are shown after a run.
#
# While it is entered, it collects Nilometer's log messages with the simulated time and the process. Only the
# last lines of each process are kept. Errors with a traceback are collected separately: an unexpected error
# is a finding.

LINES_PER_PROCESS = 30


class LogCapture(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._lines: dict[str, deque[str]] = {}
        self.unexpected: list[str] = []
        self.excuse: Callable[[BaseException], bool] = lambda error: False
        """Returns whether an injected fault explains an error."""
        self.has_ended = False
        """Whether what is logged is no longer of the run."""
        self._level = logging.NOTSET
        self._propagated = True

    def __enter__(self) -> LogCapture:
        product = logging.getLogger("nilometer")
        self._level, self._propagated = product.level, product.propagate
        product.setLevel(logging.INFO)
        product.propagate = False
        product.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        product = logging.getLogger("nilometer")
        product.removeHandler(self)
        product.setLevel(self._level)
        product.propagate = self._propagated

    def record(self, who: str, what: str) -> None:
        lines = self._lines.setdefault(who, deque(maxlen=LINES_PER_PROCESS))
        lines.append(f"{self._world.loop.time():10.3f} s  {what}")

    def emit(self, record: logging.LogRecord) -> None:
        if self.has_ended:
            return
        who = getattr(CURRENT.get(), "name", "world")
        error = record.exc_info[1] if record.exc_info else None
        suffix = f" ({error!r})" if error is not None else ""
        self.record(who, f"{record.levelname.lower()}: {record.getMessage()}{suffix}")
        if error is None:
            return
        if not self.excuse(error):
            lines = "".join(traceback.format_exception(error))
            self.unexpected.append(f"{who}: {record.getMessage()}\n{lines}")

    def last(self, count: int = 12) -> dict[str, list[str]]:
        """Return the last log lines of each process, brokers first."""
        order = sorted(self._lines, key=lambda who: (not who.startswith("broker"), who))
        return {who: list(self._lines[who])[-count:] for who in order}


# The clients of one run, by its plan: those that write or change metadata, and those that read.
#
# They are made here, and started and ended by the run. Each judges what it has seen itself; what they found
# and what they did is collected here.

SETTLE_S: Final = 180.0
"""How long clients may take to finish after healing: their deliveries time out after 40 s."""
FINDINGS_SHOWN: Final = 10

_Operator = AdminProgram | RogueClient | RandomAdministrator
_Client = Writer | _Operator | TransactionalProgram | Grantor | Guest | Reader | GroupMember | Program


class RunClients:
    def __init__(
        self, plan: Plan, cluster: Cluster, host: Host, history: LongHistory, retention: Retention
    ) -> None:
        """The clients run on ``host``; ``history`` is written by those that send and read."""
        self._plan = plan
        self._cluster = cluster
        self._host = host
        self._history = history
        self.partitions = [partition for topic in plan.topics for partition in _partitions_of(topic)]
        servers = cluster.bootstrap_servers
        self._writers = [
            Writer(f"writer{number}", host, servers, each, history)
            for number, each in enumerate(plan.writers)
        ]
        self._foreign = [
            ForeignProducer(number, host, servers, each, history) for number, each in enumerate(plan.foreign)
        ]
        self.readers = [self.reader("tail"), self.reader("again", polls_per_incarnation=40)]
        trimmed = [one for topic in plan.topics if topic.is_deleted for one in _partitions_of(topic)]
        self._trimmer = Trimmer(host, servers, trimmed, retention) if trimmed else None
        self.churn = TopicChurn(host, servers) if plan.churn else None
        self._mover = (
            Mover(host, servers, self.partitions, lambda: cluster.open_to_replicas) if plan.moves else None
        )
        self._directory_mover = (
            DirectoryMover(host, servers, lambda: cluster.open_to_replicas) if plan.moves_folders else None
        )
        self._ledger = GroupLedger("readers")
        self.members: list[GroupMember] = []
        if (group := plan.group) is not None:
            names = [topic.name for topic in plan.topics]
            self.members = [
                GroupMember(f"member{number}", host, servers, group, names, self._ledger)
                for number in range(group.members)
            ]
        durable = plan.machines_lost_max > 1 or (plan.one_machine and Kind.POWER in plan.kinds)
        tiered = TIERED if plan.tier is not None else dict[str, str]()
        self._reuser = (
            NameReuser(host, servers, flush_each=durable, configs=tiered) if plan.reuses_names else None
        )
        self._compactor = CompactedTopicWriter(host, servers, flush_each=durable) if plan.compacts else None
        self.transactions = (
            TransactionWorkload(cluster, host, plan.transactions, flush_each=durable, configs=tiered)
            if plan.transactions is not None
            else None
        )
        self.rights = RightsWorkload(cluster, host, flushes=durable) if plan.rights else None
        self.share = (
            ShareWorkload(cluster, host, plan.share, flush_each=durable) if plan.share is not None else None
        )
        self.workers = self.share.workers if self.share is not None else []
        larger = (self.transactions, self.rights, self.share)
        self._larger = [each for each in larger if each is not None]
        programs = [program for each in self._larger for program in each.programs]
        self.readers += self.transactions.readers if self.transactions is not None else []
        self._rogue = RogueClient(host, cluster) if plan.rogue else None
        self._random_admin = RandomAdministrator(host, cluster) if plan.administers else None
        self.metadata = MetadataLedger()
        metadata_writers = [
            MetadataWriter(number, host, servers, plan.topics[0].name, self.metadata, acls=plan.rights)
            for number in range(WRITERS if plan.quorum is not None else 0)
        ]
        movers = (self._mover, self._directory_mover)
        operators = (self.churn, *movers, self._trimmer, self._reuser, self._rogue, self._random_admin)
        changers = (*self._writers, *self._foreign, *operators, self._compactor, *programs, *metadata_writers)
        self.changers: list[_Client] = [each for each in changers if each is not None]
        """Clients that write or change metadata: they must end before the cluster is checked."""

    @property
    def all(self) -> list[_Client]:
        return [*self.changers, *self.readers, *self.members, *self.workers]

    @property
    def has_decided(self) -> Callable[[BrokerNode], bool] | None:
        """Tells whether a broker's coordinators have decided a transaction; None without transactions."""
        return self.transactions.coordinators.has_decided if self.transactions is not None else None

    def reader(self, name: str, polls_per_incarnation: int | None = None) -> Reader:
        """Return a new reader of all topics of the plan."""
        return Reader(
            name,
            self._host,
            self._cluster.bootstrap_servers,
            self.partitions,
            self._history,
            polls_per_incarnation=polls_per_incarnation,
            deleted=self._plan.deletes,
        )

    # ---- their topics

    async def create_topics(self, runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": self._cluster.bootstrap_servers}) as admin:
            for topic in self._plan.topics:
                await admin.ensure_topic(NewTopic(topic.name, topic.partitions, 3, topic.configs))
            if self.members:
                await self._create_group_topic(admin)
            for workload in self._larger:
                await workload.create_topics(runtime, admin)

    async def _create_group_topic(self, admin: Admin) -> None:
        """Create the offsets topic, as the first member would; synced per message if machines lose power."""
        await admin.client.retry(Coordinator(admin.client, self._ledger.group_id).find, int(SETTLE_S * 1000))
        if Kind.POWER in self._plan.kinds:
            durable = [ConfigChange("flush.messages", "1")]
            await admin.incremental_alter_configs(ResourceType.TOPIC, GROUP_METADATA_TOPIC, durable)

    # ---- while they run

    def stop_disrupting(self) -> None:
        """End the faults of the clients themselves."""
        for member in self.members:
            member.stop_disrupting()
            if member.process is None or not member.process.alive:
                member.start()  # it had crashed and was to be started again later
        if self.transactions is not None:
            self.transactions.restart_transformers()
        if self.share is not None:
            self.share.stop_disrupting()

    def producers(self) -> int:
        """Return how many producers there have been."""
        several = (self._reuser, self._compactor, self.transactions, self.share)
        programs = [one for one in several if one is not None]
        return sum(each.incarnations for each in (*self._writers, *self._foreign)) + sum(
            each.producers for each in programs
        )

    def busy(self) -> list[str]:
        """Return the names of the clients that still write or change metadata."""
        return _alive(self.changers)

    def reading(self) -> list[str]:
        """Return the names of the clients that still read."""
        return _alive([*self.readers, *self.members, *self.workers])

    def failed(self) -> Iterable[str]:
        for client in self.all:
            process = client.process
            if process is not None and process.exited.done() and process.exited.result() is not None:
                yield f"{client.name} failed: {process.exited.result()!r}"

    def not_converged(self) -> list[str]:
        return self.transactions.not_converged() if self.transactions is not None else []

    def group_not_settled(self) -> list[str]:
        if self.share is not None and (unsettled := self.share.not_settled()):
            return unsettled
        if not self.members:
            return []
        return (
            group_not_settled(self.members, self.partitions)
            or (self._ledger.missing(self._acknowledged())[:FINDINGS_SHOWN])
        )

    def _acknowledged(self) -> list[tuple[str, str]]:
        return [
            (send.partition, send.value)
            for send in self._history.sends
            if send.outcome is Outcome.OK and not self._history.may_be_gone(send)
        ]

    # ---- what they found, and did

    def judge_compacted(self) -> Iterable[str]:
        """Compare the compacted topic on all brokers with what was written to it, at rest."""
        if self._compactor is None or not self._compactor.is_created:
            return []
        return cleanup.compare_cluster(self._cluster, PARTITION, self._compactor.judge)

    def judge_changers(self, verdict: Verdict) -> None:
        """Add what the clients that write or change metadata found."""
        if self._trimmer is not None:
            verdict.find(Exit.WRONG_RESULT, self._trimmer.violations)
        if self._directory_mover is not None:
            verdict.find(Exit.WRONG_RESULT, self._directory_mover.violations[:FINDINGS_SHOWN])
        if self._rogue is not None:
            verdict.find(Exit.WRONG_RESULT, self._rogue.violations[:FINDINGS_SHOWN])
        if self._reuser is not None:
            verdict.find(Exit.WRONG_RESULT, self._reuser.violations)
        if self._compactor is not None:
            verdict.find(Exit.WRONG_RESULT, self._compactor.violations[:FINDINGS_SHOWN])
        if self._random_admin is not None:
            verdict.find(Exit.CRASH, self._random_admin.violations)
        for producer in self._foreign:
            verdict.find(Exit.WRONG_RESULT, producer.violations[:FINDINGS_SHOWN])
        for workload in self._larger:
            verdict.find(Exit.WRONG_RESULT, workload.judge())
            verdict.error_counts += workload.error_counts

    def judge_readers(self, verdict: Verdict) -> None:
        """Add what readers and members found, and the numbers of all."""
        for reader in self.readers:
            verdict.find(Exit.WRONG_RESULT, reader.violations[:10])
            verdict.read += reader.read
            verdict.error_counts += reader.error_counts
        for writer in (*self._writers, *self._foreign):
            verdict.error_counts += writer.error_counts
        verdict.find(Exit.WRONG_RESULT, self._ledger.violations())
        for member in self.members:
            verdict.find(Exit.WRONG_RESULT, member.violations[:FINDINGS_SHOWN])
            verdict.error_counts += member.error_counts
        verdict.generations = self._ledger.generations

    def done(self) -> Counter[str]:
        """Return how often each operation was executed, by name."""
        plan, done = self._plan, Counter[str]()
        for writer in self._writers:
            kind = "idempotent" if writer.plan.idempotent else f"plain, acks={writer.plan.acks}"
            done[f"sends, {kind}"] += writer.sent
        done["sends of foreign producers"] = sum(each.sent for each in self._foreign)
        done["requests that they stopped to wait for"] = sum(each.timeouts for each in self._foreign)
        done["topics created, altered, deleted"] = self.churn.done if self.churn is not None else 0
        done["reassignments"] = self._mover.asked if self._mover is not None else 0
        directory_moves = self._directory_mover.asked if self._directory_mover is not None else 0
        done["moves between log directories"] = directory_moves
        if plan.group is not None:
            done[f"group generations, {plan.group.protocol}"] = self._ledger.generations
        done["topics of a reused name"] = self._reuser.incarnations if self._reuser is not None else 0
        done["deletions of records requested"] = self._trimmer.trimmed if self._trimmer is not None else 0
        done["writes to a compacted topic"] = self._compactor.written if self._compactor is not None else 0
        tried = self._rogue.tried.total() if self._rogue is not None else 0
        done["requests of a client in the name of a broker"] = tried
        if self._random_admin is not None:
            done["responses to random requests"] = self._random_admin.answers.total()
        for workload in (*self._larger, self.metadata):
            done.update(workload.done())
        return done


def _partitions_of(topic: TopicPlan) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(topic.partitions)]


def _alive(clients: Sequence[_Client]) -> list[str]:
    return [client.name for client in clients if client.process is not None and client.process.alive]


CONVERGENCE_S = 120.0
"""The time after healing within which the cluster must converge. Longest single waits: a connection attempt
(10 s), a session (6 s), a follower's lag (10 s), a fetch that hangs on a dead connection (10.5 s)."""
QUORUM_CONVERGENCE_S = 15.0
"""The time after healing within which a metadata quorum must have a leader that commits, and all its nodes
what was committed: a broker's start, and some election time-outs."""
LOOK_S = 0.25
LOOKS_BETWEEN_BOUNDS = 20
"""Resource bounds are checked every five seconds, since a leak only grows."""
LAST_READER = "last"
DAMAGES = frozenset({Kind.DAMAGE, Kind.INDEX_DAMAGE})
"""Faults that change what a broker has written while it runs."""
RECORDED = "starts of brokers that were recorded"


class Observer(Protocol):
    """What looks at the cluster during a run, after the checkers have, every ``LOOK_S``."""

    def look(self, findings: Iterable[str] = ()) -> None: ...

    def end(self, findings: Iterable[str]) -> None: ...


Observe = Callable[[Cluster], Observer]


def run(
    plan: Plan,
    *,
    only: Iterable[int] | None = None,
    sink: Callable[[str], object] | None = None,
    observe: Observe | None = None,
    checks_recordings: bool = False,
) -> Verdict:
    """Run ``plan`` and return the verdict.

    ``only``: numbers of the faults to inject, default all; ``sink`` is called with each trace line;
    ``observe`` makes the observer of the cluster, such as its recorder; ``checks_recordings``: every start of
    a broker is recorded, and replayed after the run (not with what reaches into brokers past their runtime:
    the stores of ZooKeeper and of a metadata quorum, and broken invariants).
    """
    verdict = Verdict(plan)
    world = World(plan.seed, sink=sink)
    begun = time.perf_counter()
    is_recordable = plan.ensemble is None and plan.quorum is None and Kind.INVARIANT not in plan.kinds
    recorded = RecordedStarts() if checks_recordings and is_recordable else None
    with LogCapture(world) as log_capture:
        run = _Run(world, plan, only, verdict, log_capture, recorded)
        run.observer = observe(run.cluster) if observe is not None else None
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
        if recorded is not None:
            log_capture.has_ended = True
            is_damaged = not DAMAGES.isdisjoint(plan.kinds)
            verdict.find(Exit.WRONG_RESULT, recorded.differences(is_damaged=is_damaged))
            verdict.workloads[RECORDED] = len(recorded.starts)
    if run.observer is not None:
        run.observer.end(verdict.findings)
    verdict.digest = world.trace.digest
    verdict.simulated_s = world.loop.time()
    verdict.real_s = time.perf_counter() - begun
    return verdict


class _Run:
    def __init__(
        self,
        world: World,
        plan: Plan,
        only: Iterable[int] | None,
        verdict: Verdict,
        log_capture: LogCapture,
        recorded: RecordedStarts | None,
    ) -> None:
        self._world = world
        self._plan = plan
        self._verdict = verdict
        self._log_capture = log_capture
        self.observer: Observer | None = None
        self.cluster = self._cluster = Cluster(
            world,
            brokers=plan.brokers,
            one_machine=plan.one_machine,
            settings=plan.settings,
            pace=plan.pace,
            ensemble=plan.ensemble,
            quorum=plan.quorum,
            folders=plan.folders,
            first_epoch=plan.transactions.first_epoch if plan.transactions is not None else 0,
            users=USERS if plan.rights else (),
            recorded=recorded,
        )
        self._client_host = world.host("clients")
        self._leader_invariants = LeaderInvariants(self._cluster, unpromised=RANDOM_TOPICS)
        self._bounds = Bounds(self._cluster)
        self._services = Services(self._cluster)
        self._failed_disks = FailedDisks(self._cluster)
        self._checkpoint_files = CheckpointFiles(self._cluster)
        self._compactions = cleanup.CompactionCounts(self._cluster)
        self._remote_changes = tier.RemoteChanges(
            self._cluster,
            world.bucket,
            int(plan.settings.get("nilometer.tier.grace.ms", "0")),
            clocks_jump=Kind.CLOCK in plan.kinds,
        )
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
        if self._plan.tier is not None:
            self._world.bucket.faults = replace(self._plan.tier)
        if self._membership is not None:
            self._membership.start()
        await asyncio.sleep(self._plan.fault_phase_s)
        if self._membership is not None:
            self._membership.stop()
        await self._driver.heal()
        self._world.bucket.faults = StoreFaults()
        if (quorum := self._cluster.quorum) is not None:
            await self._until(lambda: not quorum.not_converged(), QUORUM_CONVERGENCE_S)
            self._verdict.find(Exit.WRONG_RESULT, quorum.ledger.violations)
            self._verdict.find(Exit.NO_CONVERGENCE, quorum.not_converged())
        if self._driver.failed_folders:
            await self._until(lambda: not not_failed_over(self._cluster), CONVERGENCE_S)
            self._verdict.find(Exit.NO_CONVERGENCE, not_failed_over(self._cluster))
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
        for reader in (*self._clients.readers, *self._clients.members, *self._clients.workers):
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
            if self._clients.share is not None:
                self._verdict.find(Exit.WRONG_RESULT, self._clients.share.judge_at_rest())
        self._judge_history()
        self._verdict.find(Exit.CRASH, self._clients.failed())

    def _busy(self) -> list[str]:
        """Return the names of the clients that still write or change metadata."""
        operator = ["operator"] if self._membership is not None and self._membership.is_busy else []
        return [*self._clients.busy(), *operator]

    def _not_converged(self) -> Sequence[str]:
        return (
            not_converged(self._cluster)
            or self._retention.not_converged()
            or self._clients.not_converged()
            or tier.not_converged(self._cluster, self._world.bucket)
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
        if (quorum := self._cluster.quorum) is not None:
            quorum.look(node.image for node in self._cluster.known.values() if node.image is not None)
        self._retention.look()
        self._failed_disks.look()
        self._checkpoint_files.look()
        self._breaches.look()
        self._compactions.look()
        self._remote_changes.look()
        if self._clients.transactions is not None:
            self._clients.transactions.look()
        if self.observer is not None:
            checkers = (
                self._leader_invariants,
                self._retention,
                self._failed_disks,
                self._checkpoint_files,
                self._breaches,
            )
            self.observer.look(text for checker in checkers for text in checker.violations)

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
        done["segments copied to remote storage"] = self._world.bucket.written
        done["parts read from remote storage"] = self._world.bucket.read_parts
        done["log start offsets advanced"] = self._retention.taken
        done.update(self._compactions.done())
        if (quorum := self._cluster.quorum) is not None:
            done["epochs of the metadata quorum"] = quorum.ledger.epochs
            done["commands in the metadata log"] = quorum.ledger.applied
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
        self._verdict.find(Exit.WRONG_RESULT, logs.compare_cluster(self._cluster, self._clients.partitions))
        self._verdict.find(Exit.WRONG_RESULT, metadata.compare_cluster(self._cluster))
        images = {node.name: node.image for node in self._cluster.nodes.values() if node.image is not None}
        entries = self._cluster.store.entries()
        self._verdict.find(Exit.WRONG_RESULT, self._clients.metadata.judge(entries, images))
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
        if self._cluster.quorum is not None:
            judged = self._cluster.quorum.judge()
            verdict.find(Exit.WRONG_RESULT, (each for each in judged if each not in verdict.findings))
        verdict.find(Exit.CRASH, self._failed_disks.violations)
        verdict.find(Exit.WRONG_RESULT, self._checkpoint_files.violations)
        verdict.find(Exit.WRONG_RESULT, self._breaches.violations[:FINDINGS_SHOWN])
        verdict.find(Exit.WRONG_RESULT, self._remote_changes.violations[:FINDINGS_SHOWN])
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
