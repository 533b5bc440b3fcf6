"""A share partition as one page: a dictionary of offsets, which does everything record by record.

Which records a fetch acquires it does not decide; it is told, and checks that they may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nilometer.share.partition_events import AcknowledgementBatch, Acquired, AcquireMode, Fetched, Write
from nilometer.share.state_records import DeliveryState, StateBatch
from nilometer.wire.errors import NONE, ErrorCode

AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
ARCHIVING = DeliveryState.ARCHIVING
FINAL = (ACKNOWLEDGED, ARCHIVED)
RELEASE, REJECT, RENEW = 2, 3, 4
TARGETS = (ARCHIVED, ACKNOWLEDGED, AVAILABLE, ARCHIVED)
"""By the type of acknowledgement; a renewal has none."""


@dataclass
class Record:
    state: DeliveryState = AVAILABLE
    count: int = 0
    member: str | None = None
    lock_ends_ms: int = 0
    change: int = 0
    becomes: DeliveryState = AVAILABLE

    def settle(self, state: DeliveryState) -> None:
        self.state, self.member, self.change = state, None, 0


class Model:
    def __init__(
        self, limit: int, max_locks: int, start: int, records: dict[int, Record], letters: bool = False
    ) -> None:
        """``letters``: what is dead has a dead letter written before it is archived."""
        self.limit = limit
        self.grave = ARCHIVING if letters else ARCHIVED
        self.max_locks = max_locks
        self.start = start
        self.records = records
        """Each offset from the start to the end."""
        self.unreadable: set[int] = set()
        """Archived without a member; when that is written is not said."""
        self.dead: dict[int, set[int]] = {}
        """What each change reports as dead."""
        self.decided: set[int] = set()
        """Changes that take effect though they are not written."""
        self.unwritten: set[int] = set()
        """Of these, those for which the start offset waits."""
        self.pass_final()

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def complete(self) -> int:
        return sum(
            one.state in FINAL or (one.change > 0 and one.becomes in FINAL) for one in self.records.values()
        )

    def count(self, state: DeliveryState) -> int:
        return sum(one.state is state for one in self.records.values())

    def held(self, member: str) -> list[int]:
        return [offset for offset, one in self.records.items() if one.member == member and one.change == 0]

    def pass_final(self) -> None:
        while not self.unwritten and self.start in self.records and self.records[self.start].state in FINAL:
            del self.records[self.start]
            self.start += 1

    def acquire(
        self,
        member: str,
        fetched: Fetched,
        acquired: Sequence[Acquired],
        seen: dict[int, DeliveryState],
        end: int,
        max_records: int,
        mode: AcquireMode,
        lock_ends_ms: int,
    ) -> None:
        """``seen`` is the state of each offset afterwards, ``end`` the end offset."""
        old_end, first = self.end, fetched.batches[0].first_offset
        unreadable = {offset for low, high in fetched.unreadable for offset in range(low, high + 1)}
        given = {offset: one.delivery_count for one in acquired for offset in range(one[0], one[1] + 1)}
        assert sum(last - first + 1 for first, last, _ in acquired) == len(given)
        assert list(given) == sorted(given)
        room = self.max_locks - (old_end - self.start)
        if room > 0:
            max_records = min(max_records, room)
        else:
            assert all(offset < old_end for offset in given), "full"
        if mode is AcquireMode.RECORD_LIMIT:
            assert len(given) <= max_records
        elif given and (last := max(given)) >= old_end:
            of_last = [low for low, high in fetched.batches if low <= last <= high] or [last + 1]
            assert sum(offset < of_last[0] for offset in given) < max_records + (of_last[0] > last)
        if self.limit > 2 and self.limit in given.values():
            assert len(given) == 1, "the last delivery is alone"
        for offset in range(old_end, end):
            self.records[offset] = Record()
        for offset, one in self.records.items():
            if offset in given:
                assert one.state is AVAILABLE, offset
                assert offset not in unreadable
                assert first <= offset <= fetched.batches[-1].last_offset
                one.state, one.member, one.lock_ends_ms = ACQUIRED, member, lock_ends_ms
                one.count += 1
                assert given[offset] == one.count <= self.limit
            elif one.state is AVAILABLE:
                is_gap = fetched.fetch_offset <= offset < first and (acquired or offset >= old_end)
                is_archived = seen.get(offset, ARCHIVED) is ARCHIVED
                if is_archived:
                    assert offset in unreadable or fetched.fetch_offset <= offset < first, offset
                    one.settle(ARCHIVED)
                    self.unreadable.add(offset)
                else:
                    assert not is_gap, offset
                    assert offset < old_end or mode is AcquireMode.RECORD_LIMIT, offset
        self.pass_final()

    def refusal(self, member: str, batches: Iterable[AcknowledgementBatch]) -> ErrorCode:
        for first, last, _ in batches:
            if last < self.start:
                continue
            if not self.records:
                return ErrorCode.invalid_record_state
            if last >= self.end:
                return ErrorCode.invalid_request
            if not set(range(max(first, self.start), last + 1)) <= set(self.held(member)):
                return ErrorCode.invalid_record_state
        return NONE

    def acknowledge(self, batches: Iterable[AcknowledgementBatch], change: int, lock_ends_ms: int) -> None:
        for first, last, types in batches:
            for offset in range(max(first, self.start), last + 1):
                kind = types[offset - first] if len(types) > 1 else types[0]
                if kind == RENEW:
                    self.records[offset].lock_ends_ms = lock_ends_ms
                else:
                    self.begin(offset, kind, change)

    def begin(self, offset: int, kind: int, change: int) -> None:
        one = self.records[offset]
        one.change = change
        is_last = kind == RELEASE and one.count >= self.limit
        is_dead = is_last or kind == REJECT
        one.becomes = self.grave if is_dead else TARGETS[kind]
        if is_dead:
            self.dead.setdefault(change, set()).add(offset)

    def leave(self, member: str, change: int) -> None:
        for offset in self.held(member):
            self.begin(offset, RELEASE, change)

    def written(self, change: int, ok: bool) -> set[int]:
        """Return what is reported as dead."""
        dead = self.dead.pop(change, set())
        self.unwritten.discard(change)
        for one in self.records.values():
            if one.change == change:
                if ok:
                    one.settle(one.becomes)
                one.change = 0
        self.pass_final()
        return dead if ok or change in self.decided else set()

    def pass_time(self, now_ms: int, change: int) -> None:
        self.decided.add(change)
        for offset, one in self.records.items():
            if one.state is ACQUIRED and one.change == 0 and one.lock_ends_ms <= now_ms:
                one.settle(AVAILABLE if one.count < self.limit else self.grave)
                if one.state is self.grave:
                    self.dead.setdefault(change, set()).add(offset)
                    self.unwritten.add(change)

    def bury(self, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            one = self.records.get(offset)
            if one is not None and one.state is ARCHIVING:
                one.settle(ARCHIVED)
        self.pass_final()

    def move_log_start(self, offset: int) -> None:
        if offset > self.start:
            self.records = {at: one for at, one in self.records.items() if at >= offset}
            self.start = offset
            self.pass_final()


class Coordinator:
    """What the share coordinator keeps."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.records: dict[int, tuple[DeliveryState, int]] = {}

    def write(self, write: Write) -> None:
        assert write.start_offset >= self.start, "the start offset that is kept never decreases"
        self.start = write.start_offset
        for batch in write.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                assert self.records.get(offset, (AVAILABLE, 0))[0] not in FINAL, offset
                self.records[offset] = (batch.state, batch.delivery_count)
        self.records = {offset: one for offset, one in self.records.items() if offset >= self.start}

    @property
    def batches(self) -> tuple[StateBatch, ...]:
        return tuple(StateBatch(offset, offset, *one) for offset, one in sorted(self.records.items()))
