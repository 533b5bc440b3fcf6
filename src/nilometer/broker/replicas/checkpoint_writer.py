"""Writes the checkpoint files of the log directories: one write of a directory at a time.

Every new checkpoint is requested here: by the periodic round, for a truncated log, for a deleted log. A write
begins only when the previous one has ended, and its content is read from the logs at that moment. So an old
value never replaces a newer one, and requests that arrive during a write share the next one.

A write that a cancelled task began continues in its thread. The next write waits for it, and so does
:meth:`wait_idle` when the broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from nilometer.broker.tasks import Tasks
from nilometer.runtime import Runtime
from nilometer.storage import TopicPartition
from nilometer.storage.directories.checkpoint_files import CheckpointPlan
from nilometer.storage.directories.log_manager import LogManager


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
        await asyncio.gather(*(asyncio.shield(self.request(path)) for path in paths))

    async def wait_idle(self) -> None:
        """Wait until no thread writes checkpoints any more. Call it after all tasks were cancelled."""
        await asyncio.gather(*self._write.values(), return_exceptions=True)

    async def _run(self, directory: str) -> None:
        while (request := self._requests.get(directory)) is not None:
            # Shielded: cancelling this wait must not cancel the write, which goes on in its thread.
            earlier = [asyncio.shield(write) for write in self._earlier(directory)]
            try:
                await asyncio.gather(*earlier, return_exceptions=True)
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
