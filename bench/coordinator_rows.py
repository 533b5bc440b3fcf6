"""The row of a group coordinator's load: a million commits, compacted, then a restart.

100 groups commit 1,000 partitions each, ten times; all of it is in one partition of `__consumer_offsets`.
The log is left to the cleaner until nothing more happens to it. The newest segment is never compacted, so the
load has more records than there are offsets.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import cast

from tests.support.wire.wire_peer import ConnectionEnded, WirePeer, make

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from .rows import Column, Numbers, Row
from .systems import OneBroker, System, create_topic, shut_down

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(4 << 20),  # 100 MiB as shipped; the newest is not compacted
    "log.cleaner.backoff.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "1000",
}
TOPIC = "committed"
OFFSETS_TOPIC = "__consumer_offsets"
PARTITIONS = 1_000
GROUPS = 100
COMMITS = 1_000_000
REPETITIONS = 3
COMMIT_VERSION, FETCH_VERSION, FIND_VERSION = 8, 7, 3
NOT_YET = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)
TIMEOUT_S = 120.0
POLL_S = 0.005
SETTLED_S = 6.0
"""A log that has not changed for so long is as compact as it gets."""


def _load(
    system: System, commits: int = COMMITS, groups: int = GROUPS, repetitions: int = REPETITIONS
) -> Numbers:
    system.launch()
    system.wait_ready()
    create_topic(system, TOPIC, PARTITIONS)
    _wait_coordinator(system)
    began = time.monotonic()
    newest = _commit(system, commits // (groups * PARTITIONS), groups)
    committed_s = time.monotonic() - began
    broker = cast(OneBroker, system)
    size = _wait_compacted(broker)
    seconds: list[float] = []
    loading: list[float] = []
    for _ in range(repetitions):
        shut_down(broker, TIMEOUT_S)
        began = time.monotonic()
        broker.launch()
        answered_at, loaded_at = _wait_loaded(system, f"group-{groups - 1}", newest)
        broker.wait_ready()
        seconds.append(loaded_at - began)
        loading.append(loaded_at - answered_at)
    return {"seconds": seconds, "loading_s": loading, "committed_s": committed_s, "log_mb": size / 1e6}


def _wait_coordinator(system: System) -> None:
    """The first look at groups creates their topic."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with WirePeer(system.bootstrap) as peer:
            found = peer.ask(ApiKey.FIND_COORDINATOR, FIND_VERSION, key="group-0", key_type=0)
            if found.error_code is ErrorCode.none and _fetched(peer, "group-0")[0] is ErrorCode.none:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{system.name} has no coordinator of groups")


def _commit(system: System, times: int, groups: int) -> int:
    """All groups commit offsets of all partitions, so many times; the newest offset."""
    key, version = ApiKey.OFFSET_COMMIT, COMMIT_VERSION
    with WirePeer(system.bootstrap, timeout_s=TIMEOUT_S) as peer:
        for offset in range(times):
            parts = tuple(
                make(
                    key,
                    version,
                    "OffsetCommitRequestPartition",
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                )
                for number in range(PARTITIONS)
            )
            topic = make(key, version, "OffsetCommitRequestTopic", name=TOPIC, partitions=parts)
            for group in range(groups):
                fields = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
                answer = peer.ask(key, version, group_id=f"group-{group}", topics=(topic,), **fields)
                errors = {part.error_code for part in answer.topics[0].partitions} - {ErrorCode.none}
                if errors:
                    raise RuntimeError(f"{system.name}: OffsetCommit: {errors}")
    return times - 1


def _wait_compacted(system: OneBroker) -> int:
    """Until the log of the groups has been compacted and does not change; its size in bytes."""
    folder = system.log_dir / f"{OFFSETS_TOPIC}-0"
    checkpoint = system.log_dir / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + TIMEOUT_S
    seen, since = _state(folder, checkpoint), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = _state(folder, checkpoint)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > SETTLED_S and OFFSETS_TOPIC in seen[1]:
            return sum(seen[0].values())
    raise RuntimeError(f"{system.name}: {OFFSETS_TOPIC} is not compacted after {TIMEOUT_S:.0f} s")


def _state(folder: Path, checkpoint: Path) -> tuple[dict[str, int], str]:
    sizes: dict[str, int] = {}
    for path in folder.glob("*.log"):
        try:
            sizes[path.name] = path.stat().st_size
        except FileNotFoundError:
            continue  # replaced by a compacted one meanwhile
    return sizes, checkpoint.read_text() if checkpoint.exists() else ""


def _wait_loaded(system: System, group: str, newest: int) -> tuple[float, float]:
    """When the broker answered at all, and when its coordinator knew all offsets of the group."""
    deadline = time.monotonic() + TIMEOUT_S
    answered_at = 0.0
    while time.monotonic() < deadline:
        try:
            with WirePeer(system.bootstrap) as peer:
                while True:
                    error, offsets = _fetched(peer, group)
                    answered_at = answered_at or time.monotonic()
                    if error is ErrorCode.none:
                        if offsets != [newest] * PARTITIONS:
                            raise RuntimeError(f"{system.name} has lost offsets of {group}")
                        return answered_at, time.monotonic()
                    if error not in NOT_YET:
                        raise RuntimeError(f"{system.name}: OffsetFetch: {error.name}")
                    time.sleep(POLL_S)
        except (OSError, ConnectionEnded):
            time.sleep(POLL_S)  # not up yet
    raise RuntimeError(f"{system.name}: the coordinator was not loaded after {TIMEOUT_S:.0f} s")


def _fetched(peer: WirePeer, group: str) -> tuple[ErrorCode, list[int]]:
    answer = peer.ask(ApiKey.OFFSET_FETCH, FETCH_VERSION, group_id=group, topics=None, require_stable=False)
    return answer.error_code, [part.committed_offset for topic in answer.topics for part in topic.partitions]


COORDINATOR_ROWS: tuple[Row, ...] = (
    Row(
        "coordinator-load",
        f"start with {COMMITS:,} commits of {GROUPS * PARTITIONS:,} offsets, compacted",
        (
            Column("seconds", "until their coordinator answers", "s", more_is_better=False, digits=2),
            Column("loading_s", "of it from the broker's first answer", "s", more_is_better=False, digits=2),
        ),
        measure=_load,
        once=True,
        settings=SETTINGS,
        quick=partial(_load, commits=200_000, groups=10, repetitions=1),
    ),
)
