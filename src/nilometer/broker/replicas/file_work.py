"""The work on the files of logs beside the event loop: group commits, checkpoint files, and deletion.

Logs that need a flush are flushed together. The checkpoint files of a log directory are written one write at
a time. Files are renamed at once and removed from the disk later.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import posixpath
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import PromptWork
from nilometer.metrics import Distribution
from nilometer.runtime import Runtime
from nilometer.runtime.gathering import gather
from nilometer.storage.directories.checkpoint_files import CheckpointPlan
from nilometer.storage.directories.log_manager import LogManager
from nilometer.storage.flushing import FlushPlan
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.removal import Truncation
from nilometer.storage.tiering import Epochs

logger = logging.getLogger("nilometer.broker.replicas")


RETRY_S = 1.0
"""The delay before a flush is tried again that failed for another reason than its disk."""
FlushEnded = Callable[[Exception | None], None]
"""Is called with None after the flush of a log, or with the error: it is then tried again, unless the log is
fenced."""


class GroupCommit:
    def __init__(self, runtime: Runtime, tasks: Tasks) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._wanting: dict[Log, FlushEnded] = {}
        self._committing: asyncio.Task[None] | None = None
        self.durations = Distribution()
        """How long commits took, until all their logs were synced."""
        self.logs_flushed = 0

    def request(self, log: Log, ended: FlushEnded) -> None:
        """Flush ``log`` up to its current end, then call ``ended``; several requests for a log are one."""
        self._wanting[log] = ended
        if self._committing is None:
            self._committing = self._tasks.service("group commit", self._commit())

    async def _commit(self) -> None:
        try:
            while self._wanting:
                wanting, self._wanting = self._wanting, {}
                plans = await self._plan(wanting)
                began_us = self._runtime.clock.monotonic_us()
                outcomes = await self._runtime.disk.offload(lambda plans=plans: _run(plans))
                now_us = self._runtime.clock.monotonic_us()
                self.durations.observe(now_us - began_us, now_us)
                self.logs_flushed += outcomes.count(None)
                slices = PromptWork(self._runtime.clock.monotonic_us)
                for (log, plan), failure in zip(plans, outcomes, strict=True):
                    await slices.step()
                    if failure is not None:
                        self._fail(log, wanting[log], failure)
                    else:
                        self._note_flushed(log, wanting[log], plan)
        finally:
            self._committing = None

    async def _plan(self, wanting: Mapping[Log, FlushEnded]) -> list[tuple[Log, FlushPlan]]:
        plans: list[tuple[Log, FlushPlan]] = []
        slices = PromptWork(self._runtime.clock.monotonic_us)
        for log, ended in wanting.items():
            await slices.step()
            try:
                plans.append((log, log.flush_plan()))
            except Exception as error:
                self._fail(log, ended, error)
        return plans

    def _note_flushed(self, log: Log, ended: FlushEnded, plan: FlushPlan) -> None:
        try:
            log.mark_flushed(plan, wall_ms=self._runtime.clock.wall_ms())
            ended(None)
        except Exception as error:
            self._fail(log, ended, error)

    def _fail(self, log: Log, ended: FlushEnded, error: Exception) -> None:
        if isinstance(error, OSError):
            logger.error("Flushing %s failed: %s", log.topic_partition, error)
        ended(error)
        if log.failure is None:
            asyncio.get_running_loop().call_later(RETRY_S, self._retry, log, ended)

    def _retry(self, log: Log, ended: FlushEnded) -> None:
        if not self._tasks.is_stopping and log.failure is None:
            self.request(log, ended)


def _run(plans: list[tuple[Log, FlushPlan]]) -> list[Exception | None]:
    outcomes: list[Exception | None] = []
    for _, plan in plans:
        try:
            plan.run()
            outcomes.append(None)
        except Exception as error:
            outcomes.append(error)
    return outcomes


class CheckpointWriter:
    def __init__(
        self,
        runtime: Runtime,
        logs: LogManager,
        tasks: Tasks,
        high_watermarks: Callable[[], Mapping[TopicPartition, int]],
        on_directory_failure: Callable[[str, Exception], None],
    ) -> None:
        """``high_watermarks`` returns those of all partitions hosted now."""
        self._runtime = runtime
        self._logs = logs
        self._tasks = tasks
        self._on_directory_failure = on_directory_failure
        self._high_watermarks = high_watermarks
        self._requests: dict[str, asyncio.Future[None]] = {}
        """By directory: the future of the next write, which has not begun yet."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._write: dict[str, asyncio.Future[bool]] = {}
        """The last write of each directory."""

    def request(self, directory: str) -> asyncio.Future[None]:
        """Request a checkpoint of ``directory``.

        The future is done once a checkpoint that was begun after this call is on disk, or the directory is
        offline.
        """
        request = self._requests.get(directory)
        if request is None:
            request = self._requests[directory] = asyncio.get_running_loop().create_future()
            request.add_done_callback(lambda done: done.cancelled() or done.exception())  # may have no waiter
            running = self._running.get(directory)
            if running is None or running.done():
                work = self._run(directory)
                self._running[directory] = self._tasks.spawn(
                    work, name=f"checkpoints of {directory}", kind="checkpoints"
                )
        return request

    def start(self, interval_ms: int) -> None:
        """Begin the periodic rounds."""
        self._tasks.periodic("checkpoints", interval_ms, self.write_all)

    async def write_all(self) -> None:
        """Write the checkpoints of all directories that are not offline. Returns when they are on disk."""
        paths = [each.path for each in self._logs.directories if each.failure is None]
        await gather(*(asyncio.shield(self.request(path)) for path in paths))

    async def wait_idle(self) -> None:
        """Wait until no thread writes checkpoints any more. Call it after all tasks were cancelled."""
        await gather(*self._write.values(), return_exceptions=True)

    async def _run(self, directory: str) -> None:
        while (request := self._requests.get(directory)) is not None:
            # Shielded: cancelling this wait must not cancel the write, which goes on in its thread.
            earlier = [asyncio.shield(write) for write in self._earlier(directory)]
            try:
                await gather(*earlier, return_exceptions=True)
                del self._requests[directory]
                for plan in self._logs.plan_checkpoints(self._high_watermarks(), directory):
                    await self._write_plan(plan)
            except BaseException as error:
                # A later request fails, too: no task is left that would carry it out.
                for failed in {request, self._requests.pop(directory, request)}:
                    failed.set_exception(error) if isinstance(error, Exception) else failed.cancel()
                raise
            request.set_result(None)

    def _earlier(self, directory: str) -> list[asyncio.Future[bool]]:
        write = self._write.get(directory)
        return [] if write is None or write.done() else [write]

    async def _write_plan(self, plan: CheckpointPlan) -> None:
        self._write[plan.directory] = write = asyncio.ensure_future(self._runtime.disk.offload(plan.run))
        try:
            if await asyncio.shield(write):
                self._logs.note_checkpoint(plan)
        except OSError as error:
            self._on_directory_failure(plan.directory, error)


