"""Files in, records out: reads lines, sends them, and keeps account so that none is lost or repeated.

Each record carries the headers ``path``, ``line`` (counted from 1) and ``source`` (which life of which
file). At a *checkpoint* everything sent is acknowledged, and only then does the state say so. After a
crash the lines behind the last checkpoint are read again, and those that the topic has already (it is
asked) are passed over.

Invariants:

- The state knows a source, and how it begins, before the first of its lines is sent.
- The state's count of a source never passes a line that is not acknowledged.
- The state's offset of a partition never passes a line that no source counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nilometer.client.ingest import source_files
from nilometer.client.ingest.line_splitter import LineSplitter, LineTooLong
from nilometer.client.ingest.matching import GZIP_SUFFIX, FoundFile, match
from nilometer.client.ingest.read_back import LINE_HEADER, PATH_HEADER, SOURCE_HEADER, LinesThere, read_back
from nilometer.client.ingest.source import HEAD_BYTES, ContentMark, Source
from nilometer.client.ingest.state_file import IngestState, encode_state, load_state
from nilometer.client.producer.delivery import Delivery
from nilometer.client.producer.producer import Producer
from nilometer.client.settings import GivenConfig
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

CHECKPOINT_LINES = 50_000
CHECKPOINT_MS = 1_000
POLL_MS = 200
RESCAN_MS = 1_000
RETIRE_MS = 10_000
"""A file that was renamed or removed is given up when it has not grown for so long: nobody writes to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    paths: Sequence[str]
    topic: str
    state_path: str
    follow: bool = False
    key_by_path: bool = False
    """Give all lines of a file the same key, and so the same partition and their order."""


