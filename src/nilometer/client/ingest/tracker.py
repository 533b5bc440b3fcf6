"""Tracks all sources of an ingest: applies looks, and opens the files to read. Accesses files by ``Files``.

:meth:`Tracker.take` applies a look; :meth:`Tracker.ready` returns the open files that have something to read.
Nothing here waits for a broker. Time is an argument.

Invariants:

- ``live`` holds every source of the state, with its position after the lines sent (the state's positions are
  those of the last checkpoint);
- a file that grew after it was read, or could not be read, is opened again only when its stamp has changed,
  and after a failure only after a delay that doubles each time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from gzip import BadGzipFile
from typing import NamedTuple, TypeVar

from nilometer.client.ingest.found_files import (
    GZIP_SUFFIX,
    Files,
    FoundFile,
    Identity,
    Look,
    OpenFile,
    Stamp,
    is_derived,
    possible_originals,
)
from nilometer.client.ingest.line_splitter import LineTooLong
from nilometer.client.ingest.matching import TELLING_BYTES, Circumstances, Matches, NewFile, match
from nilometer.client.ingest.source import HEAD_BYTES, Fingerprint, Source
from nilometer.client.ingest.source_run import SourceRun, fingerprint_of, read_up_to, reader_of
from nilometer.client.ingest.state_file import IngestState

# Compares the contents of files and sources. Uses only the file system that it is given.

T = TypeVar("T")
_Compared = tuple[Identity, Stamp, Identity, Stamp]


class FileContents:
    """Implements ``matching.Contents``. A deleted file is read through the open file of its run."""

    def __init__(
        self, files: Files, runs: Mapping[int, SourceRun], report: Callable[[str, str], None]
    ) -> None:
        """``runs`` are the sources being read, by number; ``report`` is called with (path, error)."""
        self.verified: dict[int, tuple[Identity, Stamp]] = {}
        """Source number to the file last verified to be its file: valid while the file's stamp stays."""
        self._files = files
        self._runs = runs
        self._report = report
        self._compared: dict[_Compared, bool] = {}

    def head(self, file: FoundFile) -> bytes | None:
        def read_head(opened: OpenFile) -> bytes:
            try:
                return read_up_to(opened, 0, HEAD_BYTES, compressed=file.is_compressed)
            except BadGzipFile:
                return b""  # the reader will report the error

        return self._asking(file, read_head)

    def after_hole(self, file: FoundFile) -> bytes | None:
        def read_on(opened: OpenFile) -> bytes:
            reader = reader_of(opened, compressed=file.is_compressed)
            while data := reader.read():
                if found := data.lstrip(b"\0"):
                    return (found + reader.read(HEAD_BYTES))[:HEAD_BYTES]
            return b""

        return self._asking(file, read_on)

    def fingerprint(self, file: FoundFile, offset: int) -> Fingerprint | None:
        return self._asking(
            file, lambda opened: fingerprint_of(opened, offset, compressed=file.is_compressed)
        )

    def is_beginning(self, file: FoundFile, original: FoundFile) -> bool | None:
        """Whether all of ``file``'s content is the beginning of ``original``'s; None if one is unreadable."""
        # Compare the files as they are now, which may be newer than the look, like the other methods.
        stamp, original_stamp = self._stamp(file), self._stamp(original)
        if stamp is None or original_stamp is None:
            return None
        key = (file.identity, stamp, original.identity, original_stamp)
        known = self._compared.get(key)
        if known is None:
            size = self._asking(file, lambda opened: _content_size(opened, compressed=file.is_compressed))
            if size is None:
                return None
            of_file = self.fingerprint(file, size)
            of_original = self.fingerprint(original, size)
            if of_file is None:
                return None
            known = self._compared[key] = of_file == of_original
        return known

    def _stamp(self, file: FoundFile) -> Stamp | None:
        return self._asking(file, lambda opened: opened.stamp())

    def is_intact(self, source: Source, file: FoundFile) -> bool:
        run = self._runs.get(source.number)
        if run is not None and run.identity == file.identity:
            return run.is_intact()
        if self.verified.get(source.number) == (file.identity, file.stamp):
            return True
        if self.is_reborn(source, file):
            return False
        if not source.known.offset and file.is_compressed != source.path.endswith(GZIP_SUFFIX):
            return False  # the inode was reused: compressing a file creates another one
        if source.read_at == file.stamp or (source.skipped and not source.known.offset):
            return True
        return self.fingerprint(file, source.known.offset) == source.known

    def is_reborn(self, source: Source, file: FoundFile) -> bool:
        return bool(source.birth_ns) and self._files.birth_ns(file) not in (0, source.birth_ns)

    def forget_comparisons(self, present: set[Identity]) -> None:
        self._compared = {key: known for key, known in self._compared.items() if key[0] in present}

    def _asking(self, file: FoundFile, ask: Callable[[OpenFile], T]) -> T | None:
        """Open ``file``, return ``ask``'s result for it and close it; None if it changed or fails to read.

        Errors are reported, except for a missing file.
        """
        try:
            opened = self._open(file)
        except FileNotFoundError:
            return None  # renamed or deleted since it was found: the next look will show
        except OSError as error:
            self._report(file.path, error.strerror or str(error))
            return None
        try:
            if opened.stamp()[0] < file.size:
                return None  # truncated since it was found
            return ask(opened)
        except OSError as error:
            self._report(file.path, error.strerror or str(error))
            return None
        finally:
            opened.close()

    def _open(self, file: FoundFile) -> OpenFile:
        for run in self._runs.values() if file.is_gone else ():
            if run.identity == file.identity:
                return run.opened_again()
        return self._files.open(file)


