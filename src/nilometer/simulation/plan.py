"""The plan of one seed: the cluster's layout and settings, its topics, its clients, and its faults.

Swarm testing: every seed has only a few features, and uses these a lot, so that rare combinations occur. The
same seed and options give the same plan.

Invariant: a plan has no faults beyond what the cluster promises to survive. Machines lose power only if each
topic either has ``flush.messages=1``, or has ``min.insync.replicas`` > 1 on different machines, of which one
at a time may lose power.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nilometer.raft.exchange import Timing
from nilometer.simulation.fault_kinds import (
    DERIVED_KINDS,
    ENSEMBLE_KINDS,
    FOLDER_KINDS,
    LOG_DIR_KINDS,
    QUORUM_KINDS,
    WITH_OTHER,
    Fault,
    Kind,
)
from nilometer.simulation.loop import ATOMIC, Pace
from nilometer.simulation.object_store import StoreFaults
from nilometer.simulation.quorum import QuorumPlan
from nilometer.simulation.share_workload import SharePlan
from nilometer.simulation.stores import EnsemblePlan
from nilometer.simulation.workload.consumers import CLASSIC, CONSUMER, GroupPlan
from nilometer.simulation.workload.foreign_producers import ForeignPlan
from nilometer.simulation.workload.membership import MembershipPlan
from nilometer.simulation.workload.producers import WriterPlan
from nilometer.simulation.workload.transactions import V1, V2, TransactionPlan
from nilometer.simulation.zookeeper.server import Settings

# The part of a seed's plan about the coordination store: a folder, a ZooKeeper ensemble or a metadata quorum,
# with its settings and its faults.

SHARE = 1 / 3
"""The share of the seeds that have an ensemble, of those that have no quorum."""
QUORUM_SHARE = 1 / 3
"""The share of the seeds that have a metadata quorum …"""
QUORUM_DRAW = "quorum-998"
"""… drawn with this word, so that the seeds which tests name keep their store."""
LOCAL = "local"
ZOOKEEPER = "zookeeper"
QUORUM = "quorum"
STORES = (LOCAL, ZOOKEEPER, QUORUM)


def draw_quorum(seed: int, store: str | None) -> QuorumPlan | None:
    """Return the quorum's plan; None if the store is another one. ``store`` replaces the random choice."""
    drawn = random.Random(f"{seed}/{QUORUM_DRAW}").random() < QUORUM_SHARE
    chance = random.Random(f"{seed}/quorum-settings")
    short = Timing(election_ms=400, fetch_ms=800, resend_ms=200)
    plan = QuorumPlan(
        timing=chance.choice((Timing(), Timing(), short)),
        session_timeout_ms=chance.choice((9_000, 6_000, 4_000)),
        snapshot_bytes=chance.choice((1 << 24, 20_000, 4_000)),
    )
    return plan if store == QUORUM or (store is None and drawn) else None


def draw_store(chance: random.Random, store: str | None) -> EnsemblePlan | None:
    """Return the ensemble's plan; None if the store is a folder. ``store`` replaces the random choice."""
    drawn = ZOOKEEPER if chance.random() < SHARE else LOCAL
    tick_ms = chance.choice((500, 1000, 2000))
    settings = Settings(
        tick_ms=tick_ms,
        sync_limit=chance.choice((3, 5)),
        min_session_timeout_ms=chance.choice((0, 0, 10_000)),
        max_session_timeout_ms=chance.choice((0, 0, 4_000, 40_000)),
    )
    if settings.max_session_timeout_ms and settings.max_session_timeout_ms < settings.min_session_timeout_ms:
        settings = Settings(tick_ms=tick_ms, sync_limit=settings.sync_limit)
    plan = EnsemblePlan(
        settings=settings,
        chroot=chance.choice(("", "/nilometer", "/clusters/one")),
        session_timeout_ms=chance.choice((6_000, 6_000, 3_000, 18_000)),
    )
    return plan if (store or drawn) == ZOOKEEPER else None


