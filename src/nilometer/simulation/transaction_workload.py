"""The transactional programs of a run, the readers of their records, and the checks of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from nilometer.replication.leader import LeaderRole
from nilometer.runtime import Runtime
from nilometer.simulation.checkers import transactions
from nilometer.simulation.checkers.history import LongHistory
from nilometer.simulation.checkers.transactions import CoordinatorStates, TransactionLedger
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.workload.compacted_topic import CONFIGS as COMPACTED
from nilometer.simulation.workload.consumers import Reader
from nilometer.simulation.workload.transactions import (
    TransactionalProgram,
    TransactionalWriter,
    TransactionPlan,
    make_client,
)
from nilometer.simulation.workload.transformers import GROUP_TRANSFORMERS as MEMBERS_GROUP
from nilometer.simulation.workload.transformers import (
    TRANSFORMERS,
    GroupTransformer,
    Transformer,
    fetch_committed,
)
from nilometer.simulation.world import Host
from nilometer.transactions.transaction import EPOCH_BUMP_VERSION

LAST_READER = "last committed"
WRITERS = 2
INPUTS = (TopicPartition("tx-inputs", 0), TopicPartition("tx-inputs", 1))
OTHERS = TopicPartition("tx-others", 0)
OUTPUTS = TopicPartition("tx-outputs", 0)
TABLE = TopicPartition("tx-table", 0)
GROUP_OUTPUTS = TopicPartition("tx-group-outputs", 0)
GROUP_MEMBERS = 2
PLAIN = (*INPUTS, OTHERS, OUTPUTS, GROUP_OUTPUTS)
REPLICAS = 3
SET_UP_MS = 120_000
FINDINGS_MAX = 20
POLL_MS = 500
TWO_IN_SYNC = {"min.insync.replicas": "2"}
SMALL_SEGMENTS = {"internal.segment.bytes": "4000", **TWO_IN_SYNC}


NAMES = tuple(map(str, PLAIN))


class TransactionWorkload:
    def __init__(
        self,
        cluster: Cluster,
        clients: Host,
        plan: TransactionPlan,
        *,
        flush_each: bool,
        configs: Mapping[str, str],
    ) -> None:
        """``configs``: further settings of the topics that are not compacted."""
        self._configs = configs
        self._cluster = cluster
        self._clients = clients
        self._bumps_epochs = plan.version >= EPOCH_BUMP_VERSION
        self._durable = {"flush.messages": "1"} if flush_each else dict[str, str]()
        self.ledger = TransactionLedger()
        self.history = LongHistory(kept_whole=frozenset({LAST_READER}))
        self.last_stable_offsets = transactions.LastStableOffsets(cluster, self.ledger, PLAIN)
        self.coordinators = CoordinatorStates(cluster)
        servers = cluster.bootstrap_servers
        self.writers = [
            TransactionalWriter(
                f"tx-writer{number}",
                clients,
                servers,
                plan,
                self.ledger,
                partitions=(*INPUTS, OTHERS),
                table=TABLE,
            )
            for number in range(WRITERS)
        ]
        self.transformers = [
            Transformer(
                f"transformer{source.partition}",
                clients,
                servers,
                plan,
                self.ledger,
                source=source,
                target=OUTPUTS,
                is_drained=self._is_drained,
            )
            for source in INPUTS
        ]
        self.members = [
            GroupTransformer(
                f"group-transformer{number}",
                clients,
                servers,
                plan,
                self.ledger,
                topic=INPUTS[0].topic,
                target=GROUP_OUTPUTS,
                is_drained=self._is_drained,
            )
            for number in range(GROUP_MEMBERS)
        ]
        self.programs: list[TransactionalProgram] = [*self.writers, *self.transformers, *self.members]
        self.readers = [self._reader("committed", polls_per_incarnation=40)]
        self._committed: dict[str, dict[str, int]] = {TRANSFORMERS: {}, MEMBERS_GROUP: {}}
        self._table: dict[str, str] = {}
        self._finished_by_another = 0

    def _reader(self, name: str, polls_per_incarnation: int | None = None) -> Reader:
        return Reader(
            name,
            self._clients,
            self._cluster.bootstrap_servers,
            PLAIN,
            self.history,
            polls_per_incarnation=polls_per_incarnation,
            committed=True,
        )

    def _is_drained(self, source: TopicPartition, position: int) -> bool:
        """Whether the writers have ended and ``position`` has reached the log end of ``source``."""
        if any(each.process is not None and each.process.alive for each in self.writers):
            return False
        ends = [
            partition.log.log_end_offset
            for node in self._cluster.nodes.values()
            for partition in node.partitions
            if str(partition) == str(source) and isinstance(partition.replica.role, LeaderRole)
        ]
        return bool(ends) and position >= max(ends)

    # ── the run ─────────────────────────────────────────────────────────────────────────────────
    async def create_topics(self, runtime: Runtime, admin: Admin) -> None:
        """Create the programs' topics and, by a first request, the internal topics. Raises KafkaError."""
        plain = {**SMALL_SEGMENTS, **self._durable, **self._configs}
        counts = Counter(each.topic for each in PLAIN)
        for name, count in counts.items():
            await admin.ensure_topic(NewTopic(name, count, REPLICAS, plain))
        await admin.ensure_topic(NewTopic(TABLE.topic, 1, REPLICAS, COMPACTED | self._durable))
        async with make_client(runtime, self._cluster.bootstrap_servers, "set-up") as client:
            await client.retry(Coordinator(client, TRANSFORMERS).find, SET_UP_MS)
            await client.retry(Coordinator(client, "any", CoordinatorType.TRANSACTION).find, SET_UP_MS)
        # By default one replica may acknowledge an offset alone, and then lose it with its machine.
        for topic, configs in ((GROUP_METADATA_TOPIC, TWO_IN_SYNC), (TRANSACTION_STATE_TOPIC, {})):
            changes = [ConfigChange(name, value) for name, value in {**configs, **self._durable}.items()]
            if changes:
                await admin.incremental_alter_configs(ResourceType.TOPIC, topic, changes)

    def restart_transformers(self) -> None:
        """Start the transformers that have crashed, so that all inputs are transformed."""
        for each in (*self.transformers, *self.members):
            if each.process is None or not each.process.alive:
                each.start()

    def look(self) -> None:
        self.last_stable_offsets.look()
        self.coordinators.look()

    @property
    def producers(self) -> int:
        """The number of the programs' incarnations: about how many producer epochs and ids were used."""
        return sum(each.incarnations for each in self.programs)

    def not_converged(self) -> list[str]:
        """Return the leaders whose last stable offset is below their log end, for a cluster at rest."""
        return [
            f"hanging transaction: {partition} is stable up to {stable} of {end} on {node.name}"
            for node in self._cluster.nodes.values()
            for partition in node.partitions
            if isinstance(partition.replica.role, LeaderRole)
            and (stable := partition.log.last_stable_offset(partition.replica.high_watermark))
            != (end := partition.log.log_end_offset)
        ]

    async def read_at_rest(self, runtime: Runtime) -> None:
        """Read all committed records, offsets and the table; runs as a process's main. Raises KafkaError."""
        last = self._reader(LAST_READER)
        self.readers.append(last)
        await last.read_to_end(runtime)
        async with make_client(runtime, self._cluster.bootstrap_servers, LAST_READER) as client:
            for group_id in self._committed:
                committed = await fetch_committed(client, INPUTS, group_id)
                self._committed[group_id] = {str(each): offset for each, offset in committed.items()}
        self._table = await self._read_table(runtime)

    async def _read_table(self, runtime: Runtime) -> dict[str, str]:
        table: dict[str, str] = {}
        settings = {"bootstrap.servers": self._cluster.bootstrap_servers, "isolation.level": "read_committed"}
        async with Consumer(runtime, settings | {"auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([TABLE])
            end = (await consumer.end_offsets([TABLE]))[TABLE]
            while await consumer.position(TABLE) < end:
                for record in await consumer.poll(timeout_ms=POLL_MS):
                    table[(record.key or b"").decode()] = (record.value or b"").decode()
        return table

    # ── checks ──────────────────────────────────────────────────────────────────────────────────
    def judge_at_rest(self) -> Iterator[str]:
        visible = transactions.Visible.by(self.history, LAST_READER)
        inputs = [str(each) for each in INPUTS]
        yield from transactions.torn(self.ledger, visible, NAMES)
        yield from transactions.dirty_writes(self.ledger, visible)
        for group_id, target in ((TRANSFORMERS, OUTPUTS), (MEMBERS_GROUP, GROUP_OUTPUTS)):
            committed = self._committed[group_id]
            yield from transactions.exactly_once(self.ledger, visible, inputs, str(target), committed)
            yield from transactions.not_consumed(visible, inputs, committed)
        read = transactions.values_read(self.history)
        yield from transactions.compare_table(
            self._table, *transactions.expected_table(self.ledger, str(TABLE), read)
        )
        yield from self.last_stable_offsets.judge()
        yield from self.coordinators.judge_at_rest()
        self._finished_by_another = self.coordinators.finished_by_another()
        for partition in PLAIN:
            batches = transactions.stored_by_leader(self._cluster, partition)
            producers = [transactions.of_batch(batch) for batch in batches]
            yield from transactions.judge_log(str(partition), producers)
            yield from transactions.check_markers(str(partition), batches, bumps=self._bumps_epochs)
            yield from transactions.compare_indexes(self._cluster, partition)

    def judge(self) -> Iterator[str]:
        yield from transactions.judge(self.ledger, self.history, NAMES)
        yield from self.coordinators.violations
        for program in self.programs:
            yield from program.violations[:FINDINGS_MAX]

    @property
    def error_counts(self) -> Counter[str]:
        return sum((each.error_counts for each in self.programs), Counter[str]())

    def done(self) -> Mapping[str, int]:
        counted = Counter[str]()
        for program in self.programs:
            counted.update({f"transactions, {what}": count for what, count in program.done.items()})
        counted["transactions, finished by another coordinator"] = self._finished_by_another
        counted["coordinators that took over"] = self.coordinators.takeovers
        counted["transactions begun"] = len(self.ledger.transactions)
        return counted
