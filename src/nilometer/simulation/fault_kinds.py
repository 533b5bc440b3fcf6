"""The kinds of faults, and one fault of a plan."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, get_args


class Kind(enum.Enum):
    """The kinds of faults, with their names on the command line."""

    CRASH = "crash"
    STOP = "stop"
    POWER = "power"
    PAUSE = "pause"
    CUT = "cut"
    CUT_ONE_WAY = "cut-one-way"
    ISOLATE = "isolate"
    SLOW = "slow"
    RESET = "reset"
    STALL = "stall"
    DISK_ERROR = "disk-error"
    DISK_FULL = "disk-full"
    CLOCK = "clock"
    STORE = "store"
    STORE_STALL = "store-stall"
    CLIENT_CRASH = "client-crash"
    LOSS = "loss"
    DAMAGE = "damage"
    SESSION = "session"
    SIGNAL = "signal"
    STORE_UNSURE = "store-unsure"
    CRASH_ALL = "crash-all"
    LOG_DIR_ERROR = "log-dir-error"
    LOG_DIR_FULL = "log-dir-full"
    INDEX_DAMAGE = "index-damage"
    CHECKPOINT_DAMAGE = "checkpoint-damage"
    INVARIANT = "invariant"
    ZOOKEEPER_CRASH = "zookeeper-crash"
    ZOOKEEPER_PAUSE = "zookeeper-pause"
    ZOOKEEPER_CUT = "zookeeper-cut"
    ZOOKEEPER_CUT_CLIENT = "zookeeper-cut-client"
    ZOOKEEPER_LAG = "zookeeper-lag"
    QUORUM_CRASH = "quorum-crash"
    QUORUM_PAUSE = "quorum-pause"
    QUORUM_CUT = "quorum-cut"
    QUORUM_WIPE = "quorum-wipe"


EnsembleKind = Literal[
    Kind.ZOOKEEPER_CRASH,
    Kind.ZOOKEEPER_PAUSE,
    Kind.ZOOKEEPER_CUT,
    Kind.ZOOKEEPER_CUT_CLIENT,
    Kind.ZOOKEEPER_LAG,
]
ENSEMBLE_KINDS: frozenset[Kind] = frozenset(get_args(EnsembleKind))
"""Faults of a ZooKeeper ensemble; not used if the store is a folder."""
QUORUM_KINDS = frozenset({Kind.QUORUM_CRASH, Kind.QUORUM_PAUSE, Kind.QUORUM_CUT, Kind.QUORUM_WIPE})
"""Faults of the leader of a metadata quorum, or of a voter; not used with another store."""
FOLDER_KINDS = frozenset({Kind.STORE, Kind.STORE_STALL, Kind.SIGNAL, Kind.STORE_UNSURE})
"""Faults of a store that is a folder."""
LOG_DIR_KINDS = frozenset({Kind.LOG_DIR_ERROR, Kind.LOG_DIR_FULL})
"""Faults of one log directory of a broker, which affect only some of its replicas."""

DERIVED_KINDS = frozenset({Kind.INDEX_DAMAGE, Kind.CHECKPOINT_DAMAGE})
"""Faults of files that can be rebuilt from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. ``target`` is the id of the affected broker, or 0 for the clients' machine; ``other`` is the
    other end of a link."""

    number: int
    at_s: float
    kind: Kind
    target: int
    other: int
    duration_s: float
    size: float
    """The severity, from 0 to 1, if the kind has degrees; also a random number for other choices."""

    def __str__(self) -> str:
        return (
            f"#{self.number} {self.kind.value} of {self.target}"
            f"{f' towards {self.other}' if self.kind in WITH_OTHER else ''}"
            f" at {self.at_s:.3f} s for {self.duration_s:.3f} s"
        )


WITH_OTHER = frozenset({Kind.CUT, Kind.CUT_ONE_WAY, Kind.SLOW, Kind.RESET})
