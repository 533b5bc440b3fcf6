"""A share partition with a clock and a share coordinator, and its state as text: for scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.share.partition_events import (
    AcknowledgementBatch,
    AcknowledgeType,
    AcquireMode,
    Dead,
    Effect,
    Fetched,
    OffsetRange,
    ShareSettings,
    Write,
)
from nilometer.share.share_partition import SharePartition
from nilometer.share.state_records import SharePartitionState, StateBatch
from nilometer.wire.errors import NONE, ErrorCode

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP, RENEW = AcknowledgeType.GAP, AcknowledgeType.RENEW
BATCHES, RECORDS = AcquireMode.BATCH_OPTIMIZED, AcquireMode.RECORD_LIMIT

LOCK_MS = 1_000


def ranges(*offsets: int) -> list[OffsetRange]:
    """Return ranges from first and last offsets, one after the other."""
    return [OffsetRange(*pair) for pair in zip(offsets[::2], offsets[1::2], strict=True)]


class Leader:
    """Each write is kept in ``writes``, and written at once, unless ``slow``."""

    def __init__(self, *batches: StateBatch, start: int = 0, **settings: int | bool) -> None:
        limits = {"record_lock_ms": LOCK_MS, "max_record_locks": 100} | settings
        state = SharePartitionState(0, 0, start, -1, batches)
        self.partition = SharePartition(ShareSettings(**limits), state)
        self.now_ms = 0
        self.slow = False
        self.writes: list[Write] = []
        self.dead: list[Dead] = []

    def fetch(
        self,
        *offsets: int,
        member: str = "a",
        at: int | None = None,
        limit: int = 500,
        size: int = 500,
        mode: AcquireMode = BATCHES,
        unreadable: Sequence[int] = (),
    ) -> list[tuple[int, int, int]]:
        """Read the batches with these first and last offsets; return what the member has acquired."""
        acquisition = self.partition.acquire(
            member,
            Fetched(
                self.partition.next_fetch_offset() if at is None else at,
                ranges(*offsets),
                ranges(*unreadable),
            ),
            max_records=limit,
            batch_size=size,
            mode=mode,
            now_ms=self.now_ms,
        )
        self._run(acquisition.effects)
        return [(first, last, count) for first, last, count in acquisition.acquired]

    def acknowledge(self, first: int, last: int, *types: int, member: str = "a") -> ErrorCode:
        return self.acknowledge_all(AcknowledgementBatch(first, last, types), member=member)

    def acknowledge_all(self, *batches: AcknowledgementBatch, member: str = "a") -> ErrorCode:
        before = self.state
        answer = self.partition.acknowledge(member, batches, self.now_ms)
        if answer.error is not NONE:
            assert not answer.effects
            assert self.state == before
        self._run(answer.effects)
        return answer.error

    def bury(self, first: int, last: int) -> None:
        """The dead letters of the range are written."""
        self._run(self.partition.on_buried([OffsetRange(first, last)]))

    def leave(self, member: str = "a") -> None:
        self._run(self.partition.release_member(member))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        deadline_ms = self.partition.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self._run(self.partition.on_time(self.now_ms))

    def written(self, change: int, ok: bool = True) -> None:
        self._run(self.partition.on_written(change, ok))

    @property
    def state(self) -> str:
        """The spans; ``0-4:acquired×1@a`` are held by member ``a``, and were delivered once."""
        return " ".join(
            f"{span.first_offset}-{span.last_offset}:{span.state.name.lower()}×{span.delivery_count}"
            + (f"@{span.member_id}" if span.member_id is not None else "")
            for span in self.partition.view(1_000).spans
        )

    def _run(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Dead):
                self.dead.append(effect)
            else:
                self.writes.append(effect)
                if not self.slow:
                    self.written(effect.change)