def kinds_for(chance: random.Random, kinds: tuple[Kind, ...], of_store: frozenset[Kind]) -> tuple[Kind, ...]:
    """Return ``kinds`` for a store: with one to three ``of_store``, without those of a folder."""
    own = chance.sample(sorted(of_store, key=lambda kind: kind.value), chance.choice((1, 2, 3)))
    return tuple(kind for kind in Kind if kind in own or (kind in kinds and kind not in FOLDER_KINDS))


NEEDS_SEVERAL_MACHINES = frozenset({Kind.ISOLATE})
CRASH_ALL_SHARE = 0.15
"""The share of seeds that kill all brokers at once, in addition to their other faults."""
INVARIANT_SHARE = 0.1
"""The share of seeds with replicas that break an invariant, in addition to their other faults."""
DERIVED_SHARE = 0.12
"""The share of seeds that damage indexes, and of those that damage checkpoints, in addition."""
LOG_DIRS_SHARE = 0.4
"""The share of seeds that have brokers with several log directories …"""
LOG_DIR_FAULTS_SHARE = 0.6
"""… and the share of these in which single directories fail or are full, in addition."""
FOLDER_MOVES_SHARE = 0.7
"""The share of seeds with several log directories in which replicas move between them."""
FOREIGN_SHARE = 0.25
"""The share of seeds that have producers with the habits of other libraries."""
TRANSACTIONS_SHARE = 0.8
"""The share of seeds that have transactional programs."""
SHARE_GROUPS_SHARE = 0.4
"""The share of seeds that have a share group."""
TIER_SHARE = 0.25
"""The share of seeds that have remote storage."""
NEARLY_EXHAUSTED = 2**15 - 8
"""A producer epoch with a few more above it."""
FAULT_PHASE_SHARE = 0.85
"""The share of a run's time that has faults; the rest is for healing and reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    name: str
    partitions: int
    min_insync_replicas: int
    flush_each: bool
    segment_ms: int
    segment_bytes: int | None = None
    retention_ms: int = -1
    """-1: records are not deleted by age; ``retention_bytes`` -1: nor by size."""
    retention_bytes: int = -1
    local_retention_bytes: int | None = None
    """How many bytes stay on the brokers, of a topic whose records are in remote storage, too."""

    @property
    def is_deleted(self) -> bool:
        return self.retention_ms >= 0 or self.retention_bytes >= 0

    @property
    def configs(self) -> dict[str, str]:
        configs = {
            "min.insync.replicas": str(self.min_insync_replicas),
            "segment.ms": str(self.segment_ms),
        }
        if self.segment_bytes is not None:
            configs["internal.segment.bytes"] = str(self.segment_bytes)
        if self.is_deleted:
            configs["retention.ms"] = str(self.retention_ms)
            configs["retention.bytes"] = str(self.retention_bytes)
        if self.local_retention_bytes is not None:
            configs["remote.storage.enable"] = "true"
            configs["local.retention.bytes"] = str(self.local_retention_bytes)
        return configs | ({"flush.messages": "1"} if self.flush_each else {})


TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "internal.segment.bytes": "600",
}
"""The settings of a topic whose sealed segments are in remote storage only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    minutes: float
    brokers: int
    one_machine: bool
    kinds: tuple[Kind, ...]
    faults: tuple[Fault, ...]
    settings: dict[str, str] = field(default_factory=dict[str, str])
    folders: tuple[int, ...] = (1,)
    """Numbers of log directories, used for the brokers in turn."""
    topics: tuple[TopicPlan, ...] = ()
    writers: tuple[WriterPlan, ...] = ()
    foreign: tuple[ForeignPlan, ...] = ()
    churn: bool = False
    """Whether topics are created and deleted."""
    moves: bool = False
    """Whether partitions move to other brokers."""
    moves_folders: bool = False
    """Whether replicas move between the log directories of their brokers."""
    rogue: bool = False
    """Whether a client sends requests that only brokers may send, which must be rejected."""
    rights: bool = False
    """Whether users log in, whose ACLs change."""
    administers: bool = False
    """Whether random requests of an administrator are sent, valid and not."""
    reuses_names: bool = False
    """Whether a topic is deleted and created again repeatedly within seconds."""
    compacts: bool = False
    """Whether a topic is compacted."""
    transactions: TransactionPlan | None = None
    """The transactional programs, if there are any."""
    share: SharePlan | None = None
    """The share group, if there is one."""
    group: GroupPlan | None = None
    """The consumer group that reads all topics, if there is one."""
    tier: StoreFaults | None = None
    """How the object store of remote storage misbehaves; None if there is no remote storage."""
    membership: MembershipPlan | None = None
    """When brokers join and leave permanently; None: never."""
    clock_rates: tuple[float, ...] = ()
    pace: Pace = ATOMIC
    """The timing of offloaded work on each machine's disk; ``store_pace``: on the coordination folder's."""
    store_pace: Pace = ATOMIC
    cold: float = 0.0
    delay_spike_share: float = 0.0
    ensemble: EnsemblePlan | None = None
    """The ZooKeeper ensemble that is the store; None: the store is another one."""
    quorum: QuorumPlan | None = None
    """The metadata quorum that is the store; without it and an ensemble the store is a folder."""

    @property
    def fault_phase_s(self) -> float:
        return self.minutes * 60 * FAULT_PHASE_SHARE

    @property
    def deletes(self) -> bool:
        """Whether records are deleted, by retention or on a client's request."""
        return any(topic.is_deleted for topic in self.topics)

    @property
    def machines_lost_max(self) -> int:
        """How many machines may have lost unsynced data at the same time."""
        if all(topic.flush_each for topic in self.topics):
            return self.brokers
        return min(topic.min_insync_replicas for topic in self.topics if not topic.flush_each) - 1

    @property
    def machines_emptied_max(self) -> int:
        """How many machines may have lost unsynced data, or a whole log, while one has lost a whole log."""
        return min(topic.min_insync_replicas for topic in self.topics) - 1


