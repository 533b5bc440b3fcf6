"""The share partition against a model that does everything record by record: under any order of fetches,
acknowledgements, writes that fail, ends of locks, departures of members, moves of the log start, new leaders.

What holds after each step: each offset from start to end is in one state, that of the model; records become
final for one of the four reasons; the start offset never decreases; the delivery count is at most the limit;
a write says what has changed; and what is written is what a new leader needs.
"""

from __future__ import annotations

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from share_partition_model import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    Coordinator,
    Model,
    Record,
)

from nilometer.share.partition_events import (
    AcknowledgementBatch,
    AcquireMode,
    Dead,
    Effect,
    Fetched,
    OffsetRange,
    ShareSettings,
    Write,
)
from nilometer.share.share_partition import SharePartition
from nilometer.share.state_records import DeliveryState, SharePartitionState
from nilometer.wire.errors import NONE
from support.properties import examples

LOCK_MS = 100
MAX_LOCKS = 16
MEMBERS = st.sampled_from("abc")
TYPES = st.sampled_from((0, 1, 1, 2, 2, 3, 4, 4))


class SharePartitionMachine(RuleBasedStateMachine):
    @initialize(
        start=st.integers(0, 3),
        limit=st.integers(1, 5),
        sizes=st.lists(st.integers(1, 8), min_size=3),
        letters=st.booleans(),
    )
    def begin(self, start: int, limit: int, sizes: list[int], letters: bool) -> None:
        self.settings = ShareSettings(
            record_lock_ms=LOCK_MS,
            delivery_count_limit=limit,
            max_record_locks=MAX_LOCKS,
            dead_letters=letters,
        )
        self.now_ms = 0
        self.log: list[tuple[int, int, bool]] = []
        """Batches: their first and last offsets, and whether they can be read."""
        self.log_end = 0
        self.read: Fetched | None = None
        self.coordinator = Coordinator(start)
        for size in sizes:
            self.append(0, size, readable=True)
        self.lead()

    def lead(self) -> None:
        kept = self.coordinator
        self.partition = SharePartition(
            self.settings, SharePartitionState(0, 0, kept.start, -1, kept.batches)
        )
        end = max(kept.records, default=kept.start - 1) + 1
        records = {offset: Record(*kept.records.get(offset, ())) for offset in range(kept.start, end)}
        self.model = Model(
            self.settings.delivery_count_limit,
            MAX_LOCKS,
            kept.start,
            records,
            self.settings.dead_letters,
        )
        self.letters: list[Dead] = []
        """To be written."""
        self.note_letters(self.partition.on_loaded())
        left = {at for dead in self.letters for at in range(dead.first_offset, dead.last_offset + 1)}
        assert left == {at for at, one in self.model.records.items() if one.state is ARCHIVING}
        self.start_seen = 0
        self.sent: list[Write] = []
        self.has_lost_a_write = False

    # --- the log

    def append(self, gap: int, size: int, readable: bool) -> None:
        first = self.log_end + gap
        self.log.append((first, first + size - 1, readable))
        self.log_end = first + size

    @rule(which=st.integers(0, 9), number=st.integers(0, 9), size=st.integers(1, 8))
    def disturb(self, which: int, number: int, size: int) -> None:
        """One rule, so that it is drawn less often."""
        if which < 2:
            self.move_the_leader(number)
        elif which < 4:
            self.move_log_start(number)
        elif which < 5:
            self.read_ahead(size)
        elif which < 7 and self.log[:-1]:
            del self.log[number % (len(self.log) - 1)]  # compacted
        else:
            self.append(number * (number % 2), size, readable=number > 3)

    def move_log_start(self, up: int) -> None:
        offset = min(self.model.start + up, self.log_end)
        self.log = [batch for batch in self.log if batch[1] >= offset]
        self.partition.on_log_start_moved(offset)
        self.model.move_log_start(offset)

    # --- members

    def read_ahead(self, batches: int) -> None:
        """Other events come between it and the acquisition."""
        offset = self.partition.next_fetch_offset()
        if offset >= self.log_end:
            self.append(0, batches, readable=True)
        found = [batch for batch in self.log if batch[1] >= offset][:batches]
        self.read = Fetched(
            offset,
            [OffsetRange(first, last) for first, last, _ in found],
            [OffsetRange(first, last) for first, last, readable in found if not readable],
        )

    @rule(
        member=MEMBERS,
        batches=st.integers(1, 4),
        limit=st.integers(0, 12),
        size=st.sampled_from((1, 3, 100)),
        mode=st.sampled_from(AcquireMode),
    )
    def fetch(self, member: str, batches: int, limit: int, size: int, mode: AcquireMode) -> None:
        if self.read is None:
            self.read_ahead(batches)
        fetched, self.read = self.read, None
        assert fetched is not None
        was_next = self.partition.next_fetch_offset()
        acquired, effects = self.partition.acquire(
            member, fetched, max_records=limit, batch_size=size, mode=mode, now_ms=self.now_ms
        )
        if fetched.batches:
            self.model.acquire(
                member,
                fetched,
                acquired,
                self.seen(),
                self.partition.end_offset,
                limit,
                mode,
                self.now_ms + LOCK_MS,
            )
            is_inside = was_next < self.model.end or self.model.end - self.model.start < MAX_LOCKS
            if limit and fetched.fetch_offset == was_next and is_inside:
                assert self.partition.next_fetch_offset() != was_next or was_next < self.model.start
        else:
            assert not acquired
        self.send(effects)

    @rule(data=st.data(), others=MEMBERS, wrong=st.integers(0, 9))
    def acknowledge(self, data: st.DataObject, others: str, wrong: int) -> None:
        if not self.model.count(ACQUIRED):
            self.fetch(others, 3, 8, 3, AcquireMode.BATCH_OPTIMIZED)
        holders = [member for member in "abc" if self.model.held(member)]
        member = data.draw(st.sampled_from(holders)) if holders and wrong else others
        held = self.model.held(member)
        if wrong == 0 or not held:
            first = data.draw(st.integers(0, self.model.end))
        else:
            first = data.draw(st.sampled_from(held))
        batches: list[AcknowledgementBatch] = []
        for _ in range(data.draw(st.integers(1, 3))):
            last = first + data.draw(st.integers(0, 5))
            if wrong > 1:
                while last > first and not set(range(first, last + 1)) <= set(held):
                    last -= 1
            one_for_all = data.draw(st.booleans())
            count = 1 if one_for_all else last - first + 1
            types = data.draw(st.lists(TYPES, min_size=count, max_size=count))
            batches.append(AcknowledgementBatch(first, last, types))
            later = [offset for offset in held if offset > last]
            if not later:
                break
            first = later[0]
        expected = self.model.refusal(member, batches)
        error, effects = self.partition.acknowledge(member, batches, self.now_ms)
        assert error is expected, (error, expected)
        if error is NONE:
            change = self.write_of(effects).change if effects else 0
            self.model.acknowledge(batches, change, self.now_ms + LOCK_MS)
        self.send(effects)

    @rule(member=MEMBERS, ms=st.sampled_from((0, 0, 1, LOCK_MS // 2, LOCK_MS // 2, LOCK_MS)))
    def leave_or_wait(self, member: str, ms: int) -> None:
        if ms:
            self.wait(ms)
            return
        effects = self.partition.release_member(member)
        if effects:
            self.model.leave(member, self.write_of(effects).change)
        else:
            assert not self.model.held(member)
        self.send(effects)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        deadline_ms = self.partition.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            effects = self.partition.on_time(self.now_ms)
            self.model.pass_time(self.now_ms, self.write_of(effects).change if effects else 0)
            self.send(effects)

    # --- the share coordinator

    def write_of(self, effects: tuple[Effect, ...]) -> Write:
        (write,) = effects
        assert isinstance(write, Write)
        return write

    def send(self, effects: tuple[Effect, ...]) -> None:
        if not effects:
            return
        write = self.write_of(effects)
        assert write.start_offset == self.model.start
        assert write.delivery_complete_count == self.model.complete
        at = write.start_offset
        for batch in write.batches:
            assert at <= batch.first_offset <= batch.last_offset < self.model.end
            at = batch.last_offset + 1
        self.sent.append(write)

    @precondition(lambda self: self.sent)
    @rule(ok=st.sampled_from((True, True, True, False)))
    def answer(self, ok: bool) -> None:
        write = self.sent.pop(0)
        if ok:
            self.coordinator.write(write)
        else:
            self.has_lost_a_write = True
        dead: list[int] = []
        effects = self.partition.on_written(write.change, ok)
        self.note_letters(effects)
        for effect in effects:
            assert isinstance(effect, Dead)
            dead += range(effect.first_offset, effect.last_offset + 1)
        assert len(dead) == len(set(dead))
        assert set(dead) == self.model.written(write.change, ok)

    def note_letters(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Dead):
                assert effect.has_letters is self.settings.dead_letters
                self.letters += [effect] if effect.has_letters else []

    @precondition(lambda self: self.letters)
    @rule(number=st.integers(0, 9))
    def write_letters(self, number: int) -> None:
        """Those of the first records of a range may be written before the others."""
        dead = self.letters.pop(0)
        middle = min(dead.first_offset + number, dead.last_offset)
        rest = [OffsetRange(one.first_offset, one.last_offset) for one in self.letters]
        self.letters.clear()
        for ranges in (
            [OffsetRange(dead.first_offset, middle)],
            [OffsetRange(middle + 1, dead.last_offset), *rest],
        ):
            effects = self.partition.on_buried(ranges)
            for first, last in ranges:
                self.model.bury(first, last)
            self.send(effects)

    def move_the_leader(self, arrived: int) -> None:
        for write in self.sent[:arrived]:
            self.coordinator.write(write)
        self.read = None
        self.lead()

    # --- what holds after each step

    def seen(self) -> dict[int, DeliveryState]:
        return {
            offset: span.state
            for span in self.partition.view(10_000).spans
            for offset in range(span.first_offset, span.last_offset + 1)
        }

    @invariant()
    def each_offset_is_in_the_state_of_the_model(self) -> None:
        if not hasattr(self, "partition"):
            return
        view = self.partition.view(10_000)
        assert (view.start_offset, view.end_offset) == (self.model.start, self.model.end)
        assert view.start_offset >= self.start_seen
        self.start_seen = view.start_offset
        at = view.start_offset
        for span in view.spans:
            assert span.first_offset == at
            for offset in range(at, span.last_offset + 1):
                one = self.model.records[offset]
                assert (span.state, span.member_id) == (one.state, one.member), offset
                assert offset in self.model.unreadable or span.delivery_count == one.count, offset
                if one.member is not None:
                    assert span.lock_ends_ms == one.lock_ends_ms, offset
            at = span.last_offset + 1
        assert at == view.end_offset
        count = self.model.count
        assert (view.available, view.acquired) == (count(AVAILABLE), count(ACQUIRED))
        assert (view.acknowledged, view.archived) == (count(ACKNOWLEDGED), count(ARCHIVED))
        assert view.archiving == count(ARCHIVING)
        members = [one.member for one in self.model.records.values() if one.member is not None]
        assert dict(view.held) == {member: members.count(member) for member in members}
        assert view.delivery_complete_count == self.model.complete

    @invariant()
    def the_log_is_read_next_where_a_record_is_available(self) -> None:
        if not hasattr(self, "partition"):
            return
        available = [offset for offset, one in self.model.records.items() if one.state is AVAILABLE]
        assert self.partition.next_fetch_offset() == min(available, default=self.model.end)

    @invariant()
    def no_lock_ends_before_the_deadline(self) -> None:
        if not hasattr(self, "partition"):
            return
        ends = [
            one.lock_ends_ms
            for one in self.model.records.values()
            if one.state is ACQUIRED and one.change == 0
        ]
        deadline_ms = self.partition.next_deadline_ms()
        assert not ends or (deadline_ms is not None and deadline_ms <= min(ends))

    @invariant()
    def what_is_written_is_what_a_new_leader_needs(self) -> None:
        if not hasattr(self, "partition") or self.sent or self.has_lost_a_write:
            return
        assert self.coordinator.start <= self.model.start
        for offset, one in self.model.records.items():
            kept = self.coordinator.records.get(offset, (AVAILABLE, 0))
            if one.state is ACQUIRED:
                assert kept == (AVAILABLE, one.count - 1), offset
            elif offset not in self.model.unreadable:
                assert kept == (one.state, one.count), offset


TestSharePartitionAgainstModel = SharePartitionMachine.TestCase
TestSharePartitionAgainstModel.settings = examples(
    100,
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.generate),  # shrinking a run of forty steps takes minutes
    report_multiple_bugs=False,
)
