"""The row of a greedy neighbour: how late a client's records are acknowledged while another sends all it can.

The client alone, then beside one that no quota holds, then beside one that is held at its quota and tries to
send as much. Both send to topics of their own.
"""

from __future__ import annotations

from tests.support.brokers.quota_requests import alter

from nilometer.quotas import CLIENT_ID, PRODUCER_BYTE_RATE

from . import load, plays
from .rows import CLIENT, Column, Load, Numbers, Row
from .systems import System, delete_topic

RATE = 1000
QUOTA_BYTES_PER_S = 1_000_000
HELD, FREE = "held", "free"
"""The client ids of the greedy one."""
GREEDY_SIZE, GREEDY_BATCH = 1000, 100_000
GREEDY_QUEUE_KB = 1_000
"""What it has not sent at the end takes this many ms at its quota."""


def _set_quota(system: System) -> None:
    alter(system.bootstrap, {CLIENT_ID: HELD}, **{PRODUCER_BYTE_RATE: float(QUOTA_BYTES_PER_S)})


def _play(system: System, seconds: float) -> Numbers:
    each_s = seconds / 3
    alone = plays.constant_rate(system, each_s, rate=RATE, size=100)
    beside_free, _ = _beside(system, each_s, FREE)
    beside_held, held_mb = _beside(system, each_s, HELD)
    return {
        **{f"alone_{key}": alone[key] for key in ("p50_ms", "p99_ms")},
        **{f"free_{key}": beside_free[key] for key in ("p50_ms", "p99_ms")},
        **{key: beside_held[key] for key in ("p50_ms", "p99_ms")},
        "held_mb_per_s": held_mb,
        **{key: beside_held[key] for key in load.CLIENT_KEYS if key in beside_held},
    }


def _beside(system: System, seconds: float, client_id: str) -> tuple[Numbers, float]:
    """The numbers of the client beside a greedy one, and the MB/s that this one has sent."""
    topic = plays.fresh_topic(system, "greedy", 1, 1)
    settings = (
        f"client.id={client_id}",
        f"batch.size={GREEDY_BATCH}",
        f"queue.buffering.max.kbytes={GREEDY_QUEUE_KB}",
    )
    greedy = load.start(
        "produce", system.bootstrap, topic, seconds + 1.0, GREEDY_SIZE, *settings
    )  # the client has a warm-up of a second, too
    found = plays.constant_rate(system, seconds, rate=RATE, size=100)
    done = load.finish(greedy)
    delete_topic(system, topic)
    return found, done["records"] * GREEDY_SIZE / done["seconds"] / 1e6


def _column(key: str, title: str) -> Column:
    return Column(key, title, "ms", more_is_better=False, digits=2)


QUOTA_ROW = Row(
    "quota-neighbour",
    f"produce {RATE:,} records/s, linger 0, acks=all, beside a client that sends all it can: "
    f"alone, beside it without a quota, beside it held at {QUOTA_BYTES_PER_S / 1e6:.0f} MB/s",
    (
        _column("alone_p50_ms", "p50 alone"),
        _column("alone_p99_ms", "p99 alone"),
        _column("free_p50_ms", "p50 beside one without a quota"),
        _column("free_p99_ms", "p99 beside one without a quota"),
        _column("p50_ms", "p50 beside one at its quota"),
        _column("p99_ms", "p99 beside one at its quota"),
        Column(
            "held_mb_per_s",
            "what the one at its quota has sent",
            "MB/s",
            more_is_better=False,
            digits=2,
            is_compared=False,
        ),
        *CLIENT,
    ),
    Load(_play, "p50_ms", prepare=_set_quota),
)