def _content_size(file: OpenFile, *, compressed: bool) -> int:
    if not compressed:
        return file.stamp()[0]
    reader = reader_of(file, compressed=True)
    while reader.read():
        pass
    return reader.position


# Decides when a source whose file is missing is forgotten. Pure.
#
# A rotated file that was deleted does not come back; but a folder that is not mounted now may be back
# tomorrow with all its files. The difference: in a folder that is *away* no file is found at all.

FORGET_MS = 60 * 60 * 1_000
"""How long a source is kept whose file is gone from its folder: a copy of the file may appear."""
FORGET_AWAY_MS = 30 * 24 * 60 * 60 * 1_000
"""How long a source is kept in whose folder nothing is found."""
GONE_MAX = 1_000
"""The maximum number of sources kept whose files are gone from their folders."""


def away(sources: Sequence[Source], look: Look) -> list[Source]:
    """Return the sources in whose folder the look found nothing."""
    folders = {posixpath.dirname(file.path) for file in look.files}
    return [source for source in sources if posixpath.dirname(source.path) not in folders]


def decide_missing(
    missing: Sequence[Source], look: Look, wall_ms: int, sent: Container[int] = ()
) -> tuple[list[Source], list[int]]:
    """Return the sources to keep, with ``gone_ms`` set, and the numbers of those to forget.

    ``wall_ms`` is the wall clock; ``sent`` contains the sources with lines in the topic that they do not
    count yet.
    """
    numbers_away = {source.number for source in away(missing, look)}
    kept: list[Source] = []
    forgotten: list[int] = []
    gone: list[Source] = []
    for source in missing:
        is_away = source.number in numbers_away
        since_ms = min(source.gone_ms, wall_ms) if source.gone_ms is not None else wall_ms
        is_known = bool(source.known.offset) or source.number in sent
        if not is_away and not is_known:
            forgotten.append(source.number)  # it was empty: a copy of it cannot be recognised
        elif wall_ms - since_ms >= (FORGET_AWAY_MS if is_away else FORGET_MS):
            forgotten.append(source.number)
        else:
            (kept if is_away else gone).append(source.as_gone(since_ms))
    gone.sort(key=lambda source: (source.gone_ms or 0, source.number))
    forgotten += [source.number for source in gone[: max(len(gone) - GONE_MAX, 0)]]
    kept += gone[max(len(gone) - GONE_MAX, 0) :]
    return kept, forgotten


# Remembers rotated files that may be unread: they are read if they turn out to be no copies. Pure.
#
# A later look cannot find out again that a rotation made them, so they are remembered while their folder is
# not mounted, and between runs.

UNKNOWN = ""
"""The path of a file that only an earlier run has seen: the state keeps no path."""


