"""Asynchronous deletion of files: renamed now, removed from the disk later, off the event loop.

A read of a renamed file has ``file.delete.delay.ms`` to finish. A file of the same name may be deleted again
within that time: each round of compaction may replace the segment of the same base offset. The file is then
removed a full delay after its last deletion.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import posixpath
from collections import deque
from collections.abc import Callable, Sequence

from nilometer.broker.replicas.checkpoint_writer import CheckpointWriter
from nilometer.broker.tasks import Tasks
from nilometer.runtime import Runtime
from nilometer.storage import Log, TopicPartition
from nilometer.storage.directories.log_manager import LogManager

logger = logging.getLogger("nilometer.broker.replicas")


class LogDisposal:
    """Renames and removes files of logs; if removing fails, ``on_directory_failure`` takes the log directory
    offline."""

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

    def delete(self, name: TopicPartition) -> None:
        """Delete a log: its folder is renamed at once, so that a topic of that name can be created again."""
        log = self._logs.get(name)
        if log is None:
            return
        delay_ms = log.config.file_delete_delay_ms
        directory = self._logs.directory_of(name)
        try:
            folder = self._logs.delete(name)
        except OSError as error:
            logger.error("The folder of %s cannot be renamed for deletion: %s", name, error)
            return
        if folder is not None:
            self._checkpoints.request(directory)  # a checkpoint without this log, as Kafka writes one
            self.remove_folder(folder, delay_ms)

    def make_stray(self, name: TopicPartition, why: str) -> None:
        """Take a log out of use for the reason ``why``, and keep its folder, renamed to ``…-stray``."""
        log = self._logs.get(name)
        if log is None:
            return
        folder, directory = log.folder, self._logs.directory_of(name)
        try:
            target = self._logs.make_stray(name)
        except OSError as error:
            logger.error("%s, which %s, cannot be renamed: %s", folder, why, error)
            return
        logger.warning("%s %s: it was renamed to %s and is kept", folder, why, target)
        self._checkpoints.request(directory)  # a checkpoint without this log

    def request_checkpoint(self, log: Log) -> None:
        """Have the checkpoint written that ``log`` waits for, if it does."""
        if log.awaits_checkpoint:
            self._checkpoints.request(self._logs.directory_of(log.topic_partition))

    def remove_folder(self, folder: str, delay_ms: int = 0) -> None:
        """Remove the renamed folder of a deleted log from the disk after ``delay_ms``.

        One after another: a deleted topic may have thousands of them.
        """
        folders = self._folders.setdefault(delay_ms, deque())
        folders.append((self._runtime.clock.monotonic_ms() + delay_ms, folder))
        if len(folders) == 1:
            self._tasks.spawn(self._remove_folders(folders), name="removal of logs")

    def remove_files(self, paths: Sequence[str], delay_ms: int) -> None:
        """Remove files that were renamed to ``.deleted`` from the disk after ``delay_ms``."""
        if not paths:
            return
        deletion = object()
        self._last_deletion.update(dict.fromkeys(paths, deletion))
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._remove_due, paths, deletion)

    async def _remove_folders(self, folders: deque[tuple[int, str]]) -> None:
        while folders:
            due_ms, folder = folders[0]
            await asyncio.sleep(max(0, due_ms - self._runtime.clock.monotonic_ms()) / 1000)
            try:
                await self._carry_out(folder, functools.partial(self._runtime.disk.remove_tree, folder))
            except Exception:  # the others must still be removed
                logger.exception("The folder %s cannot be removed", folder)
            folders.popleft()

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