@dataclass(slots=True)
class IngestTotals:
    lines: int = 0
    lines_there: int = 0
    """Lines that were in the topic already."""
    bytes_read: int = 0
    bytes_total: int = 0
    """Of the files being read, as they lie there."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """Lines sent, by file."""
    problems: list[str] = field(default_factory=list[str])


class LineRefused(Exception):
    """A line that the topic does not take; the message names file, line and reason."""


class _Run:
    """A source that is being read."""

    def __init__(self, source: Source, file: FoundFile, tag: bytes) -> None:
        self.source = source
        self.path = file.path
        self.reader = source_files.ContentReader(file.path)
        try:
            self.mark = ContentMark(self.reader.read_range, source.offset)
            self.reader.seek(source.offset)
        except BaseException:
            self.reader.close()
            raise
        self.splitter = LineSplitter()
        self.lines = source.lines
        self.headers = [(PATH_HEADER, source.path.encode("utf-8", "surrogateescape")), (SOURCE_HEADER, tag)]
        self.displaced = file.path != source.path
        """The name that the source was found under is another file's by now, or nobody's."""
        self.finished = False
        """Its end is final."""
        self.grew_ms = 0
        self.at_end = False

    def is_still(self, file: FoundFile) -> bool:
        return self.reader.identity == (file.device, file.inode)

    def is_intact(self) -> bool:
        """Whether what was read is still there: neither truncated nor written anew."""
        if self.path.endswith(GZIP_SUFFIX):
            return True
        position, recent = self.mark.position, self.mark.recent
        begin = position - len(recent)
        return self.reader.size() >= position and self.reader.read_range(begin, position) == recent


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
        self._connect_config = {
            name: config[name] for name in ("bootstrap.servers", "client.id") if name in config
        }
        self._producer = Producer(runtime, {**config, "acks": "all", "enable.idempotence": True})
        self._on_progress = on_progress
        self._state: IngestState | None = None
        self._there: LinesThere = {}
        self._ends: dict[int, int] = {}
        self._runs: dict[int, _Run] = {}
        self._ended: list[_Run] = []
        """Closed since the last checkpoint."""
        self._sent: list[tuple[Delivery, _Run, int]] = []
        self._checkpoint_ms = 0
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
                await self._open_state()
                if self._options.follow:
                    await self._follow()
                else:
                    await self._read_once()
        finally:
            for run in self._runs.values():
                run.reader.close()
            lock.release()
        return self.totals

    # --- state

    async def _open_state(self) -> None:
        options = self._options
        topic = await self._producer.client.topic(options.topic, self._producer.config.max_block_ms)
        cluster_id = self._producer.client.metadata.cluster_id or ""
        topic_id = str(topic.topic_id or "")
        state = load_state(self._runtime.disk, options.state_path)
        if state is not None and state.topic != options.topic:
            raise ValueError(
                f"{options.state_path} is the state of an ingest into topic {state.topic}; "
                f"give another file with --state for topic {options.topic}"
            )
        if state is None or (state.cluster_id, state.topic_id) != (cluster_id, topic_id):
            # Another cluster, or a topic created anew: it has none of the lines.
            name = self._runtime.entropy.uuid().hex[:8]
            state = IngestState(name, cluster_id, options.topic, topic_id)
        self._state = state
        self._there, self._ends = await read_back(self._runtime, self._connect_config, state)
        if not self._there:
            state.partitions = dict(self._ends)
        await self._save()

    async def _save(self) -> None:
        disk, data = self._runtime.disk, encode_state(self._opened)
        writing = asyncio.ensure_future(
            disk.offload(lambda: disk.replace_file(self._options.state_path, data))
        )
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing  # it cannot be stopped, and must not overtake what a later run writes
            raise
        self._checkpoint_ms = self._runtime.clock.monotonic_ms()

    @property
    def _opened(self) -> IngestState:
        assert self._state is not None
        return self._state

    async def _maybe_checkpoint(self) -> None:
        waited_ms = self._runtime.clock.monotonic_ms() - self._checkpoint_ms
        if len(self._sent) >= CHECKPOINT_LINES or (self._sent and waited_ms >= CHECKPOINT_MS):
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        """Wait for all acknowledgements, and write down what they mean. Raises LineRefused."""
        await self._producer.flush()
        state = self._opened
        sent, self._sent = self._sent, []
        for delivery, run, line in sent:
            try:
                place = delivery.result()
            except KafkaError as problem:
                raise LineRefused(f"{run.path}, line {line}: {problem}") from problem
            if place.offset >= 0:
                self._ends[place.partition] = max(self._ends.get(place.partition, 0), place.offset + 1)
        changed = bool(sent or self._ended)
        for run in [*self._ended, *self._runs.values()]:
            fingerprint = run.mark.fingerprint()
            if (fingerprint, run.lines) != (run.source.fingerprint, run.source.lines):
                run.source = run.source.read_to(fingerprint, run.lines)
                changed = True
            state.sources[run.source.number] = run.source.as_finished() if run.finished else run.source
        self._ended.clear()
        # Lines that were found in the topic lie behind these offsets until the sources count them.
        if not self._there and state.partitions != self._ends:
            state.partitions = dict(self._ends)
            changed = True
        if changed:
            await self._save()

    # --- files

    async def _scan(self) -> list[tuple[Source, FoundFile]]:
        """Look at what is there; the sources to be read, those new to the state saved in it."""
        await self._checkpoint()
        state = self._opened
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
        for number in [number for number in self._there if number not in known]:
            del self._there[number]  # nobody will come by these lines any more
        if matches.new:
            await self._save()
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

    def _open(self, source: Source, file: FoundFile) -> _Run | None:
        try:
            run = _Run(source, file, self._opened.tag(source.number))
        except (OSError, EOFError) as problem:
            self._complain(file.path, getattr(problem, "strerror", None) or str(problem))
            return None
        self._runs[source.number] = run
        run.grew_ms = self._runtime.clock.monotonic_ms()
        return run

    def _close(self, run: _Run) -> None:
        run.reader.close()
        if self._runs.pop(run.source.number, None) is not None:
            self._ended.append(run)
        self._there.pop(run.source.number, None)

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
        await self._checkpoint()

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
        await self._checkpoint()

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

    async def _maybe_retire(self, run: _Run) -> None:
        """Its name is gone or another: read to the end, it is done with when nobody writes to it any more."""
        idle_ms = self._runtime.clock.monotonic_ms() - run.grew_ms
        if run.at_end and idle_ms >= RETIRE_MS:
            await self._finish_last_line(run)
            run.finished = True
            self._close(run)
            await self._checkpoint()

    async def _pump(self, run: _Run) -> bool:
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

    async def _preview(self, run: _Run, data: bytes) -> None:
        """It was empty when it was found: have the state know how it begins before a line of it is sent."""
        run.source = run.source.previewed(data[:HEAD_BYTES])
        self._opened.sources[run.source.number] = run.source
        await self._save()

    async def _finish_last_line(self, run: _Run) -> None:
        """The end is the end: a last line without a newline is a line."""
        line = run.splitter.finish()
        if line is not None:
            run.mark.finish()
            await self._send(run, line)

    async def _send(self, run: _Run, line: bytes) -> None:
        run.lines += 1
        there = self._there.get(run.source.number)
        if there is not None:
            known = there.pop(run.lines, None)
            if not there:
                del self._there[run.source.number]
            if known == hash(line):  # otherwise the file was written anew since
                self.totals.lines_there += 1
                return
        path, source = run.headers
        key = path[1] if self._options.key_by_path else None
        headers = (path, (LINE_HEADER, b"%d" % run.lines), source)
        try:
            delivery = await self._producer.send(self._options.topic, line, key=key, headers=headers)
        except KafkaError as problem:
            raise LineRefused(f"{run.path}, line {run.lines}: {problem}") from problem
        self._sent.append((delivery, run, run.lines))
        self.totals.lines += 1
        self.totals.files[run.source.path] = self.totals.files.get(run.source.path, 0) + 1

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
