"""The shell around one shard: its partition's log, its one timer, and who waits for a reply.

Decisions are the shard's. Here its effects are carried out: records are appended as one batch by the leader
of the partition, replies are given once the high watermark has reached everything appended so far.

- *the shard's state is what the log says*: where an append fails, the shard has decided what is not in the
  log, so it is dropped, and the log loaded anew while this broker leads;
- *a request is answered at most once*, and by an error when its shell is unloaded;
- *nobody hears of what is not committed*: replies leave in the order of the offsets they wait for.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nilometer.broker.groups.loading import read_records
from nilometer.broker.groups.refusals import refuse, refuse_for_log
from nilometer.broker.replicas.partition import Partition
from nilometer.broker.tasks import Tasks
from nilometer.cluster.image import ClusterImage
from nilometer.groups.effects import Effects, Token
from nilometer.groups.record_format import encode_record
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import GroupRequest, Reply
from nilometer.runtime import Runtime
from nilometer.storage import AppendOrigin, CorruptRecordFound
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder

if TYPE_CHECKING:
    from nilometer.groups.shard import GroupShard

logger = logging.getLogger("nilometer.broker")

Deliver = Callable[[Reply], None]


class ShellState(enum.Enum):
    LOADING = enum.auto()
    ACTIVE = enum.auto()
    FAILED = enum.auto()
    """The log could not be read; another leader may be able to."""
    UNLOADED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOptions:
    commit_timeout_ms: int
    load_buffer_bytes: int
    codec: Codec


class _Asker(NamedTuple):
    request: GroupRequest
    deliver: Deliver


class _Uncommitted:
    """Replies that wait for the high watermark to reach ``offset``."""

    __slots__ = ("_shell", "deadline_ms", "offset", "replies")

    def __init__(self, shell: CoordinatorShell, offset: int, deadline_ms: int) -> None:
        self._shell = shell
        self.offset = offset
        self.deadline_ms = deadline_ms
        self.replies: list[tuple[Token, Reply]] = []

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        self._shell.on_released(self, error)


class CoordinatorShell:
    def __init__(
        self,
        partition: Partition,
        runtime: Runtime,
        tasks: Tasks,
        options: ShellOptions,
        make_shard: Callable[[], GroupShard],
        report_damage: Callable[[CorruptRecordFound], None],
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = ShellState.UNLOADED
        self._runtime = runtime
        self._tasks = tasks
        self._options = options
        self._make_shard = make_shard
        self._report_damage = report_damage
        self._shard: GroupShard | None = None
        self._askers: dict[Token, _Asker] = {}
        self._last_token = 0
        self._end_offset = 0
        """Behind everything that the shard's state contains."""
        self._uncommitted: deque[_Uncommitted] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._loading: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"the group coordinator of {self.partition}"

    # ── loading and unloading ───────────────────────────────────────────────────────────────────
    def load(self) -> None:
        self.state = ShellState.LOADING
        self._loading = self._tasks.spawn(self._load(), name=f"loading {self.partition}")

    def unload(self, error: ErrorCode = ErrorCode.not_coordinator) -> None:
        """Let go of all state; whoever waits is told ``error``."""
        self.state = ShellState.UNLOADED
        self._shard = None
        self._uncommitted.clear()
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        askers, self._askers = self._askers, {}
        for asker in askers.values():
            asker.deliver(refuse(asker.request, error))

    async def _load(self) -> None:
        shard = self._make_shard()
        try:
            async with aclosing(
                read_records(self.partition, self._runtime, self._options.load_buffer_bytes)
            ) as pieces:
                async for records in pieces:
                    for record in records:
                        shard.replay(record)
        except (KafkaError, OSError) as problem:
            logger.error("%s could not be loaded: %s", self, problem)
            self.state = ShellState.FAILED
            if isinstance(problem, CorruptRecordFound):
                self._report_damage(problem)
            elif isinstance(problem, OSError):
                self.partition.on_read_error(problem)
            return
        except Exception:
            self.state = ShellState.FAILED
            raise
        clock = self._runtime.clock
        self._loading = None
        self._shard = shard
        self._end_offset = self.partition.log.log_end_offset
        self.state = ShellState.ACTIVE
        self._carry_out(shard.on_loaded(clock.monotonic_ms(), clock.wall_ms()))

    def _start_over(self, error: ErrorCode) -> None:
        """What the shard has decided is not in the log: only the log is right."""
        if self.state is not ShellState.ACTIVE:
            return  # unloaded meanwhile
        self.unload(error)
        self.load()

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def submit(self, request: GroupRequest, deliver: Deliver) -> Token | None:
        """Have ``request`` answered through ``deliver``, perhaps before this returns.

        The token is for :meth:`forget`; None if the answer was given already. Raises KafkaError instead
        of answering where nobody here can.
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
        self._carry_out_safely(lambda: shard.handle(token, request, clock.monotonic_ms(), clock.wall_ms()))
        return token if token in self._askers else None

    def forget(self, token: Token) -> None:
        """Whoever asked has gone."""
        if self._askers.pop(token, None) is not None and self._shard is not None:
            self._shard.forget(token)

    def on_image(self, image: ClusterImage) -> None:
        """Topics came, grew or went."""
        shard, clock = self._shard, self._runtime.clock
        if shard is not None:
            self._carry_out_safely(lambda: shard.on_image(image, clock.monotonic_ms(), clock.wall_ms()))

    # ── effects ─────────────────────────────────────────────────────────────────────────────────
    def _carry_out_safely(self, decide: Callable[[], Effects]) -> None:
        """A fault in a decision leaves a state that nobody vouches for."""
        try:
            effects = decide()
        except Exception:
            logger.exception("%s failed and is loaded anew", self)
            self._start_over(ErrorCode.unknown_server_error)
            return
        self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        if effects.records and not self._append(effects.records):
            return
        if effects.replies:
            self._reply_when_committed(effects.replies)
        self._schedule()

    def _append(self, records: Sequence[CoordinatorRecord]) -> bool:
        try:
            appended = self.partition.append(
                self._encode(records), all_replicas=False, origin=AppendOrigin.COORDINATOR
            )
        except KafkaError as problem:
            logger.warning("%s could not append: %s", self, problem)
            self._fail_all(problem.code)
            return False
        self._end_offset = appended.last_offset + 1
        return True

    def _encode(self, records: Sequence[CoordinatorRecord]) -> bytes:
        builder = BatchBuilder(self._options.codec)
        wall_ms = self._runtime.clock.wall_ms()
        for record in records:
            builder.append(wall_ms, *encode_record(record))
        return builder.build()

    def _fail_all(self, error: ErrorCode) -> None:
        askers, self._askers = self._askers, {}
        for asker in askers.values():
            asker.deliver(refuse_for_log(asker.request, error))
        self._start_over(ErrorCode.not_coordinator)

    def _reply_when_committed(self, replies: Sequence[tuple[Token, Reply]]) -> None:
        if not self._uncommitted and self.partition.replica.high_watermark >= self._end_offset:
            self._give(replies)
            return
        last = self._uncommitted[-1] if self._uncommitted else None
        if last is None or last.offset != self._end_offset:
            deadline_ms = self._runtime.clock.monotonic_ms() + self._options.commit_timeout_ms
            last = _Uncommitted(self, self._end_offset, deadline_ms)
            try:
                self.partition.hold_until_committed(self._end_offset, last)
            except KafkaError as problem:
                self._fail_all(problem.code)
                return
            self._uncommitted.append(last)
        last.replies.extend(replies)

    def on_released(self, released: _Uncommitted, error: ErrorCode) -> None:
        """The high watermark has reached it, or this broker leads no more and will be unloaded."""
        if error is ErrorCode.not_leader_or_follower:
            return
        while self._uncommitted and self._uncommitted[0].offset <= released.offset:
            self._give(self._uncommitted.popleft().replies)

    def _give(self, replies: Sequence[tuple[Token, Reply]]) -> None:
        for token, reply in replies:
            asker = self._askers.pop(token, None)
            if asker is not None:
                asker.deliver(reply)

    # ── time ────────────────────────────────────────────────────────────────────────────────────
    def _schedule(self) -> None:
        """Have the one timer go off at the next deadline; one that goes off early looks again."""
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
        if self._uncommitted:
            oldest_ms = self._uncommitted[0].deadline_ms
            return oldest_ms if due_ms is None else min(due_ms, oldest_ms)
        return due_ms

    def _on_timer(self) -> None:
        self._timer = None
        shard, clock = self._shard, self._runtime.clock
        if shard is None:
            return
        now_ms = clock.monotonic_ms()
        self._give_up_waiting(now_ms)
        due_ms = shard.next_deadline_ms()
        if due_ms is not None and due_ms <= now_ms:
            self._carry_out_safely(lambda: shard.on_time(now_ms, clock.wall_ms()))
        self._schedule()

    def _give_up_waiting(self, now_ms: int) -> None:
        """Replies that were not committed in time: what they told of may still come true."""
        while self._uncommitted and self._uncommitted[0].deadline_ms <= now_ms:
            for token, _ in self._uncommitted.popleft().replies:
                asker = self._askers.pop(token, None)
                if asker is not None:
                    asker.deliver(refuse_for_log(asker.request, ErrorCode.request_timed_out))