class Candidates:
    def __init__(self, identities: Iterable[Identity]) -> None:
        self._paths: dict[Identity, str] = dict.fromkeys(identities, UNKNOWN)

    def on_look(
        self,
        look: Look,
        files: Sequence[FoundFile],
        may_be_unread: AbstractSet[Identity],
        sources: Sequence[Source],
    ) -> set[Identity]:
        """Update from a look and return the identities of all candidates.

        They are ``may_be_unread`` of the found ``files``, and earlier ones in folders where nothing is found.
        """
        folders = {posixpath.dirname(file.path) for file in look.files}
        is_any_away = bool(away(sources, look))
        found = {file.identity: file.path for file in files}
        self._paths = {
            identity: path
            for identity, path in self._paths.items()
            if identity not in found
            and (is_any_away if path == UNKNOWN else posixpath.dirname(path) not in folders)
        } | {identity: path for identity, path in found.items() if identity in may_be_unread}
        return set(self._paths)


SETTLE_MS = 10_000
"""A short file that has equalled the beginning of another one for this time is not a copy being made."""
HOT_MS = 10_000
"""A file that grew within this time is checked for growth at every call of :meth:`Tracker.ready`."""
RETRY_MS, RETRY_MAX_MS = 1_000, 60_000
OPEN_MAX = 512
"""The maximum number of files open for reading."""

COPY = "its content is the beginning of another file:"

Report = Callable[[str, str], None]
"""Called with (path, error text)."""


@dataclass(slots=True)
class Retry:
    due_ms: int
    delay_ms: int


class _Standing(NamedTuple):
    """A copy's stamp, and since when it has not changed."""

    stamp: Stamp
    since_ms: int
    was_empty: bool
    """It equals every file's beginning then, which says nothing of what it may have by now."""


class NotText(ValueError):
    """The content of a file does not consist of lines."""


