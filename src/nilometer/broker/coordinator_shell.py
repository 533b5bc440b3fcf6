"""The shell around one shard: its partition's log, its one timer, and the requests that wait for a result.

It reads the records of its partition from log start to log end, slice by slice, before it serves. Results and
actions wait until the records before them are committed. Group and transaction coordinators differ in their
kind: topic, shards, record format and errors.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import msgspec

from nilometer.broker.replicas.delayed_requests import CommitWait
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import PromptWork
from nilometer.cluster.image import ClusterImage
from nilometer.coordinators import Effects, Producer, Token, TransactionalRecord, TransactionEnd
from nilometer.invariants import check
from nilometer.runtime import Runtime
from nilometer.storage.appending import AppendInfo
from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.producers import AppendOrigin
from nilometer.wire.compression import Bytes, Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, ControlType, decode_records, read_end_txn_marker

RequestT = TypeVar("RequestT")
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
ResultT = TypeVar("ResultT")
RecordT = TypeVar("RecordT")
ActionT = TypeVar("ActionT")


class Shard(Protocol[RequestT_contra, ResultT, RecordT, ActionT]):
    """The state machine of one partition of a coordinator's topic (``__consumer_offsets``,
    ``__transaction_state``). It is loaded by :meth:`replay` for each record and then :meth:`on_loaded`, and
    dropped when the broker no longer leads the partition or an append fails.

    ``now_ms`` is the monotonic time, ``wall_ms`` the time since the epoch. A ``token`` identifies a request
    until its result. The returned effects are the records to append, and the results and actions that wait
    until these are committed.
    """

    def replay(self, record: RecordT) -> None: ...

    def replay_transactional(self, transactional: TransactionalRecord[RecordT]) -> None: ...

    def replay_end(self, end: TransactionEnd) -> None:
        """Apply the end of a transaction: while loading, or when its marker was written to the partition."""
        ...

    def on_loaded(
        self, now_ms: int, wall_ms: int
    ) -> Generator[int, None, Effects[RecordT, ResultT, ActionT]]:
        """Start the timers, in steps: the partition has been read to its end. Until the last step nothing
        else happens to the shard."""
        ...

    def handle(
        self, token: Token, request: RequestT_contra, now_ms: int, wall_ms: int
    ) -> Effects[RecordT, ResultT, ActionT]: ...

    def forget(self, token: Token) -> None: ...

    def states(self) -> Iterable[str]:
        """Return the state of each group or transaction, under Kafka's name."""
        ...

    def on_image(
        self, image: ClusterImage, now_ms: int, wall_ms: int
    ) -> Effects[RecordT, ResultT, ActionT]: ...

    def next_deadline_ms(self) -> int | None: ...

    def on_time(self, now_ms: int, wall_ms: int) -> Effects[RecordT, ResultT, ActionT]: ...


class CoordinatorKind(
    msgspec.Struct, Generic[RequestT, ResultT, RecordT, ActionT], frozen=True, kw_only=True
):
    name: str
    """For messages: as in "the group coordinator"."""
    subject: str
    """For messages: as in "Loading groups"."""
    topic: str
    num_partitions: int
    """The partition count of ``topic`` that is assumed until the topic exists."""
    commit_timeout_ms: int
    """How long a result waits for its records to be committed."""
    load_buffer_bytes: int
    codec: Codec
    """The compression of appended batches."""
    make_shard: Callable[[], Shard[RequestT, ResultT, RecordT, ActionT]]
    encode: Callable[[RecordT], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None], RecordT | None]
    """Decodes key and value; None for a record of an unknown type. Raises MalformedMessage."""
    refuse: Callable[[RequestT, ErrorCode], ResultT]
    """Makes the result with an error of a request that reached no shard."""
    refuse_for_log: Callable[[RequestT, ErrorCode], ResultT]
    """Makes the result of a request whose records could not be appended or committed, from the log's
    error."""
    carry_out: Callable[[CoordinatorShell[RequestT, ResultT, RecordT, ActionT], ActionT], None]
    """Carries out an action that the shard decided on; the records before it are committed."""


