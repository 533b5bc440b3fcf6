"""The share partitions that this broker leads: each is loaded when a member first fetches it, and dropped
with the session of its last member, when its partition gets another role, or when its state has been taken
over. So the state of a group without members is only at its share coordinator, where it may be changed.

An acknowledgement is written (:class:`~.persister.SharePersister`) before it is answered. Each share
partition has one timer, which ends its locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from msgspec.structs import replace

from nilometer.broker.replicas.delayed_requests import FetchWaiters
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.record_reading import RecordReading
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.time_lookup import find_by_time
from nilometer.broker.rooms import BROKER_ITSELF
from nilometer.broker.sharing.counts import ShareCounts
from nilometer.broker.sharing.dead_letters import DeadLetters
from nilometer.broker.sharing.persister import AWAY, Done, SharePersister
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.groups.settings import ShareGroupConfig
from nilometer.identifiers import TopicIdPartition, uuid_from_text
from nilometer.runtime import Runtime
from nilometer.share.partition_events import (
    AcknowledgementBatch,
    Acquired,
    Dead,
    DeadReason,
    Effect,
    OffsetRange,
    ShareSettings,
    Write,
)
from nilometer.share.sessions import MemberKey, ShareSession
from nilometer.share.share_partition import SharePartition
from nilometer.share.state_records import NO_START_OFFSET, SharePartitionKey
from nilometer.wire.errors import NONE, ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.sharing")

SHARE_PARTITIONS_MAX = 20_000
"""So many are kept on a broker; a further one is not loaded."""
RANGES_MAX = 200_000
"""So many ranges of alike records the share partitions have together before few more records are locked. One
takes some 300 bytes; as long as members acknowledge in order, a share partition has a few."""
RELEASED_AT_ONCE = 256
"""So many share partitions of a lost connection, and ranges of theirs, are released at once, more slice by
slice."""
_TAKEN_OVER = (ErrorCode.fenced_leader_epoch, ErrorCode.fenced_state_epoch)
_TOLD = (
    NONE,
    ErrorCode.group_id_not_found,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_leader_or_follower,
)
"""The errors that members get as they are; UNKNOWN_SERVER_ERROR stands for others."""


def share_settings(config: ShareGroupConfig) -> ShareSettings:
    return ShareSettings(
        record_lock_ms=config.record_lock_duration_ms,
        delivery_count_limit=config.delivery_count_limit,
        max_record_locks=config.partition_max_record_locks,
        renew_enabled=config.renew_acknowledge_enable,
        dead_letters=bool(config.dead_letter_topic),
    )


class LedSharePartition:
    """A share partition of a partition that this broker leads, from its loading until it is dropped.

    Fetches wait on it for records that become available again.
    """

    __slots__ = (
        "_acknowledging",
        "_burying",
        "_has_resumed",
        "_host",
        "_ranges",
        "_timer",
        "_writes",
        "core",
        "epochs",
        "fetch_waiters",
        "is_dropped",
        "key",
        "loading",
        "members",
        "partition",
    )

    def __init__(self, host: SharePartitions, key: SharePartitionKey, partition: Partition) -> None:
        self._host = host
        self.key = key
        self.partition = partition
        self.epochs: tuple[int, int] = (-1, partition.leader_epoch)
        """Of the state, and of the leader."""
        self.core: SharePartition | None = None
        """None while it is being loaded."""
        self.loading: asyncio.Future[KafkaError | None] | None = None
        """Ends with the reason if it could not be loaded."""
        self.is_dropped = False
        self.fetch_waiters = FetchWaiters()
        self._acknowledging: dict[int, asyncio.Future[ErrorCode]] = {}
        """By change, the acknowledgements that wait until it is written."""
        self._timer: asyncio.TimerHandle | None = None
        self._writes = 0
        """How many are under way."""
        self._ranges = 0
        """How many ranges of its core are counted."""
        self._burying = 0
        """How many offsets are archiving while their dead letters are written."""
        self._has_resumed = False
        self.members: dict[str, None] = {}
        """Whose sessions have fetched it."""

    def __str__(self) -> str:
        return f"{self.partition} of share group {self.key.group_id}"

    @property
    def lag(self) -> int:
        """How many records up to the high watermark are neither acknowledged nor archived; 0 if it is not
        loaded."""
        core = self.core
        if core is None:
            return 0
        return max(0, self.partition.replica.high_watermark - core.start_offset - core.complete)

    # --- what members do

    async def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgementBatch], work: LongWork
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Return the error of an acknowledgement, or its future if it is written first."""
        core = self.core
        if core is None or self.is_dropped:
            return ErrorCode.not_leader_or_follower
        self.end_locks()
        error, effects = await work.go_through(
            core.acknowledge_in_steps(member_id, batches, self._host.now_ms())
        )
        if self.is_dropped:
            return ErrorCode.not_leader_or_follower
        if error is not NONE:
            self._schedule()
            self._note_ranges()
            return error
        self._host.counts.note_acknowledged(batches)
        answer: ErrorCode | asyncio.Future[ErrorCode] = NONE
        for effect in effects:
            if isinstance(effect, Write):
                answer = asyncio.get_running_loop().create_future()
                self._acknowledging[effect.change] = answer
        self.carry_out(effects)
        return answer

    def release_member(self, member_id: str) -> None:
        """The member's session has ended."""
        self.members.pop(member_id, None)
        if self.core is not None and not self.is_dropped:
            self.carry_out(self.core.release_member(member_id))
            self.drop_if_unused()

    def note_acquired(self, acquired: Sequence[Acquired]) -> None:
        self._host.counts.note_acquired(self.key.group_id, acquired)

    def leave(self, member_id: str) -> None:
        """The member's session has the partition no more; what the member holds stays locked."""
        self.members.pop(member_id, None)
        self.drop_if_unused()

    def drop_if_unused(self) -> None:
        if self.members or self._writes or self._burying or self.is_dropped:
            return
        if self.core is None or self.core.next_deadline_ms() is None:
            self._host.drop(self)

    def use(self, core: SharePartition) -> None:
        """It is loaded."""
        self.core = core
        core.on_log_start_moved(self.partition.log.log_start_offset)
        self._note_ranges()

    def resume(self) -> None:
        """Once it is loaded, do what an earlier leader has left to do."""
        if not self._has_resumed and self.core is not None:
            self._has_resumed = True
            self.carry_out(self.core.on_loaded())

    def on_buried(self, ranges: Sequence[OffsetRange]) -> None:
        """The dead letters of these ranges are written, or cannot be."""
        self._burying -= sum(last_offset - first_offset + 1 for first_offset, last_offset in ranges)
        if self.core is not None and not self.is_dropped:
            self.carry_out(self.core.on_buried(ranges))
            self.drop_if_unused()

    def carry_out(self, effects: Iterable[Effect], *, has_acquired: bool = False) -> None:
        """Carry out what an event of the core has caused, and wake up who waits for what it has released.

        ``has_acquired``: the event was an acquisition, which releases nothing.
        """
        dead: list[Dead] = []
        for effect in effects:
            if isinstance(effect, Dead):
                dead.append(effect)
            else:
                self._writes += 1
                self._host.persister.write(self.key, self.epochs, effect, self._on_written(effect.change))
        if dead:
            self._bury(dead)
        core = self.core
        if core is None or self.is_dropped:
            return
        if not has_acquired and core.can_acquire():
            self.wake_up()
        self._schedule()
        self._note_ranges()

    def _note_ranges(self) -> None:
        """Have counted how many ranges it has now."""
        before, self._ranges = self._ranges, 0 if self.core is None or self.is_dropped else self.core.ranges
        if self._ranges != before:
            self._host.note_ranges(self._ranges - before)

    @property
    def droppable_ranges(self) -> int:
        """How many ranges are forgotten if it is dropped; 0 while something is written, which a state that is
        read again could lack."""
        return 0 if self._writes or self._burying else self._ranges

    def _bury(self, dead: Sequence[Dead]) -> None:
        """Count what no member accepted, and have its dead letters written."""
        records: Counter[DeadReason] = Counter()
        for one in dead:
            records[one.reason] += one.records
        for counts in self._host.counts.of(self.key.group_id):
            counts.dead.update(records)
        with_letters = [one for one in dead if one.has_letters]
        if with_letters:
            self._burying += sum(one.records for one in with_letters)
            self._host.dead_letters.bury(self, with_letters)

    def end_locks(self) -> None:
        """End the locks whose time is over; the log may begin later now, too."""
        core = self.core
        if core is None or self.is_dropped:
            return
        core.on_log_start_moved(self.partition.log.log_start_offset)
        now_ms = self._host.now_ms()
        deadline_ms = core.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            held = core.acquired
            effects = core.on_time(now_ms)
            for counts in self._host.counts.of(self.key.group_id):
                counts.lock_timeouts += held - core.acquired
            self.carry_out(effects)

    def wake_up(self) -> None:
        for waiter in list(self.fetch_waiters.clients):
            waiter.on_readable(self, 0)

    def drop(self) -> None:
        """Forget the state: who waits gets an error, and the next fetch reads it again where it is led."""
        self.is_dropped = True
        self._note_ranges()
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._acknowledging = self._acknowledging, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(ErrorCode.not_leader_or_follower)
        for waiter in list(self.fetch_waiters.clients):
            waiter.complete(self)

    # --- what is written

    def _on_written(self, change: int) -> Done:
        return lambda error: self._written(change, error)

    def _written(self, change: int, error: ErrorCode) -> Generator[int, None, None]:
        effects: Sequence[Effect] = ()
        if self.core is not None and not self.is_dropped:
            effects = yield from self.core.on_written_in_steps(change, error is NONE)
        self._writes -= 1
        waiting = self._acknowledging.pop(change, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(acknowledgement_error(error))
        if self.is_dropped or self.core is None:
            return
        self.carry_out(effects)
        if error is not NONE:
            logger.info("The state of %s was not written: %s", self, error.name)
            if error not in AWAY:
                self._host.drop(self)
        self.drop_if_unused()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = None if self.core is None else self.core.next_deadline_ms()
        if deadline_ms is not None:
            wait_s = max(0, deadline_ms - self._host.now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._host.in_turn(self._end_locks_now)

    def _end_locks_now(self) -> None:
        if not self.is_dropped:
            self.end_locks()
            self.drop_if_unused()


def acknowledgement_error(error: ErrorCode) -> ErrorCode:
    """Return what a member is told if its acknowledgement was not written, as Kafka does."""
    if error in _TAKEN_OVER:
        return ErrorCode.not_leader_or_follower
    if error in AWAY:
        return ErrorCode.coordinator_not_available
    return error if error in _TOLD else ErrorCode.unknown_server_error


class SharePartitions:
    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        replicas: ReplicaManager,
        reading: RecordReading,
        persister: SharePersister,
        dead_letters: DeadLetters,
        counts: ShareCounts,
        settings_of: Callable[[str], ShareGroupConfig],
        turns: Turns,
    ) -> None:
        """``settings_of`` returns the configuration of a group."""
        self.now_ms = runtime.clock.monotonic_ms
        self._runtime = runtime
        self._tasks = tasks
        self._replicas = replicas
        self._reading = reading
        self.persister = persister
        self.dead_letters = dead_letters
        self.counts = counts
        self._settings_of = settings_of
        self._led: dict[TopicIdPartition, dict[str, LedSharePartition]] = {}
        """By partition, and by group."""
        self._count = 0
        self._ranges = 0
        """Of all of them, about."""
        self._turns = turns
        self._releasing: dict[MemberKey, asyncio.Future[None]] = {}
        """The members whose former sessions still hold records."""
        replicas.add_hosting_listener(self._on_hosted)

    def __iter__(self) -> Iterator[LedSharePartition]:
        """Yield those that are loaded; others may come and go meanwhile."""
        for of_one in list(self._led.values()):
            for led in list(of_one.values()):
                if led.core is not None:
                    yield led

    def settings(self, group_id: str) -> ShareGroupConfig:
        return self._settings_of(group_id)

    def loaded(self, group_id: str, key: TopicIdPartition) -> LedSharePartition | None:
        """Return the share partition if it is loaded."""
        one = self._led.get(key, {}).get(group_id)
        return one if one is not None and one.core is not None else None

    def note_ranges(self, more: int) -> None:
        """Note that there are so many more ranges of alike records, or fewer.

        Members decide how many there are: records that they take one by one, and of which they say different
        things, are ranges of their own. Above ``RANGES_MAX`` few more records are locked; above twice as many
        the share partition that has most is dropped, as if another broker led it now: its records are
        delivered again.
        """
        self._ranges += more
        if more > 0 and self._ranges > 2 * RANGES_MAX:
            largest = max(self, key=lambda one: one.droppable_ranges)
            if ranges := largest.droppable_ranges:
                logger.warning(
                    "The state of %s is forgotten, and its records are delivered again: it has %d of %d "
                    "ranges of records in flight on this broker, of which there may be %d",
                    largest,
                    ranges,
                    self._ranges,
                    2 * RANGES_MAX,
                )
                self.drop(largest)

    def begin(self, group_id: str, key: TopicIdPartition) -> LedSharePartition:
        """Return the share partition; one that was not loaded begins to be. Raises KafkaError."""
        partition = self._replicas.partition_by_raw_id(uuid_from_text(key.topic_id).bytes, key.partition)
        leader = partition.leader
        one = self._led.get(key, {}).get(group_id)
        if one is not None and (one.partition is not partition or one.epochs[1] != leader.leader_epoch):
            self.drop(one)
            one = None
        if one is None:
            if self._count >= SHARE_PARTITIONS_MAX:
                raise KafkaError(
                    ErrorCode.share_session_limit_reached,
                    f"this broker has {SHARE_PARTITIONS_MAX} share partitions already",
                )
            one = LedSharePartition(self, SharePartitionKey(group_id, *key), partition)
            self._led.setdefault(key, {})[group_id] = one
            self._count += 1
            one.loading = self._tasks.spawn(self._load(one), name=f"loading {one}")
        return one

    def of_acknowledgement(self, group_id: str, key: TopicIdPartition) -> LedSharePartition:
        """Return the share partition whose records a member acknowledges. Raises KafkaError, also if it was
        not loaded in the present leader epoch: then no member has records of it."""
        partition = self._replicas.partition_by_raw_id(uuid_from_text(key.topic_id).bytes, key.partition)
        leader_epoch = partition.leader.leader_epoch
        one = self.loaded(group_id, key)
        if one is None or one.partition is not partition or one.epochs[1] != leader_epoch:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "no member has fetched it here")
        return one

    async def get(self, group_id: str, key: TopicIdPartition) -> LedSharePartition:
        """Return the share partition, loaded first if need be. Raises KafkaError."""
        one = self.begin(group_id, key)
        if one.core is None and one.loading is not None:
            refused = await asyncio.shield(one.loading)
            if refused is not None:
                raise KafkaError(refused.code, refused.message)
        if one.core is None or one.is_dropped:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"this broker does not lead {one} any more")
        settings = share_settings(self._settings_of(group_id))
        if one.core.settings != settings:
            one.core.settings = settings
        one.core.is_memory_short = self._ranges > RANGES_MAX
        one.resume()
        return one

    async def release(self, session: ShareSession, work: LongWork) -> None:
        """Release what the member of an ended session holds. Its next session waits until that is done."""
        member = session.member
        await self.wait_released(member)
        released = self._releasing[member] = asyncio.get_running_loop().create_future()
        try:
            for key in session.partitions:
                ranges = self._ranges_of(member, key)
                self._release_one(member, key)
                await work.step(1 + ranges)
        finally:
            del self._releasing[member]
            released.set_result(None)

    async def wait_released(self, member: MemberKey) -> None:
        """Wait until what the member's former session held is released."""
        while (releasing := self._releasing.get(member)) is not None:
            await asyncio.shield(releasing)

    def release_all(self, sessions: Sequence[ShareSession]) -> None:
        """Release what the members of a lost connection hold; soon, if that is much."""
        size = sum(len(session.partitions) for session in sessions)
        if size <= RELEASED_AT_ONCE:
            size += sum(self._ranges_of(one.member, key) for one in sessions for key in one.partitions)
        few = size <= RELEASED_AT_ONCE and not self.persister.is_busy
        if few and not any(session.member in self._releasing for session in sessions):
            for session in sessions:
                for key in session.partitions:
                    self._release_one(session.member, key)
        else:
            for session in sessions:
                work = self.release(session, LongWork(self._turns))
                self._tasks.spawn(work, name="release of share sessions")

    def in_turn(self, work: Callable[[], None]) -> None:
        """Call ``work`` now; in a turn of its own if the states of many share partitions are written."""
        if self.persister.is_busy:
            self._turns.call(work)
        else:
            work()

    def leave(self, member: MemberKey, key: TopicIdPartition) -> None:
        """The member's session has the partition no more."""
        one = self.loaded(member.group_id, key)
        if one is not None:
            one.leave(member.member_id)

    def _ranges_of(self, member: MemberKey, key: TopicIdPartition) -> int:
        """Return how many ranges the share partition has that the member reads."""
        one = self.loaded(member.group_id, key)
        return 0 if one is None or one.core is None else one.core.ranges

    def _release_one(self, member: MemberKey, key: TopicIdPartition) -> None:
        one = self.loaded(member.group_id, key)
        if one is not None:
            one.release_member(member.member_id)

    def drop(self, one: LedSharePartition) -> None:
        key = TopicIdPartition(one.key.topic_id, one.key.partition)
        groups = self._led.get(key, {})
        if groups.get(one.key.group_id) is one:
            del groups[one.key.group_id]
            self._count -= 1
            if not groups:
                del self._led[key]
        if not one.is_dropped:
            one.drop()

    async def _load(self, one: LedSharePartition) -> KafkaError | None:
        try:
            state = await self.persister.read(one.key, one.epochs[1])
            settings = self._settings_of(one.key.group_id)
            if state.start_offset == NO_START_OFFSET:
                state = replace(state, start_offset=await self._initial_offset(one, settings))
            core = await LongWork(self._turns).go_through(
                SharePartition.in_steps(share_settings(settings), state)
            )
            one.partition.leader  # noqa: B018 - raises if it leads no more
        except KafkaError as error:
            self.drop(one)
            return KafkaError(loading_error(error.code), error.message)
        one.epochs = (state.state_epoch, one.epochs[1])
        one.use(core)
        return None

    async def _initial_offset(self, one: LedSharePartition, settings: ShareGroupConfig) -> int:
        """Return where a new group begins to read. Raises KafkaError."""
        partition = one.partition
        reset = settings.auto_offset_reset
        if reset.strategy == "earliest":
            return partition.log.log_start_offset
        end = partition.latest_offset(read_committed=settings.read_committed)
        if reset.strategy == "latest":
            return end
        time_ms = self._runtime.clock.wall_ms() - reset.ago_ms
        try:
            remote = self._replicas.remote
            ends_s = asyncio.get_running_loop().time() + remote.search_wait_ms / 1000
            found = await find_by_time(remote, self._reading, BROKER_ITSELF, partition, time_ms, end, ends_s)
        except OSError as error:
            raise partition.on_read_error(error) from error
        return end if found is None else found.offset

    # --- leadership

    def _on_hosted(self, partition: Partition) -> None:
        partition.add_role_listener(self._on_role_changed)

    def _on_role_changed(self, partition: Partition) -> None:
        for one in list(self._led.get(partition.key, {}).values()):
            if not partition.is_led_here or one.epochs[1] != partition.leader_epoch:
                self.drop(one)


def loading_error(error: ErrorCode) -> ErrorCode:
    """Return the error of a fetch if the state of a share partition could not be read, as Kafka does: the
    client asks for the leader, and fetches again."""
    if error in AWAY:
        return ErrorCode.leader_not_available
    if error in _TAKEN_OVER:
        return ErrorCode.not_leader_or_follower
    return error if error in _TOLD else ErrorCode.unknown_server_error