class LogDisposal:
    """Takes logs and parts of them out of use, renames and removes their files; if removing fails,
    ``on_directory_failure`` takes the log directory offline."""

    def __init__(
        self,
        runtime: Runtime,
        logs: LogManager,
        tasks: Tasks,
        checkpoints: CheckpointWriter,
        on_directory_failure: Callable[[str, Exception], None],
    ) -> None:
        self._runtime = runtime
        self._logs = logs
        self._tasks = tasks
        self._on_directory_failure = on_directory_failure
        self._checkpoints = checkpoints
        self._last_deletion: dict[str, object] = {}
        """By path of a file to be removed: an object that identifies the path's last deletion."""
        self._folders: dict[int, deque[tuple[int, str]]] = {}
        """By delay (ms): when a folder is to be removed (monotonic time), and the folder."""

    def delete(self, name: TopicPartition, delay_max_ms: int) -> None:
        """Delete a log: its folder is renamed at once, so that a topic of that name can be created again.

        ``delay_max_ms``: so long the folder stays at most, whatever its topic's settings say: no client sees
        it any more.
        """
        log = self._logs.get(name)
        if log is None:
            return
        delay_ms = min(log.config.file_delete_delay_ms, delay_max_ms)
        directory = self._logs.directory_of(name)
        try:
            folder = self._logs.delete(name)
        except OSError as error:
            logger.error("The folder of %s cannot be renamed for deletion: %s", name, error)
            return
        if folder is not None:
            self._checkpoints.request(directory)  # a checkpoint without this log, as Kafka writes one
            self.remove_folder(folder, delay_ms)
            if log.producers.producers:
                self._tasks.release(log.producers.forget())
        self._delete_second(name)

    def _delete_second(self, name: TopicPartition) -> None:
        """Delete the other log of a partition that was being moved between log directories."""
        if (second := self._logs.seconds.get(name)) is None:
            return
        if (folder := self._logs.remove_second(name)) is not None:
            self._checkpoints.request(second.directory.path)
            self.remove_folder(folder)

    def make_stray(self, name: TopicPartition, why: str) -> None:
        """Take a log out of use for the reason ``why``, and keep its folder, renamed to ``…-stray``."""
        log = self._logs.get(name)
        if log is None:
            return
        folder, directory = log.folder, self._logs.directory_of(name)
        try:
            target = self._logs.make_stray(name)
        except OSError as error:
            logger.error(
                "%s, which %s, cannot be renamed to …-stray: %s. Its log directory is offline: repair the "
                "disk, then restart this broker",
                folder,
                why,
                error,
            )
            return
        logger.warning("%s %s: it was renamed to %s and is kept", folder, why, target)
        self._checkpoints.request(directory)  # a checkpoint without this log
        self._delete_second(name)

    def truncate_to(self, log: Log, offset: int) -> asyncio.Future[None] | None:
        """Remove the records of ``log`` at or above ``offset``; return as :meth:`request_checkpoint`."""
        return self._remove_truncated(log, self._logs.truncate_to(log, offset, wall_ms=self._wall_ms()))

    def truncate_fully_and_start_at(self, log: Log, offset: int) -> asyncio.Future[None] | None:
        """Remove all records of ``log``, which starts at ``offset`` then; return as
        :meth:`request_checkpoint`."""
        truncation = self._logs.truncate_fully_and_start_at(log, offset, wall_ms=self._wall_ms())
        return self._remove_truncated(log, truncation)

    def start_in_tier(
        self, log: Log, offset: int, *, log_start_offset: int, epochs: Epochs, producers: bytes
    ) -> asyncio.Future[None] | None:
        """Let ``log`` go on at ``offset`` behind records in remote storage; return as
        :meth:`request_checkpoint`."""
        truncation = self._logs.start_in_tier(
            log,
            offset,
            log_start_offset=log_start_offset,
            epochs=epochs,
            producers=producers,
            wall_ms=self._wall_ms(),
        )
        return self._remove_truncated(log, truncation)

    def _remove_truncated(self, log: Log, truncation: Truncation) -> asyncio.Future[None] | None:
        self.remove_files(truncation.removable, log.config.file_delete_delay_ms)
        return self.request_checkpoint(log)

    def _wall_ms(self) -> int:
        return self._runtime.clock.wall_ms()

    def request_checkpoint(self, log: Log) -> asyncio.Future[None] | None:
        """Have the checkpoint written that ``log`` waits for; return its write, or None if it waits for
        none."""
        if not log.awaits_checkpoint:
            return None
        return self._checkpoints.request(self._logs.directory_of(log.topic_partition))

    def remove_folder(self, folder: str, delay_ms: int = 0) -> None:
        """Remove the renamed folder of a deleted log from the disk after ``delay_ms``.

        One after another: a deleted topic may have thousands of them.
        """
        folders = self._folders.setdefault(delay_ms, deque())
        folders.append((self._runtime.clock.monotonic_ms() + delay_ms, folder))
        if len(folders) == 1:
            self._tasks.spawn(self._remove_folders(delay_ms, folders), name="removal of logs")

    def remove_files(self, paths: Sequence[str], delay_ms: int) -> None:
        """Remove files that were renamed to ``.deleted`` from the disk after ``delay_ms``."""
        if not paths:
            return
        deletion = object()
        self._last_deletion.update(dict.fromkeys(paths, deletion))
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._remove_due, paths, deletion)

    async def _remove_folders(self, delay_ms: int, folders: deque[tuple[int, str]]) -> None:
        while folders:
            due_ms, folder = folders[0]
            await asyncio.sleep(max(0, due_ms - self._runtime.clock.monotonic_ms()) / 1000)
            try:
                await self._carry_out(folder, functools.partial(self._runtime.disk.remove_tree, folder))
            except Exception:  # the others must still be removed
                logger.exception("The folder %s cannot be removed", folder)
            folders.popleft()
        del self._folders[delay_ms]

    def _remove_due(self, paths: Sequence[str], deletion: object) -> None:
        due = [path for path in paths if self._last_deletion.get(path) is deletion]
        for path in due:
            del self._last_deletion[path]
        if due and not self._tasks.is_stopping:  # else the next start removes them
            self._tasks.spawn(self._remove_files(due), name="removal of old segments")

    async def _remove_files(self, paths: Sequence[str]) -> None:
        def remove() -> None:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):  # its folder may be gone
                    self._runtime.disk.remove(path)

        await self._carry_out(posixpath.dirname(paths[0]), remove)

    async def _carry_out(self, folder: str, work: Callable[[], None]) -> None:
        """Run ``work``, which removes files of the partition folder ``folder``, off the event loop.

        If its log directory is offline, the files stay until the next start. If ``work`` fails, the directory
        is taken offline.
        """
        directory = posixpath.dirname(folder)
        if self._logs.is_offline(directory):
            return
        try:
            await self._runtime.disk.offload(work)
        except OSError as error:
            self._on_directory_failure(directory, error)