def draw(
    seed: int,
    minutes: float,
    kinds: Iterable[Kind] | None = None,
    store: str | None = None,
    *,
    remote_storage: bool | None = None,
) -> Plan:
    """Return the plan of ``seed``. ``kinds`` replaces its random kinds of faults, ``store`` its store, and
    ``remote_storage`` whether it has any.

    Kinds that do not apply to the store are ignored; if ``kinds`` has faults of ZooKeeper, the default store
    is an ensemble, and if it has those of a quorum, a quorum.
    """
    wanted = None if kinds is None else frozenset(kinds)
    if store is None and wanted is not None and wanted & ENSEMBLE_KINDS:
        store = ZOOKEEPER
    elif store is None and wanted is not None and wanted & QUORUM_KINDS:
        store = QUORUM
    chance = random.Random(f"{seed}/plan")
    store_chance = random.Random(f"{seed}/store")
    quorum = draw_quorum(seed, store)
    ensemble = None if quorum is not None else draw_store(store_chance, store)
    one_machine = chance.random() < 0.2
    brokers = chance.choice((3, 3, 3, 4, 5))
    chosen = _kinds(chance, one_machine)
    if wanted is not None:
        useful = QUORUM_KINDS if quorum else ENSEMBLE_KINDS if ensemble else FOLDER_KINDS
        useless = (QUORUM_KINDS | ENSEMBLE_KINDS | FOLDER_KINDS) - useful
        chosen = tuple(kind for kind in Kind if kind in wanted - useless)
    elif quorum is not None:
        chosen = kinds_for(store_chance, chosen, QUORUM_KINDS)
    elif ensemble is not None:
        chosen = kinds_for(store_chance, chosen, ENSEMBLE_KINDS)
    if wanted is None and random.Random(f"{seed}/crash-all").random() < CRASH_ALL_SHARE:
        chosen = (*chosen, Kind.CRASH_ALL)
    if wanted is None:
        if random.Random(f"{seed}/invariant").random() < INVARIANT_SHARE:
            chosen = (*chosen, Kind.INVARIANT)
        derived = random.Random(f"{seed}/derived")
        chosen = (
            *chosen,
            *(kind for kind in Kind if kind in DERIVED_KINDS and derived.random() < DERIVED_SHARE),
        )
    folders = _folders(random.Random(f"{seed}/log-dirs"), bool(LOG_DIR_KINDS & set(chosen)))
    if wanted is None and folders != (1,):
        chosen = (*chosen, *_log_dir_kinds(random.Random(f"{seed}/log-dir-faults")))
    if one_machine:
        chosen = tuple(kind for kind in chosen if kind not in NEEDS_SEVERAL_MACHINES)
    topics = _topics(chance, one_machine, frozenset(chosen))
    topics = _with_retention(random.Random(f"{seed}/retention"), topics)
    tier = _tier(random.Random(f"{seed}/tier"), remote_storage)
    if tier is not None:
        topics = _with_remote_storage(random.Random(f"{seed}/tiered topics"), topics)
    group = _group(random.Random(f"{seed}/group"))
    transactions = draw_transactions(random.Random(f"{seed}/transactions"))
    share = draw_share(random.Random(f"{seed}/share"))
    membership = _membership(random.Random(f"{seed}/membership"), minutes * 60 * FAULT_PHASE_SHARE)
    paces = random.Random(f"{seed}/pace")
    machines = 1 if one_machine else brokers + (membership is not None)
    return Plan(
        seed=seed,
        minutes=minutes,
        brokers=brokers,
        one_machine=one_machine,
        kinds=chosen,
        folders=folders,
        faults=schedule(random.Random(f"{seed}/faults"), chosen, minutes * 60 * FAULT_PHASE_SHARE, machines),
        settings=_settings(chance)
        | (group.settings if group is not None else {})
        | (transactions.settings if transactions is not None else {})
        | (share.settings if share is not None else {})
        | (_tier_settings(random.Random(f"{seed}/tier settings")) if tier is not None else {})
        | _cleaner(random.Random(f"{seed}/cleaner"))
        | _moves(random.Random(f"{seed}/moves")),
        topics=topics,
        writers=_writers(chance, topics),
        foreign=draw_foreign(random.Random(f"{seed}/foreign"), topics),
        churn=chance.random() < 0.5,
        clock_rates=tuple(chance.choice((1.0, chance.uniform(0.98, 1.02))) for _ in range(brokers)),
        pace=_pace(paces, ((0.0, 0.0), (0.05, 2.0), (1.0, 10.0), (5.0, 40.0))),
        store_pace=_pace(paces, ((0.0, 0.0), (0.05, 2.0), (1.0, 8.0))),
        cold=chance.choice((0.0, 0.0, 0.05, 0.5)),
        delay_spike_share=chance.choice((0.0, 0.0, 0.001, 0.02)),
        moves=chance.random() < 0.4,
        moves_folders=folders != (1,) and random.Random(f"{seed}/folder-moves").random() < FOLDER_MOVES_SHARE,
        rogue=random.Random(f"{seed}/rogue").random() < 0.3,
        rights=random.Random(f"{seed}/rights").random() < 0.25,
        administers=random.Random(f"{seed}/administrator").random() < 0.3,
        group=group,
        membership=membership,
        tier=tier,
        ensemble=ensemble,
        quorum=quorum,
        reuses_names=random.Random(f"{seed}/names").random() < 0.35,
        compacts=random.Random(f"{seed}/compaction").random() < 0.35,
        transactions=transactions,
        share=share,
    )


