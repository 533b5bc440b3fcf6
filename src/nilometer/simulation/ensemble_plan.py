"""The part of a seed's plan about a ZooKeeper ensemble: whether there is one, its settings, its faults."""

from __future__ import annotations

import random

from nilometer.simulation.fault_kinds import ENSEMBLE_KINDS, FOLDER_KINDS, Kind
from nilometer.simulation.stores import EnsemblePlan
from nilometer.simulation.zookeeper.server import Settings

SHARE = 1 / 3
"""The share of the seeds that have an ensemble."""
LOCAL = "local"
ZOOKEEPER = "zookeeper"
STORES = (LOCAL, ZOOKEEPER)


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


def kinds_for(chance: random.Random, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Return ``kinds`` for an ensemble: with one to three faults of ZooKeeper, without those of a folder."""
    own = chance.sample(sorted(ENSEMBLE_KINDS, key=lambda kind: kind.value), chance.choice((1, 2, 3)))
    return tuple(kind for kind in Kind if kind in own or (kind in kinds and kind not in FOLDER_KINDS))
