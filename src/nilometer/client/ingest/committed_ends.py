"""Where a topic ends once everything that an earlier run sent is either readable or gone.

A record can be in a leader's log and not yet below its high watermark: a follower is behind, or stopped.
Reading up to the high watermark would miss it, and it would be sent again. So each leader is asked for the
end of its log too, and the high watermark must reach it. A change of leader may cut the log: the
target is never above the present leader's end.

A killed process can also leave requests that its brokers have received and not appended yet: a broker that
was paused, or one that takes up the next request of a connection when the one before is answered. Nothing
in the protocol tells when the last of them is through (a fence per partition needs a record there, or a
transaction). So after a run that was not closed, the ends must be committed in several looks in a row, some
time apart.
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
"""How long the high watermarks may take; a follower that stopped leaves the ISR long before."""
LOOK_MS = 100
LOOKS_AFTER_CRASH = 5

Ends = dict[TopicPartition, int]


class CommittedEnds:
    """Judges looks at a topic. Pure.

    Invariant: ``behind`` is empty after a look only if every record that the look before it (or, for the
    first look, itself) saw in a leader's log is readable, or was cut from the log.
    """

    def __init__(self, looks_needed: int) -> None:
        self.behind: dict[TopicPartition, tuple[int, int]] = {}
        """High watermark and target of the partitions that the last look found not committed."""
        self._targets: Ends = {}
        self._looks_needed = looks_needed
        self._looks = 0

    def on_look(self, log_ends: Ends, high_watermarks: Ends) -> bool:
        """Whether the high watermarks are the ends; ``log_ends`` were asked for before them."""
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
    """The high watermarks, once they cover what was in the logs. Raises KafkaError if that takes too long."""
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
