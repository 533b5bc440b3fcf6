"""Planting one fault in the running product, and looking for it with the simulation, seed by seed.

A fault is a small patch of the shipped code, of the kind that people write by mistake. It is found when a
seed fails with it that does not fail without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from nilometer.simulation.loop import Pace
from nilometer.simulation.plan import LOCAL, Kind, Plan, draw, schedule
from nilometer.simulation.run import Exit, Verdict, run
from nilometer.simulation.share_workload import SharePlan
from nilometer.simulation.workload.consumers import GroupPlan
from nilometer.simulation.workload.foreign_producers import ForeignPlan
from nilometer.simulation.workload.membership import MembershipPlan
from nilometer.simulation.workload.transactions import TransactionPlan

MEAN_GAP_S = 1.0
LONGEST_S = 4.0
PER_SECOND = 8.0
Patch = pytest.MonkeyPatch
EAGER = tuple(
    ForeignPlan(topic="topic0", partition=0, keeps_connections=keeps, timeout_ms=600, per_second=10.0)
    for keeps in (False, True, False, True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    name: str
    what: str
    plant: Callable[[Patch], None]
    kinds: tuple[Kind, ...]
    """The kinds of injected faults that reveal it."""
    seeds: int
    """Within so many seeds, from 0 on, it must be found."""
    minutes: float = 0.5
    longest_s: float = LONGEST_S
    store: str = LOCAL
    one_machine: bool | None = None
    churn: bool = False
    """Whether topics come and go."""
    group: GroupPlan | None = None
    moves: bool = False
    """Whether partitions move."""
    moves_folders: bool = False
    """Whether replicas move between log directories."""
    rogue: bool = False
    """Whether a client acts as a broker."""
    rights: bool = False
    """Whether users log in, whose ACLs change."""
    reuses_names: bool = False
    """Whether a topic's name is used again and again."""
    compacts: bool = False
    """Whether a topic is compacted."""
    transactions: TransactionPlan | None = None
    """The transactional programs."""
    share: SharePlan | None = None
    """The share group."""
    foreign: tuple[ForeignPlan, ...] = ()
    """The producers with the habits of other libraries."""
    administers: bool = False
    """Whether random requests of an administrator are sent."""
    membership: MembershipPlan | None = None
    """Whether a broker joins, and one is taken out."""
    deletes: dict[str, int] | None = None
    """How the topic deletes its records: fields of its plan."""
    mean_gap_s: float = MEAN_GAP_S
    settings: dict[str, str] = field(default_factory=dict[str, str])
    """Of the brokers, instead of what is drawn."""
    pace: Pace | None = None
    """Of the offloaded work; where given, instead of what is drawn."""
    folders: tuple[int, ...] = (1,)
    """How many log directories the brokers have."""
    tiered: bool = False
    """Whether the topic's older records are in remote storage only."""
    is_replayed: bool = False
    """Whether each start of a broker is recorded, and replayed after the run."""
    flushes: bool | None = None
    """Whether every topic counts only what is flushed; where given, instead of what is drawn."""

    def plan(self, seed: int) -> Plan:
        """What the seed draws, but with many faults and busy clients in a short time."""
        drawn = draw(seed, self.minutes, self.kinds, self.store, remote_storage=self.tiered)
        topics = (replace(drawn.topics[0], retention_ms=-1, retention_bytes=-1),)
        if self.deletes is not None:
            topics = (replace(topics[0], **self.deletes),)
        if self.tiered:
            topics = (replace(topics[0], segment_bytes=600, local_retention_bytes=0),)
        if self.flushes is not None:
            topics = tuple(replace(topic, flush_each=self.flushes) for topic in topics)
        one_machine = drawn.one_machine if self.one_machine is None else self.one_machine
        group = self.group.settings if self.group is not None else {}
        transactions = self.transactions.settings if self.transactions is not None else {}
        share = self.share.settings if self.share is not None else {}
        return replace(
            drawn,
            faults=schedule(
                random.Random(f"{seed}/dense"),
                drawn.kinds,
                drawn.fault_phase_s,
                drawn.brokers + (self.membership is not None),
                mean_gap_s=self.mean_gap_s,
                longest_s=self.longest_s,
            ),
            topics=topics,
            writers=tuple(
                replace(writer, per_second=PER_SECOND)
                for writer in drawn.writers
                if writer.topic == topics[0].name
            ),
            foreign=self.foreign,
            folders=self.folders,
            churn=self.churn,
            moves=self.moves,
            moves_folders=self.moves_folders,
            rogue=self.rogue,
            rights=self.rights,
            reuses_names=self.reuses_names,
            compacts=self.compacts,
            transactions=self.transactions,
            share=self.share,
            administers=self.administers,
            membership=self.membership,
            group=self.group,
            settings={
                **drawn.settings,
                **group,
                **transactions,
                **share,
                "replica.lag.time.max.ms": "2000",
                **self.settings,
            },
            one_machine=one_machine,
            pace=drawn.pace if self.pace is None else self.pace,
        )


@dataclass(frozen=True, slots=True)
class Found:
    seed: int
    verdict: Verdict

    @property
    def checker(self) -> str:
        """What the first finding calls itself."""
        return self.verdict.findings[0].partition(":")[0].partition(" in ")[0]


def play(fault: PlantedFault, seed: int, only: Iterable[int] | None = None) -> Verdict:
    """One run with ``fault`` in the product (of its faults, those numbered in ``only``, if given)."""
    with Patch.context() as patch:
        fault.plant(patch)
        return play_without(fault, seed, only)


def play_without(fault: PlantedFault, seed: int, only: Iterable[int] | None = None) -> Verdict:
    """The same run of the product as it is."""
    return run(fault.plan(seed), only=only, checks_recordings=fault.is_replayed)


def look_for(fault: PlantedFault) -> Found | None:
    """The first of its seeds that fails with ``fault``."""
    for seed in range(fault.seeds):
        verdict = play(fault, seed)
        if verdict.exit is not Exit.CLEAN:
            return Found(seed, verdict)
    return None
