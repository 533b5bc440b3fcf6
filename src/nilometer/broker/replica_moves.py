"""Replicas that move between the log directories of this broker while they serve (KIP-113).

A move copies the replica's log to its *future* log in the target directory, slice by slice and off the event
loop, and follows what happens to the log meanwhile (:mod:`nilometer.storage.copying`). When little is left,
the last records are copied on the event loop, and both logs exchange their files in the same turn
(:mod:`nilometer.storage.directories.second_logs`): roles, waiting requests, transactions and readers go on
with the same log. Its former folder is deleted once a flush has made the new one durable.

One service for each target directory works on one move at a time; one that cannot go on waits, and the next
begins. A move ends without effect if the replica is deleted or goes offline, its target directory fails, or
an operator asks for another directory. A move whose future log has a folder goes on after a restart.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from nilometer.broker.cleaning import rest_ms
from nilometer.broker.replicas.file_work import CheckpointWriter, LogDisposal
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.replication_quota import ReplicationQuota
from nilometer.broker.tasks import Tasks, run_to_end
from nilometer.runtime import Runtime
from nilometer.storage import copying
from nilometer.storage.copying import Slice, SourceUnreadable, StepKind, next_step
from nilometer.storage.directories.log_manager import LogManager
from nilometer.storage.directories.second_logs import SecondLog
from nilometer.storage.errors import CorruptRecordFound, LogFenced
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition, future_folder_name
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
logger = logging.getLogger("nilometer.broker.replicas")

SLICE_BYTES = 256 << 10
"""About so many bytes are copied in one piece of work off the event loop, and at most what the rate allows in
a second …"""
SLICE_BYTES_MIN = 1 << 10
"""… but for this."""
LAST_BYTES_MAX = 32 << 10
"""So many bytes may be copied on the event loop before the logs exchange their files."""
FLUSH_BYTES = 64 << 20
"""A future log is flushed after so many copied bytes: a restart checks what was not flushed."""
FOLDERS_AT_ONCE = 32
"""So many future logs are created in one piece of work."""
RETRY_MS = 1_000
"""How long a move waits for a log that is not ready, and after an error other than that of a disk."""
WAIT_MS_MAX = 1_000
"""A throttled move looks so often whether it is still wanted."""
FLUSH_WAIT_S = 0.05
_WORK = "move to another log directory"


class ReplicaMove:
    """The move of one replica to the log directory ``path``."""

    def __init__(self, partition: Partition, path: str) -> None:
        self.name = partition.log.topic_partition
        self.partition = partition
        self.log = partition.log
        self.path = path
        self.second: SecondLog | None = None
        """None before its folder is created."""
        self.not_before_ms = 0
        self.unflushed_bytes = 0
        self.is_near = False
        """Whether the last slice reached what was the end of the log then."""
        self.is_flushed = False
        """Whether the copy was flushed after it had come so near: another flush takes little time."""
        self.gap: tuple[int, int, int] | None = None
        """The end offsets of copy and log, between which the log has no records, and how often it was
        truncated then; None if not known."""
        self.then: str | None = None
        """The directory that an operator has asked for while this move was being finished."""

    @property
    def is_done(self) -> bool:
        """Whether the replica has its new folder, and only the former one is left to be deleted."""
        return self.second is not None and self.second.is_former

    @property
    def is_durable(self) -> bool:
        """Whether a flush has ended that began after the exchange."""
        return self.log.name_changes_durable > 0

    @property
    def size(self) -> int:
        """The bytes of the future log."""
        return 0 if self.second is None else self.second.size

    @property
    def offset_lag(self) -> int:
        """How many offsets the future log is behind."""
        copied = self.log.local_start_offset if self.second is None else self.second.log_end_offset
        return max(0, self.log.log_end_offset - copied)


class ReplicaMoves:
    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        replicas: ReplicaManager,
        disposal: LogDisposal,
        checkpoints: CheckpointWriter,
        quota: ReplicationQuota,
        on_directory_failure: Callable[[str, Exception], None],
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._replicas = replicas
        self._disposal = disposal
        self._checkpoints = checkpoints
        self._quota = quota
        self._on_directory_failure = on_directory_failure
        self._moves: dict[TopicPartition, ReplicaMove] = {}
        self._queues: dict[str, dict[TopicPartition, ReplicaMove]] = {}
        """By target directory: the moves that have a future log, in the order in which they are worked on."""
        self._without_future: dict[str, list[ReplicaMove]] = {}
        """By target directory: those whose future logs must be created."""
        self._creating: dict[str, asyncio.Task[None]] = {}
        """By target directory: what creates them, so that a throttled move does not delay it."""
        self.moved = 0
        """How many replicas were moved since the broker started."""

    @property
    def _logs(self) -> LogManager:
        return self._replicas.logs

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def alter(self, topic: str, index: int, path: str) -> None:
        """Begin to move the replica to the log directory ``path``; or end its move, if it is there.

        If the partition has no log here yet, the directory is remembered for its creation. Raises KafkaError,
        as Kafka: INVALID_TOPIC_EXCEPTION, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE,
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        name = TopicPartition(topic, index)
        self._check_target(name, path)
        try:
            partition = self._replicas.partition(topic, index)
        except KafkaError as error:
            if error.code is ErrorCode.kafka_storage_error:
                raise
            self._logs.prefer_directory(name, path)
            if error.code is ErrorCode.not_leader_or_follower:
                raise KafkaError(ErrorCode.replica_not_available, error.message) from error
            raise
        move = self.of(partition)
        if move is not None and move.is_done:
            move.then = path if path != move.path else None
            return
        if move is not None and move.path != path:
            self._give_up(move, f"it is to be in {path}")
            move = None
        if move is None and self._logs.directory_of(name) != path:
            if any(each.failure is not None for each in self._logs.directories):
                raise KafkaError(
                    ErrorCode.kafka_storage_error, f"{name} is not moved while a log directory is offline"
                )
            self._begin(ReplicaMove(partition, path))

    def _check_target(self, name: TopicPartition, path: str) -> None:
        if future_folder_name(name, "0" * 32) is None:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"The topic name {name.topic} is too long.")
        directory = self._logs.directory(path)
        if directory is None:
            raise KafkaError(ErrorCode.log_dir_not_found, f"Log dir {path} is not found in the config.")
        if directory.failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"Log directory {path} is offline")

    def of(self, partition: Partition) -> ReplicaMove | None:
        """Return the move of this replica in progress."""
        move = self._moves.get(partition.log.topic_partition)
        return move if move is not None and move.log is partition.log and self._is_current(move) else None

    def into(self, path: str) -> Iterator[ReplicaMove]:
        """Yield the moves into a directory whose future log is not in use yet."""
        for move in self:
            if move.path == path and not move.is_done:
                yield move

    def __iter__(self) -> Iterator[ReplicaMove]:
        return (move for move in list(self._moves.values()) if self._is_current(move))

    def resume(self) -> None:
        """Continue the moves whose future logs were found when the broker started, and delete the future logs
        of replicas that are not on this broker any more. Call it once the replicas are hosted."""
        for name, second in self._logs.seconds.items():
            log = self._logs.get(name)
            try:
                partition = self._replicas.partition(name.topic, name.partition)
            except KafkaError as error:
                if error.code is ErrorCode.kafka_storage_error:
                    self._logs.seconds.remove(name)  # its folder stays until the replica can be used again
                    continue
                partition = None
            if partition is None or log is None or log.topic_id != second.log.topic_id:
                self._remove_second(name, delay_ms=0)
                continue
            move = ReplicaMove(partition, second.directory.path)
            move.second = second
            logger.info("The move of %s to %s goes on at offset %d", name, move.path, second.log_end_offset)
            self._begin(move)

    def _begin(self, move: ReplicaMove) -> None:
        self._moves[move.name] = move
        if move.second is None:
            self._request_future(move)
        else:
            self._enqueue(move)

    def _enqueue(self, move: ReplicaMove) -> None:
        queue = self._queues.get(move.path)
        if queue is not None:
            queue[move.name] = move
            return
        self._queues[move.path] = {move.name: move}
        self._tasks.service(f"moves to {move.path}", self._run(move.path))

    def _request_future(self, move: ReplicaMove) -> None:
        self._without_future.setdefault(move.path, []).append(move)
        if move.path not in self._creating:
            work = self._create_futures(move.path)
            name = f"future logs in {move.path}"
            self._creating[move.path] = self._tasks.spawn(work, name=name, kind="future logs")

    def _is_current(self, move: ReplicaMove) -> bool:
        """Whether the move is still wanted and possible: its replica and its future log are in use."""
        if self._moves.get(move.name) is not move or not self._replicas.hosts(move.partition):
            return False
        if self._logs.get(move.name) is not move.log:
            return False
        if move.second is None:
            return not self._logs.is_offline(move.path)
        return self._logs.seconds.get(move.name) is move.second

    def _end(self, move: ReplicaMove) -> None:
        if self._moves.get(move.name) is move:
            del self._moves[move.name]
        self._queues.get(move.path, {}).pop(move.name, None)

    def _give_up(self, move: ReplicaMove, why: str) -> None:
        logger.info("The move of %s to %s is given up: %s", move.name, move.path, why)
        if self._is_current(move) and move.second is not None:
            self._remove_second(move.name, delay_ms=0)
        self._end(move)

    def _remove_second(self, name: TopicPartition, delay_ms: int) -> None:
        folder = self._logs.remove_second(name)
        if folder is not None:
            self._disposal.remove_folder(folder, delay_ms)

    # ── the work ────────────────────────────────────────────────────────────────────────────────
    async def _run(self, path: str) -> None:
        """Work on the moves to the directory ``path`` until there are none."""
        queue = self._queues[path]
        try:
            while queue:
                now_ms = self._runtime.clock.monotonic_ms()
                move = next((one for one in queue.values() if one.not_before_ms <= now_ms), None)
                if move is None:
                    await asyncio.sleep(RETRY_MS / 1000)
                    for one in [one for one in queue.values() if not self._is_current(one)]:
                        self._end(one)
                elif move.second is None or not self._is_current(move):
                    self._end(move)
                else:
                    await self._advance(move, move.second)
        finally:
            del self._queues[path]

    async def _create_futures(self, path: str) -> None:
        """Create the future logs in the directory ``path`` that are asked for, until there are none."""
        try:
            while moves := self._without_future.pop(path, None):
                for first in range(0, len(moves), FOLDERS_AT_ONCE):
                    some = moves[first : first + FOLDERS_AT_ONCE]
                    try:
                        await self._create_some(path, some)
                    except Exception:  # the others must still be created
                        logger.exception("Replicas cannot be moved to %s", path)
                        for move in some:
                            self._end(move)
                await asyncio.shield(self._checkpoints.request(path))
        finally:
            del self._creating[path]

    async def _create_some(self, path: str, moves: list[ReplicaMove]) -> None:
        some = [move for move in moves if self._is_current(move)]
        for move in moves:
            if move not in some:
                self._end(move)
        wall_ms = self._runtime.clock.wall_ms()
        plans = [self._logs.plan_future(move.name, path, wall_ms=wall_ms) for move in some]
        made = await self._offload(lambda: [plan.try_to_make() for plan in plans])
        for move, plan, log in zip(some, plans, made, strict=True):
            if isinstance(log, OSError):
                self._on_copy_failed(move, log)
            elif self._is_current(move):
                move.second = self._logs.add_future(plan, log)
                self._enqueue(move)
                logger.info("%s is moved from %s to %s", move.name, move.log.folder, plan.folder)
            else:  # deleted, or offline, or to be elsewhere
                self._end(move)
                self._disposal.remove_folder(plan.folder)

    async def _advance(self, move: ReplicaMove, second: SecondLog) -> None:
        """Bring the copy nearer to its log, or let both exchange; an error ends or delays the move."""
        try:
            if not await self._is_ready(move, second) or self._may_exchange(move, second):
                return
            if next_step(move.log, second.log).kind is StepKind.COPY:
                await self._wait_for_quota(move)
            if self._is_current(move):
                await self._work(move, second)
        except SourceUnreadable as error:
            self._delay(move)
            if isinstance(error.reason, CorruptRecordFound):
                self._replicas.damaged.report(error.reason)
            elif self._is_current(move):
                move.partition.on_read_error(error.reason)
        except (LogFenced, OSError) as error:
            self._on_copy_failed(move, error)
        except Exception as error:  # the other moves must go on
            logger.error("The copy of %s to %s begins again", move.name, move.path, exc_info=error)
            self._queues[move.path].pop(move.name, None)
            if self._is_current(move):
                self._remove_second(move.name, delay_ms=0)
                move.second = None
                asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._request_future, move)

    def _on_copy_failed(self, move: ReplicaMove, error: LogFenced | OSError) -> None:
        if not self._is_current(move):
            return  # its folder was renamed for deletion
        reason = error.reason if isinstance(error, LogFenced) else error
        if reason.errno == errno.ENOSPC:
            # Not a failure of the directory, which this copy has filled.
            self._give_up(move, f"its disk is full: {reason}")
        else:
            self._on_directory_failure(move.path, reason)

    def _delay(self, move: ReplicaMove) -> None:
        """Let the other moves to this directory go on before this one."""
        move.not_before_ms = self._runtime.clock.monotonic_ms() + RETRY_MS
        queue = self._queues.get(move.path, {})
        if queue.pop(move.name, None) is not None:
            queue[move.name] = move

    async def _is_ready(self, move: ReplicaMove, second: SecondLog) -> bool:
        if second.log.awaits_checkpoint:
            await asyncio.shield(self._checkpoints.request(move.path))
        if not self._is_current(move):
            return False
        if second.log.awaits_checkpoint or move.log.awaits_checkpoint or not move.log.is_in_order:
            self._delay(move)
            return False
        return True

    async def _wait_for_quota(self, move: ReplicaMove) -> None:
        while self._quota.is_limited and (wait_ms := self._quota.wait_ms()):
            if not self._is_current(move):
                return
            await asyncio.sleep(min(wait_ms, WAIT_MS_MAX) / 1000)

    async def _work(self, move: ReplicaMove, second: SecondLog) -> None:
        """Do one piece of the work off the event loop, while nothing else uses the copy."""
        clock, log, copy = self._runtime.clock, move.log, second.log
        copy.configure(log.config)
        wall_ms, step, start, end = (
            clock.wall_ms(),
            next_step(log, copy),
            log.local_start_offset,
            log.log_end_offset,
        )
        truncations = log.truncations
        bytes_max = min(SLICE_BYTES, max(self._quota.bytes_per_second, SLICE_BYTES_MIN))
        is_near = move.is_near or step.kind is StepKind.NOTHING
        flushes = move.unflushed_bytes >= FLUSH_BYTES or (is_near and not move.is_flushed)
        if step.kind is StepKind.START_AGAIN and copy.size:
            logger.info("The copy of %s begins again at offset %d", move.name, step.offset)

        def work() -> Slice:
            copied = Slice(0)
            if step.kind is StepKind.COPY:
                copied = copying.copy_slice(log, copy, bytes_max, truncations=truncations, wall_ms=wall_ms)
                copying.follow_log_start(copy, start, wall_ms=wall_ms)
            elif step.kind is StepKind.TRUNCATE:
                copying.truncate(copy, step.offset, wall_ms=wall_ms)
            elif step.kind is StepKind.START_AGAIN:
                copying.start_again(log, copy, step.offset, wall_ms=wall_ms)
            if flushes:
                copying.flush(copy, wall_ms=wall_ms)
            return copied

        began_us = clock.monotonic_us()
        (copied, is_at_gap), ended_us = await self._offload(lambda: (work(), clock.monotonic_us()))
        lag_us = clock.monotonic_us() - ended_us
        self._quota.record(copied)
        move.unflushed_bytes = 0 if flushes else move.unflushed_bytes + copied
        move.is_flushed |= flushes and is_near
        move.is_near = copied < bytes_max
        if not self._is_current(move):
            return
        second.note_progress()
        if step.kind in (StepKind.TRUNCATE, StepKind.START_AGAIN):
            self._logs.hold_future(second)
            move.is_near = move.is_flushed = False
        move.gap = (copy.log_end_offset, end, truncations) if is_at_gap else None
        if copied >= bytes_max:
            await asyncio.sleep(rest_ms((ended_us - began_us) / 1000, lag_us / 1000) / 1000)

    async def _offload(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the disk's threads."""
        return await run_to_end(self._runtime.disk.offload(work))

    # ── the exchange ────────────────────────────────────────────────────────────────────────────
    def _may_exchange(self, move: ReplicaMove, second: SecondLog) -> bool:
        """Copy what is left, if it is little, and let log and copy exchange their files in the same turn.

        Returns whether that was done. Raises OSError, LogFenced, KafkaError.
        """
        log, copy = move.log, second.log
        if not move.is_flushed or not self._is_at_end(move, log, copy):
            return False
        former = self._logs.replace_by_future(move.name)
        move.second = former
        self.moved += 1
        self._queues[move.path].pop(move.name)
        logger.info(
            "%s is in %s now, with offsets %d to %d",
            move.name,
            log.folder,
            log.local_start_offset,
            log.log_end_offset,
        )
        move.partition.request_flush()
        self._tasks.spawn(self._finish(move, former), name=f"end of the move of {move.name}", kind=_WORK)
        return True

    def _is_at_end(self, move: ReplicaMove, log: Log, copy: Log) -> bool:
        wall_ms, step = self._runtime.clock.wall_ms(), next_step(log, copy)
        if step.kind is StepKind.COPY:
            if move.gap == (copy.log_end_offset, log.log_end_offset, log.truncations):
                copying.extend_over_gap(log, copy, wall_ms=wall_ms)
            else:
                found = log.read(
                    copy.log_end_offset, LAST_BYTES_MAX, log.log_end_offset, min_one=False, only_cached=True
                )
                if found is None or not found.records:
                    return False
                self._quota.record(copying.append_copied(log, copy, found.records, wall_ms=wall_ms))
        return next_step(log, copy).kind is StepKind.NOTHING

    async def _finish(self, move: ReplicaMove, former: SecondLog) -> None:
        """Delete the former folder as soon as the log is durable in its new one."""
        log = move.log
        while not move.is_durable and self._is_current(move):
            move.partition.request_flush()
            await asyncio.sleep(FLUSH_WAIT_S)
        if self._is_current(move):
            path, delay_ms = former.directory.path, log.config.file_delete_delay_ms
            finish = self._logs.finish_move(log, former)
            self._remove_second(move.name, delay_ms)
            try:
                await self._offload(finish)
            except OSError as error:
                self._on_directory_failure(path, error)
        self._end(move)
        if move.then is not None and self._replicas.hosts(move.partition):
            try:
                self.alter(move.name.topic, move.name.partition, move.then)
            except KafkaError as error:
                logger.warning("%s is not moved to %s: %s", move.name, move.then, error)