class _Waiting(Generic[ResultT, ActionT]):
    """The results and actions that wait for the high watermark to reach ``offset``."""

    __slots__ = ("_on_released", "actions", "deadline_ms", "offset", "results")

    def __init__(
        self,
        offset: int,
        deadline_ms: int,
        on_released: Callable[[_Waiting[ResultT, ActionT], ErrorCode], None],
    ) -> None:
        self.offset = offset
        self.deadline_ms = deadline_ms
        """Until when the results wait (monotonic time); it does not concern the actions."""
        self.results: list[tuple[Token, ResultT]] = []
        self.actions: list[ActionT] = []
        self._on_released = on_released

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        self._on_released(self, error)


class HighWatermark(Protocol):
    @property
    def high_watermark(self) -> int: ...


class WaitingEffects(Generic[ResultT, ActionT]):
    def __init__(
        self,
        log: HighWatermark,
        wait_for_commit: Callable[[int, CommitWait], None],
        deliver: Callable[[Sequence[tuple[Token, ResultT]]], None],
        carry_out: Callable[[Sequence[ActionT]], None],
    ) -> None:
        """``wait_for_commit(offset, wait)`` releases ``wait`` when the high watermark reaches ``offset``; it
        raises KafkaError if this broker does not lead.

        ``deliver`` delivers results and ``carry_out`` carries out actions, once the records before them are
        committed; of one offset the results come first.
        """
        self._log = log
        self._wait_for_commit = wait_for_commit
        self._deliver = deliver
        self._carry_out = carry_out
        self._waiting: deque[_Waiting[ResultT, ActionT]] = deque()

    def add(
        self,
        offset: int,
        results: Sequence[tuple[Token, ResultT]],
        actions: Sequence[ActionT],
        deadline_ms: int,
    ) -> None:
        """Release ``results`` and ``actions`` once all records below ``offset`` are committed.

        If they are committed, but the release of others is put off, these are released after the others.
        ``deadline_ms``: until when the results wait. Raises KafkaError if this broker does not lead.
        """
        is_committed = self._log.high_watermark >= offset
        if is_committed and not self._waiting:
            self._release(results, actions)
            return
        last = self._waiting[-1] if self._waiting else None
        if last is None or (last.offset != offset and not is_committed):
            last = _Waiting[ResultT, ActionT](offset, deadline_ms, self._on_released)
            self._wait_for_commit(offset, last)
            self._waiting.append(last)
        elif not last.results:
            last.deadline_ms = deadline_ms
        last.results.extend(results)
        last.actions.extend(actions)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline (monotonic, ms) of a waiting result; None if no result waits."""
        return next((each.deadline_ms for each in self._waiting if each.results), None)

    def take_overdue(self, now_ms: int) -> list[Token]:
        """Remove the results whose deadline has passed, and return the tokens of their requests.

        Their records may still be committed later. None is removed while the release of committed ones is put
        off: that happens soon.
        """
        overdue: list[Token] = []
        if self._waiting and self._waiting[0].offset <= self._log.high_watermark:
            return overdue
        for each in self._waiting:
            if each.deadline_ms > now_ms:
                break
            overdue.extend(token for token, _ in each.results)
            each.results.clear()
        while self._waiting and not self._waiting[0].results and not self._waiting[0].actions:
            self._waiting.popleft()
        return overdue

    def clear(self) -> None:
        self._waiting.clear()

    def _on_released(self, released: _Waiting[ResultT, ActionT], error: ErrorCode) -> None:
        """Release everything up to the offset of ``released``, which the high watermark has reached.

        NOT_LEADER_OR_FOLLOWER means that this broker no longer leads: nothing is released, and the shell is
        unloaded soon.
        """
        if error is ErrorCode.not_leader_or_follower:
            return
        while self._waiting and self._waiting[0].offset <= released.offset:
            first = self._waiting.popleft()
            self._release(first.results, first.actions)

    def _release(self, results: Sequence[tuple[Token, ResultT]], actions: Sequence[ActionT]) -> None:
        if results:
            self._deliver(results)
        if actions:
            self._carry_out(actions)


logger = logging.getLogger("nilometer.broker.coordinators")

SLICE_BYTES_MAX = 256 * 1024
PIECE_RECORDS_MAX = 500
PROGRESS_EVERY_MS = 1_000


Decode: TypeAlias = Callable[[bytes, bytes | None], RecordT | None]


Loaded: TypeAlias = RecordT | TransactionalRecord[RecordT] | TransactionEnd
"""An entry of the log: a record, a record of a transaction, or the end of a transaction."""


class _Slice(NamedTuple, Generic[RecordT]):
    records: Sequence[Loaded[RecordT]]
    next_offset: int
    unreadable: int
    """How many records are of an unknown type, written by a newer Kafka."""


async def read_records(
    partition: Partition, runtime: Runtime, kind: CoordinatorKind[Any, Any, RecordT, Any]
) -> AsyncGenerator[Sequence[Loaded[RecordT]], None]:
    """Yield the records up to the log end offset, also those appended meanwhile. Raises KafkaError,
    OSError."""
    clock, log = runtime.clock, partition.log
    started_ms = reported_ms = clock.monotonic_ms()
    offset = first = log.log_start_offset
    unreadable = 0
    while offset < log.log_end_offset:
        found = await runtime.disk.offload(
            lambda offset=offset, end=log.log_end_offset: _read_slice(
                partition, offset, end, min(kind.load_buffer_bytes, SLICE_BYTES_MAX), kind.decode
            )
        )
        for start in range(0, len(found.records), PIECE_RECORDS_MAX):
            yield found.records[start : start + PIECE_RECORDS_MAX]
        if found.next_offset <= offset:
            break  # the last whole batch was read
        offset = found.next_offset
        unreadable += found.unreadable
        now_ms = clock.monotonic_ms()
        if now_ms - reported_ms >= PROGRESS_EVERY_MS:
            reported_ms = now_ms
            end = log.log_end_offset
            logger.info(
                "Loading %s from %s: %d %% (offset %d of %d)",
                kind.subject,
                partition,
                100 * (offset - first) // max(1, end - first),
                offset,
                end,
            )
    if unreadable:
        logger.warning("%d records of %s have an unknown type and were skipped", unreadable, partition)
    if offset > first:
        took_ms = clock.monotonic_ms() - started_ms
        logger.info(
            "Loaded %s from %s: offsets %d to %d in %d ms", kind.subject, partition, first, offset, took_ms
        )


def _read_slice(
    partition: Partition, offset: int, end: int, max_bytes: int, decode: Decode[RecordT]
) -> _Slice[RecordT]:
    found = partition.log.read(offset, max_bytes, end, min_one=True)
    assert found is not None, "only a read from memory may return None"
    records, unreadable = _decode(found.records, decode)
    return _Slice(records, found.next_offset, unreadable)


def _decode(data: Bytes, decode: Decode[RecordT]) -> tuple[list[Loaded[RecordT]], int]:
    decoded: list[Loaded[RecordT]] = []
    unreadable = 0
    for position, header in batches(data):
        if header.is_control:
            if (marker := read_end_txn_marker(data, position, header)) is not None:
                committed = marker.control_type is ControlType.COMMIT
                decoded.append(TransactionEnd(header.producer_id, committed))
            continue
        for record in decode_records(data, position, header):
            known = None if record.key is None else decode(record.key, record.value)
            if known is None:
                unreadable += 1
            elif header.is_transactional:
                decoded.append(TransactionalRecord(header.producer_id, known))
            else:
                decoded.append(known)
    return decoded, unreadable


RELOAD_MIN_MS = 1_000
RELOAD_MAX_MS = 60_000
"""The pause after a failed load: the minimum doubles with each failure in a row."""
ACTIVE_MIN_MS = 500
"""A shard that is dropped sooner after its load is loaded again only when this time is over. Else a broker
that may not write for a while, because its session is in doubt, would read its log all that time."""


class ShellState(enum.Enum):
    LOADING = enum.auto()
    ACTIVE = enum.auto()
    FAILED = enum.auto()
    """The log could not be read. It is read again after a pause; another leader may be able to sooner."""
    UNLOADED = enum.auto()


_Loaded: TypeAlias = tuple[Shard[RequestT, ResultT, RecordT, ActionT], Effects[RecordT, ResultT, ActionT]]


class _Asker(NamedTuple, Generic[RequestT, ResultT]):
    request: RequestT
    deliver: Callable[[ResultT], None]


class CoordinatorShell(Generic[RequestT, ResultT, RecordT, ActionT]):
    def __init__(
        self,
        partition: Partition,
        runtime: Runtime,
        tasks: Tasks,
        kind: CoordinatorKind[RequestT, ResultT, RecordT, ActionT],
        report_damage: Callable[[CorruptRecordFound], None],
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = ShellState.UNLOADED
        self.loads = 0
        """How often the log has been loaded. Work begun for an earlier load is outdated."""
        self._runtime = runtime
        self._tasks = tasks
        self._kind = kind
        self._report_damage = report_damage
        self._shard: Shard[RequestT, ResultT, RecordT, ActionT] | None = None
        self._askers: dict[Token, _Asker[RequestT, ResultT]] = {}
        self._last_token = 0
        self.first_loaded_offset = 0
        """Where the log began when it was loaded last."""
        self._end_offset = 0
        """The end offset of the records that the shard's state contains."""
        self._waiting = WaitingEffects[ResultT, ActionT](
            partition.replica, partition.hold_until_committed, self._deliver, self._carry_out_actions
        )
        self._unseen_image: ClusterImage | None = None
        """The image to notify the shard of once the log is loaded; None if it has not changed meanwhile."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._loading: asyncio.Task[None] | None = None
        self._active_from_ms = -ACTIVE_MIN_MS
        """When the log was last loaded, on the monotonic clock."""

    def __str__(self) -> str:
        return f"the {self._kind.name} coordinator of {self.partition}"

    # ── loading and unloading ───────────────────────────────────────────────────────────────────
    def load(self) -> None:
        self.state = ShellState.LOADING
        self.loads += 1
        self._loading = self._tasks.spawn(
            self._load(), name=f"loading {self.partition}", kind="loading of coordinators"
        )

    def unload(self, error: ErrorCode = ErrorCode.not_coordinator) -> None:
        """Drop the shard. Waiting requests get ``error`` as result; waiting actions are dropped."""
        self.state = ShellState.UNLOADED
        self._shard = None
        self._waiting.clear()
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        askers, self._askers = self._askers, {}
        for asker in askers.values():
            asker.deliver(self._kind.refuse(asker.request, error))

    def become_leader_again(self) -> None:
        """Go on with the shard in the next leader epoch, to which this broker was elected in succession."""
        self.leader_epoch = self.partition.leader_epoch
        end = self.partition.log.log_end_offset
        check(end >= self._end_offset, "a leader that goes on keeps its log", end, self._end_offset)

    async def _load(self) -> None:
        clock = self._runtime.clock
        if (early_ms := self._active_from_ms + ACTIVE_MIN_MS - clock.monotonic_ms()) > 0:
            await asyncio.sleep(early_ms / 1000)
        failures = 0
        while (loaded := await self._read_log()) is None:
            await asyncio.sleep(min(RELOAD_MIN_MS << min(failures, 16), RELOAD_MAX_MS) / 1000)
            failures += 1
            self.state = ShellState.LOADING
        self._loading = None
        self._active_from_ms = clock.monotonic_ms()
        self._shard, effects = loaded
        self._end_offset = self.partition.log.log_end_offset
        self.state = ShellState.ACTIVE
        self._carry_out(effects)
        image, self._unseen_image = self._unseen_image, None
        if image is not None:
            self.on_image(image)

    async def _read_log(self) -> _Loaded[RequestT, ResultT, RecordT, ActionT] | None:
        """Return the shard that the log results in, with the effects of its being loaded; None if the log
        could not be read.

        Of all logs that are loaded one takes a step in an iteration of the event loop: after a failure there
        may be fifty, and a record may take milliseconds.
        """
        shard, clock, one_at_a_time = self._kind.make_shard(), self._runtime.clock, self._tasks.loading
        work = PromptWork(clock.monotonic_us)
        self.first_loaded_offset = self.partition.log.log_start_offset
        try:
            async with aclosing(read_records(self.partition, self._runtime, self._kind)) as pieces:
                async for records in pieces:
                    async with one_at_a_time:
                        for record in records:
                            _replay(shard, record)
                            await work.step()
            async with one_at_a_time:
                steps = shard.on_loaded(clock.monotonic_ms(), clock.wall_ms())
                return shard, await work.go_through(steps)
        except (KafkaError, OSError) as error:
            # The state first: what is notified here may unload this shell.
            self.state = ShellState.FAILED
            logger.error("%s could not be loaded, and is loaded again: %s", self, error)
            if isinstance(error, CorruptRecordFound):
                self._report_damage(error)
            elif isinstance(error, OSError):
                self.partition.on_read_error(error)
            return None
        except Exception:
            self.state = ShellState.FAILED
            logger.exception("%s could not be loaded, and is loaded again", self)
            return None

    def _start_over(self, error: ErrorCode) -> None:
        """Drop the shard, whose state no longer matches the log, and load the log again."""
        if self.state is not ShellState.ACTIVE:
            return  # unloaded meanwhile
        self.unload(error)
        self.load()

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    @property
    def shard(self) -> Shard[RequestT, ResultT, RecordT, ActionT] | None:
        """The groups or transactions; None while they are not loaded."""
        return self._shard

    def states(self) -> Iterable[str]:
        """Return the state of each group or transaction; none while they are not loaded."""
        return () if self._shard is None else self._shard.states()

    def submit(self, request: RequestT, deliver: Callable[[ResultT], None]) -> Token | None:
        """Pass ``request`` to the shard; ``deliver`` is called with the result, perhaps before this returns.

        Returns the token for :meth:`forget`; None if the result was delivered already. Raises KafkaError, and
        delivers nothing, if this broker is not the coordinator or its log is still loading.
        """
        shard = self._shard
        if shard is None or self.state is not ShellState.ACTIVE:
            loading = self.state is ShellState.LOADING
            raise KafkaError(ErrorCode.coordinator_load_in_progress if loading else ErrorCode.not_coordinator)
        if not self.partition.is_led_here:
            raise KafkaError(ErrorCode.not_coordinator)
        self._last_token += 1
        token = Token(self._last_token)
        self._askers[token] = _Asker(request, deliver)
        clock = self._runtime.clock
        self.carry_out(lambda: shard.handle(token, request, clock.monotonic_ms(), clock.wall_ms()))
        return token if token in self._askers else None

    def forget(self, token: Token) -> None:
        """Drop a request whose client has disconnected."""
        if self._askers.pop(token, None) is not None and self._shard is not None:
            self._shard.forget(token)

    def on_image(self, image: ClusterImage) -> None:
        """Notify the shard of changed topics, partition counts or feature levels; while the log is being
        loaded, keep ``image`` until then."""
        shard, clock = self._shard, self._runtime.clock
        if shard is None:
            self._unseen_image = image
        else:
            self.carry_out(lambda: shard.on_image(image, clock.monotonic_ms(), clock.wall_ms()))

    def append_marker(self, write: Callable[[Partition], AppendInfo], end: TransactionEnd) -> AppendInfo:
        """Append a marker with ``write``, notify the shard of ``end``, and return where the marker is.

        Raises KafkaError.
        """
        shard = self._shard
        if shard is None or self.state is not ShellState.ACTIVE:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        appended = write(self.partition)
        self._end_offset = appended.last_offset + 1
        self.carry_out(lambda: _notify_end(shard, end))
        return appended

    # ── effects ─────────────────────────────────────────────────────────────────────────────────
    def carry_out(self, decide: Callable[[], Effects[RecordT, ResultT, ActionT]]) -> None:
        """Carry out the effects of ``decide``, which calls the shard; if it raises, the shard's state may be
        wrong, and the log is loaded again."""
        try:
            effects = decide()
        except Exception:
            logger.exception("%s failed and is loaded again", self)
            self._start_over(ErrorCode.unknown_server_error)
            return
        self._carry_out(effects)

    def _carry_out(self, effects: Effects[RecordT, ResultT, ActionT]) -> None:
        if effects.records and not self._append(effects.records, effects.producer):
            return
        if effects.results or effects.actions:
            self._release_when_committed(effects)
        self._schedule()

    def _append(self, records: Sequence[RecordT], producer: Producer | None) -> bool:
        try:
            appended = self.partition.append(
                self._encode(records, producer), all_replicas=False, origin=AppendOrigin.COORDINATOR
            )
        except KafkaError as error:
            logger.warning("%s could not append: %s", self, error)
            self._fail_all(error.code)
            return False
        self._end_offset = appended.last_offset + 1
        return True

    def _encode(self, records: Sequence[RecordT], producer: Producer | None) -> bytes:
        builder = BatchBuilder(self._kind.codec)
        wall_ms = self._runtime.clock.wall_ms()
        for record in records:
            builder.append(wall_ms, *self._kind.encode(record))
        if producer is None:
            return builder.build()
        return builder.build(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
        )

    def _fail_all(self, error: ErrorCode) -> None:
        askers, self._askers = self._askers, {}
        for asker in askers.values():
            asker.deliver(self._kind.refuse_for_log(asker.request, error))
        self._start_over(ErrorCode.not_coordinator)

    def _release_when_committed(self, effects: Effects[RecordT, ResultT, ActionT]) -> None:
        deadline_ms = self._runtime.clock.monotonic_ms() + self._kind.commit_timeout_ms
        try:
            self._waiting.add(self._end_offset, effects.results, effects.actions, deadline_ms)
        except KafkaError as error:
            self._fail_all(error.code)

    def _deliver(self, results: Sequence[tuple[Token, ResultT]]) -> None:
        for token, result in results:
            asker = self._askers.pop(token, None)
            if asker is not None:
                asker.deliver(result)

    def _carry_out_actions(self, actions: Sequence[ActionT]) -> None:
        try:
            for action in actions:
                self._kind.carry_out(self, action)
        except Exception:
            logger.exception("%s failed and is loaded again", self)
            self._start_over(ErrorCode.unknown_server_error)

    # ── time ────────────────────────────────────────────────────────────────────────────────────
    def _schedule(self) -> None:
        """Set the one timer to the next deadline; a timer that expires too early is set again."""
        due_ms = self._next_deadline_ms()
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = max(1, due_ms - self._runtime.clock.monotonic_ms())
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._on_timer)

    def _next_deadline_ms(self) -> int | None:
        due_ms = None if self._shard is None else self._shard.next_deadline_ms()
        oldest_ms = self._waiting.next_deadline_ms()
        if due_ms is None or oldest_ms is None:
            return due_ms if oldest_ms is None else oldest_ms
        return min(due_ms, oldest_ms)

    def _on_timer(self) -> None:
        """Process what is due when it is this shell's turn among all long work: timers of all shells may be
        due at once."""
        turns = self._tasks.turns
        if turns is None:
            self._process_due()
        else:
            turns.call(self._process_due)

    def _process_due(self) -> None:
        self._timer = None
        shard, clock = self._shard, self._runtime.clock
        if shard is None:
            return
        now_ms = clock.monotonic_ms()
        self._give_up_waiting(now_ms)
        due_ms = shard.next_deadline_ms()
        if due_ms is not None and due_ms <= now_ms:
            self.carry_out(lambda: shard.on_time(now_ms, clock.wall_ms()))
        self._schedule()
        if self._tasks.turns is not None:
            self._tasks.turns.note(f"timers of {self._kind.name} coordinators")

    def _give_up_waiting(self, now_ms: int) -> None:
        for token in self._waiting.take_overdue(now_ms):
            asker = self._askers.pop(token, None)
            if asker is not None:
                asker.deliver(self._kind.refuse_for_log(asker.request, ErrorCode.request_timed_out))


def _replay(shard: Shard[RequestT, ResultT, RecordT, ActionT], record: Loaded[RecordT]) -> None:
    if isinstance(record, TransactionalRecord):
        shard.replay_transactional(cast("TransactionalRecord[RecordT]", record))
    elif isinstance(record, TransactionEnd):
        shard.replay_end(record)
    else:
        shard.replay(record)


def _notify_end(
    shard: Shard[RequestT, ResultT, RecordT, ActionT], end: TransactionEnd
) -> Effects[RecordT, ResultT, ActionT]:
    """Notify the shard of the end of a transaction; this has no effects."""
    shard.replay_end(end)
    return Effects()
