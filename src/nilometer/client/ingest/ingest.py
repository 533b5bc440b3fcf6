"""Reads lines from files and sends them as records, so that no line is lost or sent twice. Does I/O.

Each record has the headers ``path``, ``line`` (counted from 1) and ``source`` (the id of the source, that is
the file, in this ingest). A *checkpoint* waits until everything sent is acknowledged, and then saves the
positions in the state file. After a crash the lines after the last checkpoint are read again, and those that
are in the topic already are skipped: the topic is read back.

Invariant: the state file contains a source, and its first bytes' hash, before the first of its lines is sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from nilometer.client.ingest.found_files import Look
from nilometer.client.ingest.ledger import IngestOptions, IngestTotals, Ledger, LineRefused
from nilometer.client.ingest.line_sender import LineSender, learn_record_limit
from nilometer.client.ingest.line_splitter import LineTooLong
from nilometer.client.ingest.matching import UTF16, is_utf16
from nilometer.client.ingest.source import HEAD_BYTES, Source
from nilometer.client.ingest.source_files import OsFiles
from nilometer.client.ingest.source_run import SourceRun
from nilometer.client.ingest.tracker import NotText, Tracker
from nilometer.client.producer.producer import Producer
from nilometer.client.settings import COMMON_KEYS, GivenConfig
from nilometer.runtime import Runtime

T = TypeVar("T")
POLL_MS = 200
RESCAN_MS = 1_000
LOOK_SHARE = 75
"""The pause after a look is at least this many times as long as the look took."""
RETIRE_MS = 10_000
"""A file that was renamed or removed is closed when it has not grown for this time."""
LAST_LINE_MS = 600_000
"""The last line of such a file, if it has no newline, is sent when the file has not grown for this time."""
EVENT_MS = 2_000
"""An event whose lines are joined is complete when no line has come for this time."""
LOOKS_MAX = 10
"""The maximum number of looks of a run without ``follow``, for files that are renamed while it reads."""
TORN = "ends in the middle of its compressed content"


class Ingest:
    """One run: :meth:`run` reads everything once, or follows until :meth:`stop`."""

    def __init__(
        self,
        runtime: Runtime,
        config: GivenConfig,
        options: IngestOptions,
        on_progress: Callable[[IngestTotals], None] = lambda _totals: None,
    ) -> None:
        self.totals = IngestTotals()
        self._runtime = runtime
        self._options = options
        self._connect_config = {key.name: config[key.name] for key in COMMON_KEYS if key.name in config}
        self._producer = Producer(runtime, {**config, "acks": "all", "enable.idempotence": True})
        self._on_progress = on_progress
        self._ledger_or_none: Ledger | None = None
        self._paths = [os.path.abspath(path) for path in options.paths]
        self._files = OsFiles(self._paths, follow=options.follow)
        self._tracker_or_none: Tracker | None = None
        self._sender_or_none: LineSender | None = None
        self._newest_look: Look | None = None
        self._look_took_ms = 0
        self._complained: dict[str, None] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End a run that follows, after a last checkpoint."""
        self._stopping.set()

    async def run(self) -> IngestTotals:
        """Perform the run and return its totals.

        Raises KafkaError, LineRefused, BadState, LockHeld, OSError; ``totals`` then counts the lines sent so
        far.
        """
        disk = self._runtime.disk
        state_path = self._options.state_path
        await disk.offload(lambda: _make_folder_of(self._runtime, state_path))
        lock = disk.lock(f"{state_path}.lock")
        try:
            async with self._producer:
                self._ledger_or_none = await Ledger.open(
                    self._runtime, self._options, self._producer, self._connect_config
                )
                self._tracker_or_none = Tracker(
                    self._files, self._ledger.state, self._paths, self._complain, follow=self._options.follow
                )
                await self._read()
                await self._ledger.close()
        finally:
            if self._tracker_or_none is not None:
                for run in self._tracker_or_none.runs.values():
                    run.close()
            self._files.close()
            lock.release()
        return self.totals

    async def _read(self) -> None:
        topic, ledger = self._options.topic, self._ledger
        limit = await learn_record_limit(self._runtime, self._connect_config, self._producer.config, topic)
        self._sender_or_none = LineSender(self._producer, ledger, self._options, self.totals, limit)
        try:
            await (self._follow() if self._options.follow else self._read_once())
        except LineRefused:
            await self._producer.flush()  # the lines before it, and those of other files, are still sent
            raise

    @property
    def _sender(self) -> LineSender:
        assert self._sender_or_none is not None, "made before anything is read"
        return self._sender_or_none

    @property
    def _ledger(self) -> Ledger:
        assert self._ledger_or_none is not None, "opened before anything is read"
        return self._ledger_or_none

    @property
    def _tracker(self) -> Tracker:
        assert self._tracker_or_none is not None, "made before anything is read"
        return self._tracker_or_none

    # --- files

    async def _look(self) -> Look:
        """List the files, in a thread. Waits for nothing but the file system."""
        known, clock = self._tracker.known, self._runtime.clock

        def timed() -> Look:
            begun_ms = clock.monotonic_ms()  # the wait for a thread is not counted
            look = self._files.look(known)
            self._look_took_ms = clock.monotonic_ms() - begun_ms
            return look

        look = await self._offload_whole(timed)
        self.totals.looks += 1
        return look

    async def _take(self, look: Look) -> None:
        """Apply a look to the tracker; save the state if there are new sources, before reading them."""
        clock = self._runtime.clock
        now_ms, wall_ms = clock.monotonic_ms(), clock.wall_ms()
        to_save = await self._offload_whole(lambda: self._tracker.take(look, now_ms, wall_ms))
        self.totals.skipped = dict(self._tracker.skipped)
        if to_save:
            await self._ledger.save()

    async def _offload_whole(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread; when cancelled, wait for its end: it uses files that are closed then."""
        working = asyncio.ensure_future(self._runtime.disk.offload(work))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working])
            raise

    def _complain(self, path: str, error: str) -> None:
        """Add an error to the totals, once."""
        message = f"{path}: {error}"
        if message not in self._complained:
            self._complained[message] = None
            self.totals.errors.append(message)

    async def _ready(self) -> list[SourceRun]:
        now_ms = self._runtime.clock.monotonic_ms()
        return await self._offload_whole(lambda: self._tracker.ready(now_ms))

    # --- reading

    async def _read_once(self) -> None:
        """Read all files once; look again for files that were renamed before they were read."""
        last: Look | None = None
        for _ in range(LOOKS_MAX):
            look = await self._look()
            if look.is_as(last):
                break
            await self._take(look)
            self.totals.bytes_total = self.totals.bytes_read + self._tracker.bytes_waiting
            while not self._stopping.is_set() and (runs := await self._ready()):
                for run in runs:
                    await self._read_to_end(run)
            if not self._tracker.wants_look or self._stopping.is_set():
                break
            last = look
        await self._checkpoint()

    async def _read_to_end(self, run: SourceRun) -> None:
        before = self.totals.bytes_read
        while not self._stopping.is_set() and await self._pump(run):
            self.totals.bytes_read = before + run.raw_position
            self._on_progress(self.totals)
        if run.at_end:
            if run.is_compressed and not run.is_complete:
                self._complain(run.path, TORN)
            run.finished = await self._finish_last_line(run) and run.is_complete
        self._tracker.close(run)

    async def _follow(self) -> None:
        looking = asyncio.create_task(self._keep_looking())
        taken: Look | None = None
        try:
            while not self._stopping.is_set():
                if looking.done():
                    looking.result()
                look = self._newest_look
                if look is not None and look is not taken:
                    if self._tracker.wants_look or not look.is_as(taken):
                        await self._take(look)
                    taken = look
                busy = False
                for run in await self._ready():
                    busy = await self._pump(run) or busy
                await self._flush_idle()
                await self._retire_idle()
                self._count_bytes()
                self._on_progress(self.totals)
                if not busy:
                    await self._maybe_checkpoint()
                    await self._pause(POLL_MS)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        for run in list(self._tracker.runs.values()):
            if run.deleted:
                await self._finish_last_line(run)  # the next run cannot find the deleted file
            await self._sender.flush(run)
        await self._checkpoint()

    async def _keep_looking(self) -> None:
        """Look at the files regularly, also while sending waits for the broker; large folders less often."""
        while True:
            self._newest_look = await self._look()
            await self._pause(max(RESCAN_MS, self._look_took_ms * LOOK_SHARE))

    async def _flush_idle(self) -> None:
        """Send the open events to which no line has come for ``EVENT_MS``."""
        now_ms = self._runtime.clock.monotonic_ms()
        for run in list(self._tracker.runs.values()):
            if run.joiner.lines and now_ms - run.grew_ms >= EVENT_MS:
                await self._sender.flush(run)

    async def _retire_idle(self) -> None:
        """Close renamed and deleted files that have not grown for ``RETIRE_MS``.

        A file whose last line has no newline stays open, since its writer may pause; after ``LAST_LINE_MS``
        the line is sent as it is.
        """
        now_ms = self._runtime.clock.monotonic_ms()
        for run in self._tracker.idle(now_ms, RETIRE_MS):
            idle_ms = now_ms - run.grew_ms
            if run.is_compressed and not run.is_complete:
                self._complain(run.path, TORN)
            is_over = run.is_complete or (run.displaced and idle_ms >= LAST_LINE_MS)
            if is_over and not await self._finish_last_line(run):
                continue
            if run.displaced and not (run.splitter.rest_bytes or run.joiner.lines):
                run.finished = True
                self._tracker.close(run)

    def _count_bytes(self) -> None:
        runs = self._tracker.runs.values()
        self.totals.bytes_read = sum(run.raw_position for run in runs)
        self.totals.bytes_total = sum(run.size for run in runs)

    async def _pump(self, run: SourceRun) -> bool:
        """Read and send one piece of a file; return False at its end, or if it cannot be read further."""
        number = run.source.number
        try:
            piece = await self._offload_whole(run.read)
            data = piece.data
        except (OSError, EOFError) as error:
            self._tracker.on_unreadable(number, error, self._runtime.clock.monotonic_ms())
            return False
        if not piece.is_intact:
            self._tracker.wants_look = True
            return False
        if not data:
            self._tracker.on_read_to_end(run)
            return False
        if not run.source.known.offset:
            await self._preview(run, data)
        run.grew_ms = self._runtime.clock.monotonic_ms()
        try:
            if not run.mark.position and is_utf16(data):
                raise NotText(UTF16)
            await self._sender.take(run, data)
        except (LineTooLong, NotText) as error:
            self._tracker.on_unreadable(number, error, self._runtime.clock.monotonic_ms())
            return False
        await self._maybe_checkpoint()
        return True

    async def _preview(self, run: SourceRun, data: bytes) -> None:
        """Save the hash of the first bytes of a file that was empty when found, before sending its lines."""
        self._tracker.preview(run, data[:HEAD_BYTES])
        await self._ledger.save()

    async def _finish_last_line(self, run: SourceRun) -> bool:
        """Send a last line without a newline; return False if it is too long, which stops the file."""
        try:
            await self._sender.finish(run)
        except LineTooLong as error:
            now_ms = self._runtime.clock.monotonic_ms()
            self._tracker.on_unreadable(run.source.number, error, now_ms)
            return False
        return True

    async def _maybe_checkpoint(self) -> None:
        if self._ledger.is_checkpoint_due():
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        def positions() -> dict[int, Source]:
            self._tracker.settle()
            return self._tracker.live

        await self._ledger.checkpoint(positions)

    async def _pause(self, pause_ms: float) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._stopping.wait()
        except TimeoutError:
            pass  # the pause is over


def _make_folder_of(runtime: Runtime, path: str) -> None:
    folder, _, _ = path.rpartition("/")
    if folder:
        runtime.disk.make_directories(folder)