def _kinds(chance: random.Random, one_machine: bool) -> tuple[Kind, ...]:
    count = chance.choice((1, 2, 3, 3, 4, 5, 7))
    spared: frozenset[Kind] | set[Kind] = (
        {Kind.CRASH_ALL}
        | DERIVED_KINDS
        | {Kind.INVARIANT}
        | LOG_DIR_KINDS
        | ENSEMBLE_KINDS
        | QUORUM_KINDS
        | (NEEDS_SEVERAL_MACHINES if one_machine else frozenset())
    )
    pool = [kind for kind in Kind if kind not in spared]
    drawn = chance.sample(pool, count)
    return tuple(kind for kind in Kind if kind in drawn)


def _folders(chance: random.Random, must_be_several: bool) -> tuple[int, ...]:
    if must_be_several:
        return tuple(chance.choice((2, 3)) for _ in range(5))
    if chance.random() >= LOG_DIRS_SHARE:
        return (1,)
    return tuple(chance.choice((1, 2, 2, 3)) for _ in range(5))


def _log_dir_kinds(chance: random.Random) -> tuple[Kind, ...]:
    if chance.random() >= LOG_DIR_FAULTS_SHARE:
        return ()
    return chance.choice(
        ((Kind.LOG_DIR_ERROR,), (Kind.LOG_DIR_FULL,), (Kind.LOG_DIR_ERROR, Kind.LOG_DIR_FULL))
    )


