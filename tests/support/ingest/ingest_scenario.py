"""A scenario of ingest: changes of files, broker and process, step by step, and the expected records.

The file system and the topic are models, in memory; the code that looks at the files, recognises them, reads
them and keeps the state is ingest's. At the end each line written must be in the topic once. Excused are only
lines of a file that was deleted before a look found them, or while only a process that was then killed had it
open: such a line may be missing, but not be there twice.
"""

from __future__ import annotations

import gzip
from collections import Counter

from nilometer.client.ingest.found_files import Look
from nilometer.client.ingest.line_splitter import whole_lines
from nilometer.client.ingest.source import HEAD_BYTES
from nilometer.client.ingest.source_run import SourceRun
from nilometer.client.ingest.state_file import IngestState, checksum, decode_state, encode_state
from nilometer.client.ingest.tracker import SETTLE_MS, Tracker
from support.ingest.model_files import FOLDER, LOG, Inode, ModelDisk, ModelFiles

Step = tuple[str, int]
RETIRE_MS = 10_000
LINE_BYTES = 300
BANNER = b"the same first line in every file\n"


class Topic:
    """One partition; sent records are in the log only once the broker has taken them."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, int, bytes]] = []
        self.sent: list[tuple[bytes, int, bytes]] = []

    def take(self, count: int) -> None:
        self.log += self.sent[:count]
        del self.sent[:count]


class Process:
    """A running ingest, which performs the steps of ``Ingest`` one at a time, without waiting."""

    def __init__(
        self, disk: ModelDisk, topic: Topic, saved: bytes | None, *, named: bool, follow: bool
    ) -> None:
        self.topic = topic
        self.saved = saved
        self.errors: list[str] = []
        self.now_ms = 0
        self.newest: Look | None = None
        self.follow = follow
        self.looked_ns = 0
        self._disk = disk
        self._taken: Look | None = None
        state = decode_state(saved, "model") if saved else IngestState("model", "c", "t", "i")
        self.state = state
        if state.sources:
            self._read_back()
        state.partitions = {0: len(topic.log)}
        self.save()
        self.files = ModelFiles(disk, named=named, follow=follow)
        paths = [LOG if named else FOLDER]
        self.tracker = Tracker(self.files, state, paths, self._report, follow=follow)

    def _report(self, path: str, error: str) -> None:
        self.errors.append(f"{path}: {error}")

    def _read_back(self) -> None:
        for tag, line, value in self.topic.log[self.state.partitions.get(0, 0) :]:
            number = self.state.number_of(tag)
            source = self.state.sources.get(number) if number is not None else None
            if source is not None and line > source.lines:
                lines = self.state.there.setdefault(source.number, {})
                lines.setdefault(line, set()).add(checksum(value))

    def save(self) -> None:
        self.saved = encode_state(self.state)

    def look(self) -> None:
        self.newest = self.files.look(self.tracker.known)
        self.looked_ns = self._disk.now_ns

    def take(self) -> None:
        look = self.newest
        taken, self._taken = self._taken, look
        if look is None or look is taken or (look.is_as(taken) and not self.tracker.wants_look):
            return
        if self.tracker.take(look, self.now_ms, 1_000_000 + self.now_ms):
            self.save()

    def read(self, pieces: int) -> bool:
        """Read and send up to ``pieces`` pieces; return whether any file was ready."""
        runs = self.tracker.ready(self.now_ms)
        for run in runs[:pieces]:
            self._read_piece(run)
        return bool(runs)

    def _read_piece(self, run: SourceRun) -> None:
        piece = run.read()
        if not piece.is_intact:
            self.tracker.wants_look = True
        elif not piece.data:
            self.tracker.on_read_to_end(run)
            if run.is_complete:
                run.finished = True
                self.tracker.close(run)
        else:
            if not run.source.known.offset:
                self.tracker.preview(run, piece.data[:HEAD_BYTES])
                self.save()
            lines = whole_lines(run.splitter.feed(piece.data))
            run.mark.feed(piece.data)
            run.grew_ms = self.now_ms
            for line in lines:
                run.lines += 1
                there = self.state.there.get(run.source.number, {}).get(run.lines, ())
                if checksum(line) not in there:
                    self.topic.sent.append((run.headers[1][1], run.lines, line))

    def retire(self) -> None:
        for run in self.tracker.idle(self.now_ms, RETIRE_MS):
            if run.displaced and not run.splitter.rest_bytes:
                run.finished = True
                self.tracker.close(run)

    def checkpoint(self) -> None:
        self.topic.take(len(self.topic.sent))
        self.tracker.settle()
        self.state.sources = dict(self.tracker.live)
        self.state.partitions = {0: len(self.topic.log)}
        for number, lines in list(self.state.there.items()):
            source = self.state.sources.get(number)
            counted = source.lines if source is not None else max(lines)
            self.state.there[number] = {line: crcs for line, crcs in lines.items() if line > counted}
        self.save()

    def read_everything(self) -> None:
        for _ in range(8):
            self.look()
            self.take()
            while self.read(100):
                pass
        self.checkpoint()

    def end(self) -> None:
        for run in list(self.tracker.runs.values()):
            run.close()
        self.tracker.runs.clear()
        self.files.close()


class IngestScenario:
    def __init__(self, *, named: bool, banner: bool) -> None:
        self.disk = ModelDisk()
        self.topic = Topic()
        self.process: Process | None = None
        self.saved: bytes | None = None
        self.expected: Counter[bytes] = Counter()
        self.excused: Counter[bytes] = Counter()
        self._named = named
        self._banner = BANNER if banner else b""
        self._at_risk: Counter[bytes] = Counter()
        """Lines of deleted files that only the process can still read."""
        self._lines = 0
        self._halves: dict[Inode, bytes] = {}
        """File to the rest of a line that was only partly written."""
        self._copied: set[Inode] = set()
        self._truncated: set[Inode] = set()
        self._copying: tuple[Inode, str] | None = None
        self._packing: str | None = None
        self._create()
        self.step("start", 0)
        self.step("turn", 0)

    def play(self, steps: list[Step]) -> None:
        for name, argument in steps:
            self.step(name, argument)
        self._finish()

    def step(self, name: str, argument: int) -> None:
        getattr(self, f"_on_{name}")(argument)

    # --- the writer

    def _create(self) -> None:
        inode = self.disk.create(LOG)
        if self._banner:
            self.disk.append(inode, self._banner)
            self.expected[self._banner[:-1]] += 1

    def _on_write(self, argument: int) -> None:
        if self.disk.mounted and LOG in self.disk.names:
            self._write(self.disk.names[LOG], 1 + argument % 4)

    def _on_write_old(self, argument: int) -> None:
        """Append to a renamed file, as a writer does that still has it open."""
        plain = [path for path in sorted(self.disk.names) if path != LOG and not path.endswith(".gz")]
        copied = self._copying[1] if self._copying else None
        if self.disk.mounted and plain and plain[0] not in (copied, self._packing):
            inode = self.disk.names[plain[0]]
            if inode not in self._copied:  # no program writes to a copy
                self._write(inode, 1 + argument % 2)

    def _write(self, inode: Inode, count: int) -> None:
        self._complete(inode)
        for _ in range(count):
            self.disk.append(inode, self._next_line() + b"\n")

    def _next_line(self) -> bytes:
        """Return a new line; lines differ at their beginning and end, as those of logs do."""
        line = b"line %d " % self._lines + b"." * LINE_BYTES + b" line %d" % self._lines
        self._lines += 1
        self.expected[line] += 1
        return line

    def _on_half(self, _argument: int) -> None:
        """Write the first part of a line."""
        if self.disk.mounted and LOG in self.disk.names:
            inode = self.disk.names[LOG]
            self._complete(inode)
            line = self._next_line()
            self.disk.append(inode, line[:100])
            self._halves[inode] = line[100:] + b"\n"

    def _complete(self, inode: Inode) -> None:
        rest = self._halves.pop(inode, None)
        if rest is not None:
            self.disk.append(inode, rest)

    # --- rotation

    def _shift(self) -> None:
        """Rename ``app.log.1`` to ``app.log.2``, and so on."""
        numbered = [path for path in self.disk.names if path != LOG]
        for path in sorted(numbered, key=_number, reverse=True):
            suffix = ".gz" if path.endswith(".gz") else ""
            self.disk.rename(path, f"{LOG}.{_number(path) + 1}{suffix}")

    def _is_quiet(self) -> bool:
        return self.disk.mounted and self._copying is None and self._packing is None

    def _on_rename(self, argument: int) -> None:
        if self._is_quiet():
            self._shift()
            if LOG in self.disk.names:
                self.disk.rename(LOG, f"{LOG}.1")
            if argument % 4:
                self._create()

    def _on_create(self, _argument: int) -> None:
        if self.disk.mounted and LOG not in self.disk.names:
            self._create()

    def _on_copy(self, argument: int) -> None:
        """Begin to copy the log."""
        if self._is_quiet() and LOG in self.disk.names:
            original = self.disk.names[LOG]
            self._complete(original)
            self._shift()
            copy = self.disk.create(f"{LOG}.1")
            self._copied.add(copy)
            self._copying = (original, f"{LOG}.1")
            if argument % 3 and len(original.content) >= 1024:
                self.disk.append(copy, bytes(original.content[: 1024 + argument]))

    def _on_copied(self, _argument: int) -> None:
        """Complete the copy with everything written so far."""
        if self.disk.mounted and self._copying is not None:
            original, path = self._copying
            self._complete(original)
            copy = self.disk.names[path]
            self.disk.append(copy, bytes(original.content[len(copy.content) :]))

    def _on_truncate(self, argument: int) -> None:
        if self.disk.mounted and self._copying is not None:
            self._on_copied(argument)
            self.disk.truncate(self._copying[0])
            self._truncated.add(self._copying[0])
            self._copying = None

    def _on_pack(self, argument: int) -> None:
        """Begin to compress a rotated file."""
        plain = [path for path in sorted(self.disk.names) if path != LOG and not path.endswith(".gz")]
        if self._is_quiet() and plain:
            path = plain[argument % len(plain)]
            inode = self.disk.names[path]
            self._complete(inode)
            packed = self.disk.create(f"{path}.gz")
            self._packing = path
            data = gzip.compress(bytes(inode.content), mtime=0)
            self.disk.append(packed, data[: argument * 7 % len(data)])

    def _on_packed(self, _argument: int) -> None:
        if self.disk.mounted and self._packing is not None:
            path, self._packing = self._packing, None
            inode = self.disk.names[path]
            packed = self.disk.names[f"{path}.gz"]
            data = gzip.compress(bytes(inode.content), mtime=0)
            self.disk.append(packed, data[len(packed.content) :])
            del self.disk.names[path]

    def _on_delete(self, argument: int) -> None:
        """Delete the oldest file, or sometimes the newest."""
        if not self._is_quiet() or not self.disk.names:
            return
        path = LOG if argument % 7 == 0 else max(self.disk.names, key=_number)
        inode = self.disk.names.get(path)
        if inode is None or inode in self._truncated:
            return  # short content of a deleted file does not distinguish a copy from a successor
        del self.disk.names[path]
        self.excused[self._banner[:-1]] += 1
        self._complete(inode)
        content = bytes(inode.content)
        lines = Counter((gzip.decompress(content) if path.endswith(".gz") else content).splitlines())
        # The banner is in many files, so it is unknown which file's is in the topic.
        lines -= Counter({line: 1 for line in self._in_topic() if line != self._banner[:-1]})
        if self.process is not None and inode.opened and inode.modified_ns <= self.process.looked_ns:
            self._at_risk += lines
        else:
            self.excused += lines

    # --- the machine

    def _on_unmount(self, _argument: int) -> None:
        """Unmount the folder, unless a copy is being made: its part would be taken for a complete file."""
        if self._is_quiet():
            self.disk.mounted = False

    def _on_mount(self, _argument: int) -> None:
        if not self.disk.mounted:
            self.disk.mounted = True

    # --- the process and the broker

    def _on_look(self, _argument: int) -> None:
        if self.process is not None:
            self.process.look()

    def _on_take(self, _argument: int) -> None:
        if self.process is not None:
            self.process.take()

    def _on_read(self, argument: int) -> None:
        if self.process is not None:
            self.process.read(1 + argument % 3)

    def _on_broker(self, argument: int) -> None:
        self.topic.take(argument)

    def _on_checkpoint(self, _argument: int) -> None:
        if self.process is not None:
            self.process.checkpoint()

    def _on_turn(self, _argument: int) -> None:
        """Perform one normal round of all steps."""
        for name in ("look", "take", "read", "read", "checkpoint"):
            self.step(name, 2)

    def _on_sleep(self, _argument: int) -> None:
        if self.process is not None and self._copying is None:
            self.process.now_ms += SETTLE_MS
            self.process.retire()

    def _on_kill(self, argument: int) -> None:
        """Kill the process; the broker still takes the first ``argument`` records in flight."""
        if self.process is not None:
            self.topic.take(argument)
            self.topic.sent.clear()
            self.saved = self.process.saved
            self.process.end()
            self.process = None
            self.excused += self._at_risk
            self._at_risk.clear()

    def _on_start(self, _argument: int) -> None:
        if self.process is None:
            self.process = Process(self.disk, self.topic, self.saved, named=self._named, follow=True)

    def _on_run_once(self, _argument: int) -> None:
        """Perform a run without ``follow``, unless a process is running."""
        if self.process is None and not self._halves and self._copying is None and self._packing is None:
            process = Process(self.disk, self.topic, self.saved, named=self._named, follow=False)
            process.read_everything()
            self.saved = process.saved
            process.end()

    # --- the end

    def _finish(self) -> None:
        self.disk.mounted = True
        self._on_truncate(0)
        self._on_packed(0)
        for inode in list(self._halves):
            self._complete(inode)
        self._on_start(0)
        process = self.process
        assert process is not None
        for _ in range(3):
            process.read_everything()
            process.now_ms += SETTLE_MS
            process.retire()
        process.end()

    def _in_topic(self) -> Counter[bytes]:
        return Counter(value for _, _, value in self.topic.log)

    def verdict(self) -> tuple[list[bytes], list[bytes]]:
        """Return the lost and the repeated lines."""
        there = self._in_topic()
        lost = self.expected - there - self.excused
        repeated = there - self.expected
        return [_short(line) for line in lost.elements()], [_short(line) for line in repeated.elements()]


def _number(path: str) -> int:
    return 0 if path == LOG else int(path.removeprefix(f"{LOG}.").removesuffix(".gz"))


def _short(line: bytes) -> bytes:
    return line.split(b".")[0]
