"""The clients of one run, by its plan: those that write or change metadata, and those that read.

They are made here and started by :mod:`~nilometer.simulation.run`, which also ends them. Each judges what it
has seen itself; this module collects what they found and what they did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import GROUP_METADATA_TOPIC
from nilometer.runtime import Runtime
from nilometer.simulation.checkers import compaction
from nilometer.simulation.checkers.convergence import group_not_settled
from nilometer.simulation.checkers.groups import GroupLedger
from nilometer.simulation.checkers.history import Outcome
from nilometer.simulation.checkers.long_history import LongHistory
from nilometer.simulation.checkers.retention import Retention
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import Plan, TopicPlan
from nilometer.simulation.rights_workload import RightsWorkload
from nilometer.simulation.transaction_workload import TransactionWorkload
from nilometer.simulation.verdict import Exit, Verdict
from nilometer.simulation.workload.admin_program import AdminProgram
from nilometer.simulation.workload.compacted_topic import PARTITION, CompactedTopicWriter
from nilometer.simulation.workload.consumers import Reader
from nilometer.simulation.workload.members import GroupMember
from nilometer.simulation.workload.moves import Mover
from nilometer.simulation.workload.producers import Writer
from nilometer.simulation.workload.random_administrator import RandomAdministrator
from nilometer.simulation.workload.reused_names import NameReuser
from nilometer.simulation.workload.rights.grantor import Grantor
from nilometer.simulation.workload.rights.guest import Guest
from nilometer.simulation.workload.rogue_client import RogueClient
from nilometer.simulation.workload.topics import TopicChurn
from nilometer.simulation.workload.transactions.program import TransactionalProgram
from nilometer.simulation.workload.trimmer import Trimmer
from nilometer.simulation.world import Host

SETTLE_S: Final = 180.0
"""How long clients may take to finish after healing: their deliveries time out after 40 s."""
FINDINGS_SHOWN: Final = 10

_Operator = AdminProgram | RogueClient | RandomAdministrator
_Client = Writer | _Operator | TransactionalProgram | Grantor | Guest | Reader | GroupMember


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
        self.readers = [self.reader("tail"), self.reader("again", polls_per_incarnation=40)]
        trimmed = [one for topic in plan.topics if topic.is_deleted for one in _partitions_of(topic)]
        self._trimmer = Trimmer(host, servers, trimmed, retention) if trimmed else None
        self.churn = TopicChurn(host, servers) if plan.churn else None
        self._mover = (
            Mover(host, servers, self.partitions, lambda: cluster.open_to_replicas) if plan.moves else None
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
        self._reuser = NameReuser(host, servers, flush_each=durable) if plan.reuses_names else None
        self._compactor = CompactedTopicWriter(host, servers, flush_each=durable) if plan.compacts else None
        self.transactions = (
            TransactionWorkload(cluster, host, plan.transactions, flush_each=durable)
            if plan.transactions is not None
            else None
        )
        self.rights = RightsWorkload(cluster, host, flushes=durable) if plan.rights else None
        self._larger = [each for each in (self.transactions, self.rights) if each is not None]
        programs = [program for each in self._larger for program in each.programs]
        self.readers += self.transactions.readers if self.transactions is not None else []
        self._rogue = RogueClient(host, cluster) if plan.rogue else None
        self._random_admin = RandomAdministrator(host, cluster) if plan.administers else None
        operators = (self.churn, self._mover, self._trimmer, self._reuser, self._rogue, self._random_admin)
        changers = (*self._writers, *operators, self._compactor, *programs)
        self.changers: list[_Client] = [each for each in changers if each is not None]
        """Clients that write or change metadata: they must end before the cluster is checked."""

    @property
    def all(self) -> list[_Client]:
        return [*self.changers, *self.readers, *self.members]

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
                await admin.create_topic(NewTopic(topic.name, topic.partitions, 3, topic.configs))
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

    def producers(self) -> int:
        """Return how many producers there have been."""
        programs = [one for one in (self._reuser, self._compactor, self.transactions) if one is not None]
        return sum(each.incarnations for each in self._writers) + sum(each.producers for each in programs)

    def busy(self) -> list[str]:
        """Return the names of the clients that still write or change metadata."""
        return _alive(self.changers)

    def reading(self) -> list[str]:
        """Return the names of the clients that still read."""
        return _alive([*self.readers, *self.members])

    def failed(self) -> Iterable[str]:
        for client in self.all:
            process = client.process
            if process is not None and process.exited.done() and process.exited.result() is not None:
                yield f"{client.name} failed: {process.exited.result()!r}"

    def not_converged(self) -> list[str]:
        return self.transactions.not_converged() if self.transactions is not None else []

    def group_not_settled(self) -> list[str]:
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
        return compaction.compare_cluster(self._cluster, PARTITION, self._compactor.judge)

    def judge_changers(self, verdict: Verdict) -> None:
        """Add what the clients that write or change metadata found."""
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
        for workload in self._larger:
            verdict.find(Exit.WRONG_RESULT, workload.judge())
            verdict.error_counts += workload.error_counts

    def judge_readers(self, verdict: Verdict) -> None:
        """Add what readers and members found, and the numbers of all."""
        for reader in self.readers:
            verdict.find(Exit.WRONG_RESULT, reader.violations[:10])
            verdict.read += reader.read
            verdict.error_counts += reader.error_counts
        for writer in self._writers:
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
        done["topics created, altered, deleted"] = self.churn.done if self.churn is not None else 0
        done["reassignments"] = self._mover.asked if self._mover is not None else 0
        if plan.group is not None:
            done[f"group generations, {plan.group.protocol}"] = self._ledger.generations
        done["topics of a reused name"] = self._reuser.incarnations if self._reuser is not None else 0
        done["deletions of records requested"] = self._trimmer.trimmed if self._trimmer is not None else 0
        done["writes to a compacted topic"] = self._compactor.written if self._compactor is not None else 0
        tried = self._rogue.tried.total() if self._rogue is not None else 0
        done["requests of a client in the name of a broker"] = tried
        if self._random_admin is not None:
            done["responses to random requests"] = self._random_admin.answers.total()
        for workload in self._larger:
            done.update(workload.done())
        return done


def _partitions_of(topic: TopicPlan) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(topic.partitions)]


def _alive(clients: Sequence[_Client]) -> list[str]:
    return [client.name for client in clients if client.process is not None and client.process.alive]
