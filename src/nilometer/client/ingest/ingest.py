"""Files in, records out: reads lines, sends them, and keeps account so that none is lost or repeated.

Each record carries the headers ``path``, ``line`` (counted from 1) and ``source`` (which life of which
file). At a *checkpoint* everything sent is acknowledged, and only then does the state say so. After a
crash the lines behind the last checkpoint are read again, and those that the topic has already (it is
asked) are passed over.

Invariant: the state knows a source, and how it begins, before the first of its lines is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nilometer.client.ingest import source_files
from nilometer.client.ingest.ledger import Ledger
from nilometer.client.ingest.line_splitter import LineTooLong
from nilometer.client.ingest.matching import FoundFile, match
from nilometer.client.ingest.options import IngestOptions, IngestTotals, LineRefused
from nilometer.client.ingest.read_back import LINE_HEADER
from nilometer.client.ingest.source import HEAD_BYTES, Source
from nilometer.client.ingest.source_run import SourceRun
from nilometer.client.producer.producer import Producer
from nilometer.client.settings.client_settings import GivenConfig
from nilometer.client.settings.common_keys import COMMON_KEYS
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

POLL_MS = 200
RESCAN_MS = 1_000
RETIRE_MS = 10_000
"""A file that was renamed or removed is given up when it has not grown for so long: nobody writes to it."""


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
        self._runs: dict[int, SourceRun] = {}
        self._judged: dict[tuple[object, ...], bool] = {}
        self._complained: dict[str, None] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End a run that follows, after a last checkpoint."""
        self._stopping.set()

    async def run(self) -> IngestTotals:
        """Raises KafkaError, LineRefused, BadState, LockHeld, OSError; what was acknowledged is counted."""
        disk = self._runtime.disk
        state_path = self._options.state_path
        await disk.offload(lambda: _make_folder_of(self._runtime, state_path))
        lock = disk.lock(f"{state_path}.lock")
        try:
            async with self._producer:
                self._ledger_or_none = await Ledger.open(
                    self._runtime, self._options, self._producer, self._connect_config
                )
                if self._options.follow:
                    await self._follow()
                else:
                    await self._read_once()
                await self._ledger.close()
        finally:
            for run in self._runs.values():
                run.reader.close()
            lock.release()
        return self.totals

    @property
    def _ledger(self) -> Ledger:
        assert self._ledger_or_none is not None, "opened before anything is read"
        return self._ledger_or_none

    # --- files

    async def _scan(self) -> list[tuple[Source, FoundFile]]:
        """Look at what is there; the sources to be read, those new to the state saved in it."""
        await self._ledger.checkpoint(self._runs.values())
        ledger = self._ledger
        state = ledger.state
        sources = [source for _, source in sorted(state.sources.items())]
        files = source_files.find_files(self._options.paths, self._complain, follow=self._options.follow)
        asked = [source for source in sources if _is_asked_for(source, self._options.paths)]
        files += source_files.find_siblings(asked, files)
        matches = match(sources, files, self._begins_with)
        to_read: list[tuple[Source, FoundFile]] = []
        for source, file in matches.resumed:
            state.sources[source.number] = source
            grown = not file.is_compressed and file.size > source.offset
            if not source.finished or grown:
                to_read.append((source, file))
        for file in matches.new:
            source = state.add(file.path, file.device, file.inode).previewed(source_files.preview(file.path))
            state.sources[source.number] = source
            to_read.append((source, file))
        for source in matches.lost:
            self._on_lost(source)
        known = {source.number for source, _ in to_read} | self._runs.keys()
        for number in [number for number in ledger.there if number not in known]:
            del ledger.there[number]  # nobody will come by these lines any more
        if matches.new:
            await ledger.save()
        return to_read

    def _on_lost(self, source: Source) -> None:
        """Its file is nowhere. While it is open and as it was it is read on.

        It stays in the state: a folder that is not mounted now may be back at the next run.
        """
        run = self._runs.get(source.number)
        if run is not None and run.is_intact():
            run.displaced = True
        elif run is not None:
            self._close(run)

    def _begins_with(self, file: FoundFile, source: Source) -> bool:
        run = self._runs.get(source.number)
        if run is not None and run.is_still(file):
            return run.is_intact()
        key = (file.device, file.inode, file.size, source.known)
        judged = self._judged.get(key)
        if judged is None:
            judged = self._judged[key] = source_files.begins_with(file, source)
        return judged

    def _complain(self, path: str, problem: str) -> None:
        message = f"{path}: {problem}"
        if message not in self._complained:
            self._complained[message] = None
            self.totals.problems.append(message)

    def _open(self, source: Source, file: FoundFile) -> SourceRun | None:
        try:
            run = SourceRun(source, file, self._ledger.state.tag(source.number))
        except (OSError, EOFError) as problem:
            self._complain(file.path, getattr(problem, "strerror", None) or str(problem))
            return None
        self._runs[source.number] = run
        run.grew_ms = self._runtime.clock.monotonic_ms()
        return run

    def _close(self, run: SourceRun) -> None:
        run.reader.close()
        if self._runs.pop(run.source.number, None) is not None:
            self._ledger.on_closed(run)

    # --- reading

    async def _read_once(self) -> None:
        to_read = await self._scan()
        self.totals.bytes_total = sum(file.size for _, file in to_read)
        before = 0
        for source, file in to_read:
            run = self._open(source, file)
            if run is not None:
                while not self._stopping.is_set() and await self._pump(run):
                    self.totals.bytes_read = before + run.reader.raw_position()
                    self._on_progress(self.totals)
                if run.at_end:
                    await self._finish_last_line(run)
                    run.finished = file.is_compressed
                self._close(run)
            before += file.size
            self.totals.bytes_read = before
            self._on_progress(self.totals)
        await self._ledger.checkpoint(self._runs.values())

    async def _follow(self) -> None:
        rescan_ms = 0
        while not self._stopping.is_set():
            now_ms = self._runtime.clock.monotonic_ms()
            if now_ms >= rescan_ms:
                await self._rescan()
                rescan_ms = now_ms + RESCAN_MS
            busy = False
            for run in list(self._runs.values()):
                if run.is_intact():
                    busy = await self._pump(run) or busy
                else:
                    rescan_ms = 0  # truncated: what is there now is another source
                if run.displaced:
                    await self._maybe_retire(run)
            self.totals.bytes_read = sum(run.reader.raw_position() for run in self._runs.values())
            self.totals.bytes_total = sum(run.reader.size() for run in self._runs.values())
            self._on_progress(self.totals)
            if not busy:
                await self._maybe_checkpoint()
                await self._pause()
        await self._ledger.checkpoint(self._runs.values())

    async def _rescan(self) -> None:
        for source, file in await self._scan():
            run = self._runs.get(source.number)
            if run is not None and run.is_still(file):
                run.path = file.path  # renamed, perhaps
                run.displaced = file.path != source.path
                continue
            if run is not None:
                self._close(run)
            self._open(source, file)

    async def _maybe_retire(self, run: SourceRun) -> None:
        """Its name is gone or another: read to the end, it is done with when nobody writes to it any more."""
        idle_ms = self._runtime.clock.monotonic_ms() - run.grew_ms
        if run.at_end and idle_ms >= RETIRE_MS:
            await self._finish_last_line(run)
            run.finished = True
            self._close(run)
            await self._ledger.checkpoint(self._runs.values())

    async def _pump(self, run: SourceRun) -> bool:
        """Read and send one piece; False at the end of the file."""
        try:
            data = await self._runtime.disk.offload(run.reader.read)
            lines = run.splitter.feed(data) if data else []
        except (OSError, EOFError, LineTooLong) as problem:
            self._complain(run.path, getattr(problem, "strerror", None) or str(problem))
            self._close(run)
            return False
        run.at_end = not data
        if not data:
            return False
        if not run.source.known.offset:
            await self._preview(run, data)
        run.mark.feed(data)
        run.grew_ms = self._runtime.clock.monotonic_ms()
        for line in lines:
            await self._send(run, line)
        await self._maybe_checkpoint()
        return True

    async def _preview(self, run: SourceRun, data: bytes) -> None:
        """It was empty when it was found: have the state know how it begins before a line of it is sent."""
        run.source = run.source.previewed(data[:HEAD_BYTES])
        self._ledger.state.sources[run.source.number] = run.source
        await self._ledger.save()

    async def _finish_last_line(self, run: SourceRun) -> None:
        """The end is the end: a last line without a newline is a line."""
        line = run.splitter.finish()
        if line is not None:
            run.mark.finish()
            await self._send(run, line)

    async def _send(self, run: SourceRun, line: bytes) -> None:
        run.lines += 1
        if self._ledger.take_there(run, line):
            self.totals.lines_there += 1
            return
        path, source = run.headers
        key = path[1] if self._options.key_by_path else None
        headers = (path, (LINE_HEADER, b"%d" % run.lines), source)
        try:
            delivery = await self._producer.send(self._options.topic, line, key=key, headers=headers)
        except KafkaError as problem:
            raise LineRefused(f"{run.path}, line {run.lines}: {problem}") from problem
        self._ledger.on_sent(delivery, run, run.lines)
        self.totals.lines += 1
        self.totals.files[run.source.path] = self.totals.files.get(run.source.path, 0) + 1

    async def _maybe_checkpoint(self) -> None:
        if self._ledger.is_checkpoint_due():
            await self._ledger.checkpoint(self._runs.values())

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(POLL_MS / 1000):
                await self._stopping.wait()
        except TimeoutError:
            pass  # time to look at the files again


def _is_asked_for(source: Source, paths: Sequence[str]) -> bool:
    return any(source_files.is_at_or_in(source.path, path) for path in paths)


def _make_folder_of(runtime: Runtime, path: str) -> None:
    folder, _, _ = path.rpartition("/")
    if folder:
        runtime.disk.make_directories(folder)