def _topics(chance: random.Random, one_machine: bool, kinds: frozenset[Kind]) -> tuple[TopicPlan, ...]:
    topics: list[TopicPlan] = []
    rots = Kind.DAMAGE in kinds
    for index in range(chance.randint(1, 3)):
        flush_each = chance.random() < 0.3 or (Kind.POWER in kinds and one_machine)
        may_be_alone = not rots and (flush_each or Kind.POWER not in kinds)
        topics.append(
            TopicPlan(
                name=f"topic{index}",
                partitions=chance.randint(1, 4),
                min_insync_replicas=chance.choice((1, 2)) if may_be_alone else 2,
                flush_each=flush_each,
                segment_ms=chance.choice((2_000, 5_000) if rots else (5_000, 30_000, 604_800_000)),
            )
        )
    return tuple(topics)


def _with_retention(chance: random.Random, topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """Give some topics a retention of seconds, in one plan of three."""
    if chance.random() >= 0.35:
        return topics
    return tuple(deleting(chance, topic) if chance.random() < 0.7 else topic for topic in topics)


def deleting(chance: random.Random, topic: TopicPlan) -> TopicPlan:
    """Return ``topic`` with small segments and short retention: by time, by size, or both."""
    by_time, by_size = chance.choice(((True, False), (False, True), (True, True)))
    return replace(
        topic,
        segment_bytes=chance.choice((4_000, 12_000)),
        segment_ms=min(topic.segment_ms, chance.choice((3_000, 10_000))),
        retention_ms=chance.choice((8_000, 20_000)) if by_time else -1,
        retention_bytes=chance.choice((12_000, 40_000)) if by_size else -1,
    )


def _membership(chance: random.Random, fault_phase_s: float) -> MembershipPlan | None:
    if chance.random() >= 0.35:
        return None
    joins_at_s = chance.uniform(0.1, 0.5) * fault_phase_s
    return MembershipPlan(
        joins_at_s=joins_at_s,
        leaves_at_s=chance.uniform(joins_at_s, 0.9 * fault_phase_s) if chance.random() < 0.75 else None,
        newcomer_leaves=chance.random() < 0.2,
    )


def _writers(chance: random.Random, topics: tuple[TopicPlan, ...]) -> tuple[WriterPlan, ...]:
    writers: list[WriterPlan] = []
    for topic in topics:
        for _ in range(chance.randint(1, 2)):
            idempotent = chance.random() < 0.7
            writers.append(
                WriterPlan(
                    topic=topic.name,
                    partitions=topic.partitions,
                    per_second=chance.choice((0.5, 1.5, 3.0)),
                    idempotent=idempotent,
                    acks="all" if idempotent else chance.choice(("all", "all", "1")),
                    codec=chance.choice(("none", "none", "lz4", "zstd", "snappy", "gzip")),
                    value_bytes=chance.choice((10, 100, 600)),
                    retries=idempotent or chance.random() < 0.5,
                )
            )
    return tuple(writers)


def draw_foreign(
    chance: random.Random, topics: tuple[TopicPlan, ...], share: float = FOREIGN_SHARE
) -> tuple[ForeignPlan, ...]:
    """Return the producers with the habits of other libraries; none for most seeds."""
    if chance.random() >= share:
        return ()
    plans: list[ForeignPlan] = []
    for _ in range(chance.randint(1, 3)):
        topic = chance.choice(topics)
        plans.append(
            ForeignPlan(
                topic=topic.name,
                partition=chance.randrange(topic.partitions),
                keeps_connections=chance.random() < 0.5,
                timeout_ms=chance.choice((150, 600, 2_000)),
                per_second=chance.choice((1.0, 2.0, 5.0)),
            )
        )
    return tuple(plans)


def _group(chance: random.Random) -> GroupPlan | None:
    if chance.random() < 0.5:
        return None
    group = GroupPlan(
        members=chance.randint(2, 4),
        assignor=chance.choice(("range", "roundrobin", "sticky", "cooperative-sticky", "cooperative-sticky")),
        static=chance.random() < 0.3,
        auto_commit=chance.random() < 0.5,
        protocol=chance.choice((CLASSIC, CONSUMER)),
    )
    return replace(group, commits_in_background=not group.auto_commit and chance.random() < 0.5)


def draw_transactions(chance: random.Random, share: float = TRANSACTIONS_SHARE) -> TransactionPlan | None:
    if chance.random() >= share:
        return None
    return TransactionPlan(
        version=chance.choice((V1, V2)),
        timeout_ms=chance.choice((3_000, 10_000)),
        gap_s=chance.choice((1.0, 2.5)),
        first_epoch=chance.choice((0, NEARLY_EXHAUSTED)),
    )


def draw_share(chance: random.Random, share: float = SHARE_GROUPS_SHARE) -> SharePlan | None:
    if chance.random() >= share:
        return None
    return SharePlan(
        members=chance.randint(2, 4),
        limit=chance.choice((2, 3, 5)),
        lock_ms=chance.choice((1_500, 4_000)),
        max_record_locks=chance.choice((100, 2_000)),
        per_second=chance.choice((1.0, 4.0)),
    )


def _pace(chance: random.Random, fsyncs_ms: tuple[tuple[float, float], ...]) -> Pace:
    """Return a random pace, from jobs that are atomic except for fsyncs to suspension before every call."""
    share, pause_ms = chance.choice(((0.0, 1.0), (0.02, 20.0), (0.2, 3.0), (1.0, 0.5)))
    return Pace(pause_share=share, pause_ms=(0.01, pause_ms), sync_ms=chance.choice(fsyncs_ms))


def _settings(chance: random.Random) -> dict[str, str]:
    return {
        "auto.create.topics.enable": "false",
        "replica.lag.time.max.ms": chance.choice(("2000", "10000")),
        "replica.high.watermark.checkpoint.interval.ms": chance.choice(("200", "5000")),
        "log.flush.offset.checkpoint.interval.ms": chance.choice(("1000", "60000")),
        "leader.imbalance.check.interval.seconds": chance.choice(("10", "300")),
        "log.retention.check.interval.ms": chance.choice(("1000", "5000")),
        "log.segment.delete.delay.ms": chance.choice(("1000", "60000")),
        "num.replica.fetchers": chance.choice(("1", "1", "2")),
        "max.incremental.fetch.session.cache.slots": chance.choice(("2", "1000")),
    }


def _tier(chance: random.Random, wanted: bool | None) -> StoreFaults | None:
    is_drawn = chance.random() < TIER_SHARE
    if not (is_drawn if wanted is None else wanted):
        return None
    return StoreFaults(
        latency_ms=chance.choice((5.0, 50.0, 500.0)),
        refused=chance.choice((0.0, 0.02, 0.2)),
        unanswered=chance.choice((0.0, 0.02, 0.1)),
        late_ms=chance.choice((0.0, 500.0, 5_000.0)),
        away_s=chance.choice((0.0, 3.0, 8.0)),
        cycle_s=20.0,
    )


def _tier_settings(chance: random.Random) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "nilometer.tier.uri": "file:///virtual",
        "nilometer.tier.grace.ms": chance.choice(("6000", "20000")),
        "nilometer.tier.unknown.topic.grace.ms": "10000",
        "remote.log.manager.task.interval.ms": chance.choice(("500", "3000")),
    }