class Tracker:
    def __init__(
        self, files: Files, state: IngestState, paths: Sequence[str], report: Report, *, follow: bool
    ) -> None:
        """``paths`` are the absolute paths that the user named."""
        self.live: dict[int, Source] = dict(state.sources)
        self.runs: dict[int, SourceRun] = {}
        self.skipped: dict[str, str] = {}
        """File that is not read to the reason."""
        self.known: frozenset[Identity] = self._identities()
        self.wants_look = False
        """Whether the next look must be applied even if it found the same as the last one."""
        self._files = files
        self._state = state
        self._paths = tuple(paths)
        self._follow = follow
        self._report = report
        self._contents = FileContents(files, self.runs, report)
        self._waiting: dict[int, FoundFile] = {}
        self._retries: dict[int, Retry] = {}
        self._stopped: dict[int, Stamp] = {}
        """Source number to the file's stamp when a line was too long: it is read again once that changes."""
        self._not_text: dict[Identity, tuple[FoundFile, str]] = {}
        self._copies_since: dict[Identity, _Standing] = {}
        self._candidates = Candidates(state.may_be_unread)
        names = {source.path for source in state.sources.values()} if state.may_be_unread else ()
        self._rotated: frozenset[str] = frozenset(names)

    # --- looks

    def take(self, look: Look, now_ms: int, wall_ms: int) -> bool:
        """Apply a look; return whether the state must be saved before anything is read. Raises OSError.

        ``now_ms`` is the monotonic clock, ``wall_ms`` the wall clock.
        """
        for path, error in look.errors:
            self._report(path, error)
        self.settle()
        files = [file for file in [*look.files, *self._unnamed(look)] if not self._is_not_text(file)]
        sources = [source for _, source in sorted(self.live.items())]
        matches = match(sources, files, self._contents, self._circumstances(look, now_ms))
        for source in matches.replaced:
            self._forget(source.number)
        for source, file in matches.resumed:
            self._on_resumed(source, file)
        copies = [file for file, _ in matches.copies]
        self._take_from_others([*(new.file for new in matches.new), *matches.skipped, *copies])
        for new in matches.new:
            self._on_new(new)
        for file in matches.skipped:
            self._on_skipped(file)
        self._on_missing(matches, look, wall_ms)
        self._on_copies(matches, now_ms)
        self._on_not_text(matches, look)
        self._rotated = frozenset(matches.rotated)
        watched = self._state.watched | look.reached
        candidates = self._candidates.on_look(look, files, matches.may_be_unread, sources)
        to_save = bool(matches.new or matches.skipped) or (watched, candidates) != (
            self._state.watched,
            self._state.may_be_unread,
        )
        self._state.watched, self._state.may_be_unread = watched, candidates
        self._let_go(matches, look)
        return to_save

    def _unnamed(self, look: Look) -> list[FoundFile]:
        """Return the open and held files for which the look found no name."""
        named = {file.identity for file in look.files}
        files = {file.identity: file for file in self._files.unnamed(look)}
        for run in self.runs.values():
            if run.identity not in named and run.is_intact():
                files[run.identity] = run.as_file()
        return list(files.values())

    def _circumstances(self, look: Look, now_ms: int) -> Circumstances:
        def is_settled(file: FoundFile) -> bool:
            if not self._follow:
                return True
            standing = self._copies_since.get(file.identity)
            return (
                standing is not None
                and standing.stamp == file.stamp
                and now_ms - standing.since_ms >= SETTLE_MS
            )

        folders = {posixpath.dirname(file.path) for file in look.files}
        return Circumstances(
            named=look.named,
            rotated_before=self._rotated,
            is_watched=lambda file: is_watched(file.path, self._state.watched),
            is_left_behind=lambda file: (
                (copy := self._copies_since.get(file.identity)) is not None
                and not copy.was_empty
                and posixpath.dirname(file.path) not in folders
            ),
            may_be_unread=lambda file: file.identity in self._state.may_be_unread,
            is_settled=is_settled,
        )

    def _is_not_text(self, file: FoundFile) -> bool:
        known = self._not_text.get(file.identity)
        return known is not None and known[0].stamp == file.stamp

    def _on_not_text(self, matches: Matches, look: Look) -> None:
        """Note the files that are no text, until they change; ``skipped`` names each with the reason."""
        for file, _ in self._not_text.values():
            self.skipped.pop(file.path, None)
        present = {file.identity: file for file in look.files}
        self._not_text = {
            identity: (present[identity], why)
            for identity, (file, why) in self._not_text.items()
            if identity in present and present[identity].stamp == file.stamp
        } | {file.identity: (file, why) for file, why in matches.not_text}
        self.skipped |= {file.path: why for file, why in self._not_text.values()}

    def _on_resumed(self, source: Source, file: FoundFile) -> None:
        number = source.number
        live = self.live[number]
        if (live.device, live.inode) != file.identity:  # a copy, or its folder was mounted again
            self._close(number)
            live = self.live[number]
            birth_ns = self._files.birth_ns(file)
            self._set(number, lambda one: one.found_as(file.device, file.inode, birth_ns))
        elif live.gone_ms is not None:
            self._set(number, lambda one: replace(one, gone_ms=None))
        self._contents.verified[number] = (file.identity, file.stamp)
        run = self.runs.get(number)
        if run is not None:
            run.on_found(file)
            if run.read_at != file.stamp:
                run.read_at = None
        elif self._is_to_be_read(self.live[number], file):
            self._waiting[number] = file
        else:
            self._waiting.pop(number, None)

    def _is_to_be_read(self, source: Source, file: FoundFile) -> bool:
        if source.skipped or self._stopped.get(source.number) == file.stamp:
            return False
        if file.is_compressed:
            return source.read_at != file.stamp or not (source.finished or self._follow)
        # A run without ``follow`` reads the rest again: it also sends a last line without a newline.
        return file.size > source.offset and (source.read_at != file.stamp or not self._follow)

    def _on_new(self, new: NewFile) -> None:
        file = new.file
        added = self._state.add(new.name, file.device, file.inode, self._files.birth_ns(file))
        source = replace(added.previewed(new.head), read_at=file.stamp if not file.size else None)
        self._state.sources[source.number] = self.live[source.number] = source
        self._contents.verified[source.number] = (file.identity, file.stamp)
        if file.size:
            self._waiting[source.number] = file

    def _on_skipped(self, file: FoundFile) -> None:
        fingerprint = None if file.is_compressed else self._contents.fingerprint(file, file.size)
        added = self._state.add(file.path, file.device, file.inode, self._files.birth_ns(file))
        source = replace(added, skipped=True, finished=True, read_at=file.stamp)
        if fingerprint is not None:
            source = source.read_to(fingerprint, 0)
        was_there = not is_watched(file.path, self._state.watched)
        self.skipped[file.path] = (
            "it existed before ingest first scanned its folder; name it, or the folder, to ingest it"
            if was_there
            else "it appeared although no file with its base name was rotated; name it to ingest it"
        )
        self._state.sources[source.number] = self.live[source.number] = source

    def _take_from_others(self, files: Sequence[FoundFile]) -> None:
        """Remove the inode from sources whose inode one of ``files`` has now: a file has one source."""
        taken = {file.identity: file for file in files}
        for number, source in list(self.live.items()) if taken else ():
            file = taken.get((source.device, source.inode))
            if file is not None:
                truncated = not self._contents.is_reborn(source, file)
                self._close(number)
                self._set(number, lambda one, truncated=truncated: one.as_nowhere(truncated=truncated))

    def _on_missing(self, matches: Matches, look: Look, wall_ms: int) -> None:
        gone: list[Source] = []
        for source in matches.missing:
            if is_asked_for(source.path, self._paths):
                self._report_unread(source)
                self._close(source.number)
                gone.append(self.live[source.number])
        kept, forgotten = decide_missing(gone, look, wall_ms, self._state.there)
        for source in kept:
            self.live[source.number] = source
            self._state.sources[source.number] = self._state.sources[source.number].as_gone(source.gone_ms)
        for number in forgotten:
            self._forget(number)

    def _report_unread(self, source: Source) -> None:
        run, waiting = self.runs.get(source.number), self._waiting.pop(source.number, None)
        unread = 0
        if run is not None:
            unread = run.size - run.raw_position
        elif waiting is not None:
            unread = waiting.size - (0 if waiting.is_compressed else source.offset)
        if unread > 0:
            self._report(source.path, f"its last {unread} bytes were deleted before they were read")

    def _on_copies(self, matches: Matches, now_ms: int) -> None:
        copies = {file.identity: file for file, _ in matches.copies}
        undecided = {file.identity for file in matches.undecided}
        before = self._copies_since
        self._copies_since = {identity: one for identity, one in before.items() if identity in undecided}
        for identity, file in copies.items():
            known = before.get(identity)
            if known is None or known.stamp != file.stamp:
                known = _Standing(file.stamp, now_ms, was_empty=not file.size)
            self._copies_since[identity] = known
        self.skipped = {path: why for path, why in self.skipped.items() if not why.startswith(COPY)}
        self.skipped |= {file.path: f"{COPY} {original}" for file, original in matches.copies}
        self.wants_look = bool(matches.undecided) or any(
            0 < file.size < TELLING_BYTES for file in copies.values()
        )

    def _let_go(self, matches: Matches, look: Look) -> None:
        keep = {file.identity for file in [*self._waiting.values(), *matches.undecided]}
        # A deleted copy is not needed any more: its original still existed after it.
        keep |= {file.identity for file, _ in matches.copies if not file.is_gone}
        self._files.release(look, keep)
        self._contents.forget_comparisons(set(self._copies_since))
        self.known = self._identities()

    # --- reading

    def ready(self, now_ms: int) -> list[SourceRun]:
        """Return the runs that have something to read; open waiting files, up to ``OPEN_MAX``."""
        for number, file in sorted(self._waiting.items(), key=lambda item: item[1].modified_ns):
            retry = self._retries.get(number)
            if retry is not None and now_ms < retry.due_ms:
                continue
            if len(self.runs) >= OPEN_MAX and not self._close_idlest():
                break
            del self._waiting[number]
            self._open(number, file, now_ms)
        for run in list(self.runs.values()):
            # A look does not show that a deleted file grew.
            if run.at_end and (run.deleted or now_ms - run.grew_ms < HOT_MS):
                self._check_growth(run, now_ms)
        return [run for run in self.runs.values() if not run.at_end and not run.is_stalled]

    def idle(self, now_ms: int, idle_ms: int) -> list[SourceRun]:
        """Return the runs that were read to their end and have not grown for ``idle_ms``."""
        found = [run for run in self.runs.values() if run.at_end and now_ms - run.grew_ms >= idle_ms]
        for run in found:
            if run.displaced:  # the caller may close it, and then its growth would not be noticed
                self._check_growth(run, now_ms)
        return [run for run in found if run.at_end and run.source.number in self.runs]

    def _check_growth(self, run: SourceRun, now_ms: int) -> None:
        try:
            if run.has_grown():
                run.read_at = None
        except OSError as error:
            self.on_unreadable(run.source.number, error, now_ms)

    def _open(self, number: int, file: FoundFile, now_ms: int) -> None:
        try:
            opened = self._files.open(file)
        except FileNotFoundError:
            self.wants_look = True  # renamed since the look, or gone
            return
        except OSError as error:
            self._retry_later(number, file, error, now_ms)
            return
        try:
            run = SourceRun(self.live[number], file, opened, self._state.tag(number))
            is_known = run.begins_as_known()
        except (OSError, EOFError) as error:
            opened.close()
            self._retry_later(number, file, error, now_ms)
            return
        if not is_known:
            run.close()
            self._on_rewritten(number)
            return
        run.grew_ms = now_ms
        self.runs[number] = run

    def _on_rewritten(self, number: int) -> None:
        """Handle a file that was truncated and rewritten since the look: have the next look decide."""
        self._contents.verified.pop(number, None)
        self.live[number] = replace(self.live[number], read_at=None)
        self.wants_look = True

    def on_unreadable(self, number: int, error: Exception, now_ms: int) -> None:
        """Handle that reading source ``number`` failed: close it, report the error, retry later."""
        run = self.runs[number]
        try:
            file = run.as_file()
        except OSError:
            file = FoundFile(run.path, *run.identity, run.size)
        self._close(number)
        self._retry_later(number, file, error, now_ms)

    def _retry_later(self, number: int, file: FoundFile, error: Exception, now_ms: int) -> None:
        self._report(file.path, getattr(error, "strerror", None) or str(error))
        last = self._retries.get(number)
        delay_ms = min(last.delay_ms * 2, RETRY_MAX_MS) if last is not None else RETRY_MS
        self._retries[number] = Retry(now_ms + delay_ms, delay_ms)
        if isinstance(error, (LineTooLong, NotText)):
            self._stopped[number] = file.stamp
        elif isinstance(error, (BadGzipFile, EOFError)):
            self.live[number] = replace(self.live[number], read_at=file.stamp)
        else:
            self._waiting[number] = file

    @property
    def bytes_waiting(self) -> int:
        """The total size of the files still to be opened, before decompression."""
        return sum(file.size for file in self._waiting.values())

    def on_read_to_end(self, run: SourceRun) -> None:
        self._retries.pop(run.source.number, None)

    def preview(self, run: SourceRun, head: bytes) -> None:
        """Record the first bytes of a file that was empty when found; no line of it is sent yet."""
        self._set(run.source.number, lambda one: one.previewed(head))
        run.source = self.live[run.source.number]

    def close(self, run: SourceRun) -> None:
        """Close a run until its file grows; call it only between two pieces."""
        self._close(run.source.number)

    def settle(self) -> None:
        """Update ``live`` with the positions of the open files; call it only between two pieces."""
        for number, run in self.runs.items():
            self.live[number] = self._as_read(number, run)

    def _as_read(self, number: int, run: SourceRun) -> Source:
        read = run.as_read()
        live = self.live[number]  # it has the newer device and inode
        return replace(
            live, fingerprint=read.fingerprint, lines=read.lines, read_at=read.read_at, finished=read.finished
        )

    def _close(self, number: int) -> None:
        run = self.runs.pop(number, None)
        if run is not None:
            self.live[number] = self._as_read(number, run)
            run.close()

    def _close_idlest(self) -> bool:
        idle = [run for run in self.runs.values() if run.at_end and not run.deleted]
        if idle:
            self.close(min(idle, key=lambda run: run.grew_ms))
        return bool(idle)

    # --- both views of a source

    def _set(self, number: int, change: Callable[[Source], Source]) -> None:
        self.live[number] = change(self.live[number])
        self._state.sources[number] = change(self._state.sources[number])

    def _forget(self, number: int) -> None:
        self._close(number)
        for known in (self.live, self._state.sources, self._state.there, self._contents.verified):
            known.pop(number, None)
        self._waiting.pop(number, None)
        self._retries.pop(number, None)
        self._stopped.pop(number, None)

    def _identities(self) -> frozenset[Identity]:
        return frozenset((source.device, source.inode) for source in self.live.values())


def is_watched(path: str, watched: AbstractSet[str]) -> bool:
    """Whether ``path`` is in a folder of ``watched``, or has a name that rotation gives to a file of it."""
    if any(original in watched for original in possible_originals(path)):
        return True
    folder: str = path
    while folder not in ("", "/"):
        folder = posixpath.dirname(folder)
        if folder in watched:
            return True
    return False


def is_asked_for(path: str, asked: Sequence[str]) -> bool:
    """Whether ``path`` is one of ``asked``, is in such a folder, or is a rotated name of such a file."""
    return any(
        path == place or path.startswith(place.rstrip("/") + "/") or is_derived(path, place)
        for place in asked
    )
