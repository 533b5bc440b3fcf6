"""The shell around one shard: its partition's log, its one timer, and the requests that wait for a reply.

The shard (the pure state machine of one partition) decides; the shell carries out the effects. It appends the
records as one batch to the partition's log. It delivers replies and carries out actions once the high
watermark has reached everything appended so far. Invariants:

- the shard's state matches the log: if an append fails, the shard has changed its state without the log, so
  it is dropped, and loaded again from the log if this broker still leads;
- a request gets at most one reply; it is an error if the shell is unloaded;
- replies and actions wait until the records before them are committed, and leave in the order of the offsets
  they wait for. An unloaded shell carries out no action;
- a log that could not be read is read again after a pause, until the shell is unloaded. Meanwhile requests
  get NOT_COORDINATOR, as in Kafka, which itself reads the log again only in the next leader epoch.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Generic, NamedTuple, cast

from nilometer.broker.coordinators.kind import ActionT, CoordinatorKind, RecordT, ReplyT, RequestT, Shard
from nilometer.broker.coordinators.loading import read_records
from nilometer.broker.coordinators.waiting_effects import WaitingEffects
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.tasks import Tasks
from nilometer.cluster.image import ClusterImage
from nilometer.coordinators.turn import Effects, Producer, Token, TransactionalRecord, TransactionEnd
from nilometer.runtime import Runtime
from nilometer.storage import AppendInfo, AppendOrigin, CorruptRecordFound
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder

logger = logging.getLogger("nilometer.broker.coordinators")

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


class _Asker(NamedTuple, Generic[RequestT, ReplyT]):
    request: RequestT
    deliver: Callable[[ReplyT], None]


class CoordinatorShell(Generic[RequestT, ReplyT, RecordT, ActionT]):
    def __init__(
        self,
        partition: Partition,
        runtime: Runtime,
        tasks: Tasks,
        kind: CoordinatorKind[RequestT, ReplyT, RecordT, ActionT],
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
        self._shard: Shard[RequestT, ReplyT, RecordT, ActionT] | None = None
        self._askers: dict[Token, _Asker[RequestT, ReplyT]] = {}
        self._last_token = 0
        self._end_offset = 0
        """The end offset of the records that the shard's state contains."""
        self._waiting = WaitingEffects[ReplyT, ActionT](
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
        """Drop the shard. Waiting requests get ``error`` as reply; waiting actions are dropped."""
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

    async def _load(self) -> None:
        clock = self._runtime.clock
        if (early_ms := self._active_from_ms + ACTIVE_MIN_MS - clock.monotonic_ms()) > 0:
            await asyncio.sleep(early_ms / 1000)
        failures = 0
        while (shard := await self._read_log()) is None:
            await asyncio.sleep(min(RELOAD_MIN_MS << min(failures, 16), RELOAD_MAX_MS) / 1000)
            failures += 1
            self.state = ShellState.LOADING
        self._loading = None
        self._active_from_ms = clock.monotonic_ms()
        self._shard = shard
        self._end_offset = self.partition.log.log_end_offset
        self.state = ShellState.ACTIVE
        self._carry_out(shard.on_loaded(clock.monotonic_ms(), clock.wall_ms()))
        image, self._unseen_image = self._unseen_image, None
        if image is not None:
            self.on_image(image)

    async def _read_log(self) -> Shard[RequestT, ReplyT, RecordT, ActionT] | None:
        """Return the shard that the log results in; None if the log could not be read."""
        shard = self._kind.make_shard()
        try:
            async with aclosing(read_records(self.partition, self._runtime, self._kind)) as pieces:
                async for records in pieces:
                    for record in records:
                        if isinstance(record, TransactionalRecord):
                            shard.replay_transactional(cast("TransactionalRecord[RecordT]", record))
                        elif isinstance(record, TransactionEnd):
                            shard.replay_end(record)
                        else:
                            shard.replay(record)
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
        return shard

    def _start_over(self, error: ErrorCode) -> None:
        """Drop the shard, whose state no longer matches the log, and load the log again."""
        if self.state is not ShellState.ACTIVE:
            return  # unloaded meanwhile
        self.unload(error)
        self.load()

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    @property
    def shard(self) -> Shard[RequestT, ReplyT, RecordT, ActionT] | None:
        """The groups or transactions; None while they are not loaded."""
        return self._shard

    def states(self) -> Iterable[str]:
        """Return the state of each group or transaction; none while they are not loaded."""
        return () if self._shard is None else self._shard.states()

    def submit(self, request: RequestT, deliver: Callable[[ReplyT], None]) -> Token | None:
        """Pass ``request`` to the shard; ``deliver`` is called with the reply, perhaps before this returns.

        Returns the token for :meth:`forget`; None if the reply was delivered already. Raises KafkaError, and
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
    def carry_out(self, decide: Callable[[], Effects[RecordT, ReplyT, ActionT]]) -> None:
        """Carry out the effects of ``decide``, which calls the shard; if it raises, the shard's state may be
        wrong, and the log is loaded again."""
        try:
            effects = decide()
        except Exception:
            logger.exception("%s failed and is loaded again", self)
            self._start_over(ErrorCode.unknown_server_error)
            return
        self._carry_out(effects)

    def _carry_out(self, effects: Effects[RecordT, ReplyT, ActionT]) -> None:
        if effects.records and not self._append(effects.records, effects.producer):
            return
        if effects.replies or effects.actions:
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

    def _release_when_committed(self, effects: Effects[RecordT, ReplyT, ActionT]) -> None:
        deadline_ms = self._runtime.clock.monotonic_ms() + self._kind.commit_timeout_ms
        try:
            self._waiting.add(self._end_offset, effects.replies, effects.actions, deadline_ms)
        except KafkaError as error:
            self._fail_all(error.code)

    def _deliver(self, replies: Sequence[tuple[Token, ReplyT]]) -> None:
        for token, reply in replies:
            asker = self._askers.pop(token, None)
            if asker is not None:
                asker.deliver(reply)

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

    def _give_up_waiting(self, now_ms: int) -> None:
        for token in self._waiting.take_overdue(now_ms):
            asker = self._askers.pop(token, None)
            if asker is not None:
                asker.deliver(self._kind.refuse_for_log(asker.request, ErrorCode.request_timed_out))


def _notify_end(
    shard: Shard[RequestT, ReplyT, RecordT, ActionT], end: TransactionEnd
) -> Effects[RecordT, ReplyT, ActionT]:
    """Notify the shard of the end of a transaction; this has no effects."""
    shard.replay_end(end)
    return Effects()
