"""Waits until everything that an earlier run sent to a topic is readable, or is lost.

A record can be in a leader's log and not yet below its high watermark: a follower lags or has stopped.
Reading up to the high watermark would miss it, and the line would be sent again. So the log end offset of
each leader is queried too, and the high watermark must reach it. A change of leader may truncate the log, so
the target is never above the present leader's log end offset.

A killed process can also leave Produce requests that a broker has received but not yet appended: the broker
was paused, or it processes a connection's requests one after the other. Nothing in the protocol shows when
the last of them is done (a fence would need a record in each partition, or a transaction). So after a run
that was not closed, the ends must be committed in several queries in a row, some time apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.offset_queries import (
    LATEST_TIMESTAMP,
    READ_UNCOMMITTED,
    list_offsets,
    log_end_offsets,
)
from nilometer.wire.errors import ErrorCode, KafkaError

COMMIT_TIMEOUT_MS = 120_000
"""The maximum wait for the high watermarks; a follower that has stopped leaves the ISR long before."""
LOOK_MS = 100
LOOKS_AFTER_CRASH = 5

Ends = dict[TopicPartition, int]


class CommittedEnds:
    """Decides, from queries of log end offsets and high watermarks, whether all is committed. Pure.

    Invariant: ``behind`` is empty after a query only if every record that the previous query (or, if it is
    the first, this one) found in a leader's log is readable, or was truncated.
    """

    def __init__(self, looks_needed: int) -> None:
        self.behind: dict[TopicPartition, tuple[int, int]] = {}
        """High watermark and target offset of each partition that was not committed in the last query."""
        self._targets: Ends = {}
        self._looks_needed = looks_needed
        self._looks = 0

    def on_look(self, log_ends: Ends, high_watermarks: Ends) -> bool:
        """Take one query's results; return whether everything is committed in enough queries in a row.

        ``log_ends`` must have been queried before ``high_watermarks``.
        """
        targets = {one: min(self._targets.get(one, end), end) for one, end in log_ends.items()}
        self.behind = {
            one: (high_watermarks[one], target)
            for one, target in targets.items()
            if high_watermarks[one] < target
        }
        if self.behind:
            self._targets, self._looks = targets, 0
            return False
        self._targets = dict(log_ends)
        self._looks += 1
        return self._looks >= self._looks_needed


async def wait_committed_ends(
    client: Client, partitions: Sequence[TopicPartition], *, after_crash: bool
) -> Ends:
    """Wait until the high watermarks have reached the log end offsets, and return them.

    ``after_crash``: the earlier run was not closed, so several queries must agree. Raises KafkaError if this
    takes too long.
    """
    clock = client.runtime.clock
    deadline_ms = clock.monotonic_ms() + COMMIT_TIMEOUT_MS
    ends = CommittedEnds(LOOKS_AFTER_CRASH if after_crash else 1)
    while True:
        left_ms = max(deadline_ms - clock.monotonic_ms(), 1)
        log_ends = await log_end_offsets(client, partitions, left_ms)
        latest = dict.fromkeys(partitions, LATEST_TIMESTAMP)
        found = await list_offsets(client, latest, READ_UNCOMMITTED, left_ms)
        high_watermarks = {partition: one.offset for partition, one in found.items()}
        if ends.on_look(log_ends, high_watermarks):
            return high_watermarks
        if clock.monotonic_ms() >= deadline_ms:
            raise _not_committed(ends.behind)
        await asyncio.sleep(LOOK_MS / 1000)


def _not_committed(behind: dict[TopicPartition, tuple[int, int]]) -> KafkaError:
    where = ", ".join(
        f"{partition} is committed up to {high_watermark} of {end}"
        for partition, (high_watermark, end) in sorted(behind.items())
    )
    return KafkaError(
        ErrorCode.request_timed_out,
        f"{where} after {COMMIT_TIMEOUT_MS // 1000} s: in-sync replicas are missing; "
        "lines sent before may be among these records, and may be written again",
    )