def _with_remote_storage(chance: random.Random, topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """Let the older records of some topics be in remote storage only.

    Of these, retention deletes by age: the bytes that are kept are not on the disks, where they are counted.
    """
    return tuple(
        replace(
            topic,
            segment_bytes=chance.choice((600, 2_000)),
            local_retention_bytes=chance.choice((0, 1_000, 10_000)),
            retention_ms=max(topic.retention_ms, 8_000) if topic.is_deleted else -1,
            retention_bytes=-1,
        )
        if chance.random() < 0.7
        else topic
        for topic in topics
    )


def _moves(chance: random.Random) -> dict[str, str]:
    """Return how fast replicas are copied to other log directories, so that much happens meanwhile."""
    rate = chance.choice((1_000, 5_000, 30_000, 1_000_000_000))
    return {"replica.alter.log.dirs.io.max.bytes.per.second": str(rate)}


def _cleaner(chance: random.Random) -> dict[str, str]:
    """Return settings of the log cleaner: it runs often, in small slices, so that much happens in between."""
    return {
        "log.cleaner.backoff.ms": chance.choice(("500", "2000")),
        "log.cleaner.io.buffer.size": chance.choice(("1024", "524288")),
        "log.cleaner.threads": chance.choice(("1", "1", "2")),
    }


def schedule(
    chance: random.Random,
    kinds: tuple[Kind, ...],
    until_s: float,
    machines: int,
    *,
    mean_gap_s: float | None = None,
    longest_s: float | None = None,
) -> tuple[Fault, ...]:
    """Return random faults of ``kinds`` that start before ``until_s``, each on one of ``machines``.

    ``mean_gap_s``: mean time between faults; ``longest_s``: maximum duration; both random if None.
    """
    if not kinds:
        return ()
    mean_gap_s = mean_gap_s or chance.choice((2.0, 5.0, 15.0))
    longest_s = longest_s or chance.choice((2.0, 12.0, 45.0))
    faults: list[Fault] = []
    at_s = 2.0
    while True:
        at_s += chance.expovariate(1 / mean_gap_s)
        if at_s >= until_s:
            return _last_until_healed(faults, until_s)
        kind = chance.choice(kinds)
        target, other = chance.sample(range(max(machines, 3) + 1), 2)
        if kind not in WITH_OTHER and target == 0:
            target = other or 1
        if kind in WITH_OTHER and machines == 1:
            target, other = chance.sample((0, 1), 2)
        faults.append(
            Fault(
                number=len(faults),
                at_s=at_s,
                kind=kind,
                target=target,
                other=other,
                duration_s=longest_s * chance.random() ** 2 + 0.01,
                size=chance.random(),
            )
        )


def _last_until_healed(faults: list[Fault], until_s: float) -> tuple[Fault, ...]:
    """Extend the last log directory fault until all others are healed: its consequences are checked then."""
    last = max((fault.number for fault in faults if fault.kind in LOG_DIR_KINDS), default=None)
    return tuple(replace(fault, duration_s=until_s) if fault.number == last else fault for fault in faults)
