"""Decides which of the files that a look found belong to known sources, and which are new. Pure.

A file is *asked for* if the user named it or its folder; others are found in the folder of a named file.
The cases, in the order they are tried:

1. A file with the device and inode of a source that still contains what was read of the source is the
   source's file, under any name. After a folder was mounted again its device may differ: then path and inode
   identify it.
2. For a source whose file is gone or has other content, a copy or compressed copy is searched among the files
   that belong to no source and have a name that rotation gives. The unread lines are read from the copy.
   Of several files that begin alike it is one that would be skipped otherwise: the others are new.
3. A file whose whole content is the beginning of another file is a copy of that one, and is not read. (It
   becomes case 2 when the original is truncated or removed.)
4. A file that is not asked for is new if rotation can have made it since the last look. It is skipped if it
   was there before, or if the file that it is named after was not rotated.
5. All other files that are asked for are new, and read from their beginning.

Short content proves little, since many files begin with the same header. Equal content of less than
:data:`TELLING_BYTES` shows a copy only if a copy is expected, and a file that short which equals the
beginning of another one is taken for a copy only until ``is_settled``.

Invariants: no file has two sources, no source has two files. Every file found is in exactly one of
``resumed``, ``new``, ``copies``, ``skipped``, ``not_text`` and ``undecided``, except files that are not asked
for and to which no case applies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nilometer.client.ingest.found_files import (
    GZIP_SUFFIX,
    UNREADABLE_SUFFIXES,
    FoundFile,
    Identity,
    is_derived,
    is_rotation_name,
    possible_originals,
)
from nilometer.client.ingest.source import HEAD_BYTES, Fingerprint, Source, digest

TELLING_BYTES = 1024
"""Equal content of this size or more is no coincidence, so one file is a copy of the other."""


class Contents(Protocol):
    """Reads and compares file contents. None means: unreadable now, or the name is another file's now."""

    def head(self, file: FoundFile) -> bytes | None:
        """Return the first :data:`HEAD_BYTES` bytes of the content, fewer if it is shorter."""
        ...

    def after_hole(self, file: FoundFile) -> bytes | None:
        """Return the first :data:`HEAD_BYTES` bytes of the content from the first that is not NUL on."""
        ...

    def fingerprint(self, file: FoundFile, offset: int) -> Fingerprint | None:
        """Return the fingerprint of the first ``offset`` bytes of the content."""
        ...

    def is_beginning(self, file: FoundFile, original: FoundFile) -> bool | None:
        """Whether all of ``file``'s content is the beginning of ``original``'s."""
        ...

    def is_intact(self, source: Source, file: FoundFile) -> bool:
        """Whether ``file``, with the inode of ``source``, still contains what was read of the source."""
        ...

    def is_reborn(self, source: Source, file: FoundFile) -> bool:
        """Whether ``file``, with the inode of ``source``, was created after the source's file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The caller's knowledge from before the look."""

    named: AbstractSet[str] = frozenset()
    """The files that the user named, by path."""
    rotated_before: AbstractSet[str] = frozenset()
    """``Matches.rotated`` of the previous look: a rotation may happen in the middle of a look."""
    is_watched: Callable[[FoundFile], bool] = lambda _file: True
    """Whether an earlier look listed the place of the file, so that an unknown file there is newer."""
    is_left_behind: Callable[[FoundFile], bool] = lambda _file: False
    """Whether the previous look found it to be a copy, and nothing is found in its folder any more."""
    may_be_unread: Callable[[FoundFile], bool] = lambda _file: False
    """Whether an earlier look found that rotation can have made the file."""
    is_settled: Callable[[FoundFile], bool] = lambda _file: True
    """Whether a file that equals another's beginning is unchanged for so long that it is not being copied."""


class NewFile(NamedTuple):
    file: FoundFile
    name: str
    """The ``path`` header of its records: the name under which its lines were written."""
    head: bytes


@dataclass(slots=True)
class Matches:
    resumed: list[tuple[Source, FoundFile]] = field(default_factory=list[tuple[Source, FoundFile]])
    new: list[NewFile] = field(default_factory=list[NewFile])
    copies: list[tuple[FoundFile, str]] = field(default_factory=list[tuple[FoundFile, str]])
    """Copies, with the path of the original."""
    may_be_unread: set[Identity] = field(default_factory=set[Identity])
    """Copies and undecided files that are new if they turn out to be no copies."""
    skipped: list[FoundFile] = field(default_factory=list[FoundFile])
    not_text: list[tuple[FoundFile, str]] = field(default_factory=list[tuple[FoundFile, str]])
    """Files that do not consist of lines, each with the reason."""
    undecided: list[FoundFile] = field(default_factory=list[FoundFile])
    """Files that changed or were unreadable while they were compared: the next look decides."""
    missing: list[Source] = field(default_factory=list[Source])
    """Sources whose file was not found."""
    rotated: set[str] = field(default_factory=set[str])
    """Names, of sources or asked for, that now belong to another file or to none, or whose file is empty."""
    replaced: list[Source] = field(default_factory=list[Source])
    """Sources whose file was skipped so far, and is asked for now."""


def match(
    sources: Sequence[Source],
    files: Sequence[FoundFile],
    contents: Contents,
    circumstances: Circumstances | None = None,
) -> Matches:
    """Return what each of ``files``, found by a look, is; ``sources`` have their present positions."""
    return _Matching(sources, files, contents, circumstances or Circumstances()).run()


class _Matching:
    def __init__(
        self,
        sources: Sequence[Source],
        files: Sequence[FoundFile],
        contents: Contents,
        circumstances: Circumstances,
    ) -> None:
        self._sources = sources
        self._contents = contents
        self._circumstances = circumstances
        self._unclaimed: dict[Identity, FoundFile] = {}
        for file in files:
            self._unclaimed.setdefault(file.identity, file)
        self._names = {source.path for source in sources if not source.skipped}
        self._by_identity = dict(self._unclaimed)
        self._paths = {file.path: file for file in files}
        self._heads: dict[Identity, bytes | None] = {}
        self._originals = _Originals(())
        self._out = Matches()

    def run(self) -> Matches:
        unmatched = self._find_same()
        self._originals = _Originals(self._out.resumed)
        if unmatched and self._unclaimed:
            unmatched = self._find_copies(unmatched)
        self._out.missing = unmatched
        rotated = self._rotated_names()
        if self._unclaimed:
            for file in _originals_first(self._unclaimed.values()):
                self._judge(file, rotated)
        return self._out

    # --- cases 1 and 2

    def _find_same(self) -> list[Source]:
        unmatched: list[Source] = []
        for source in self._sources:
            file = self._unclaimed.get((source.device, source.inode)) or self._remounted(source)
            if file is None or not self._contents.is_intact(source, file):
                unmatched.append(source)
            elif source.skipped and file.asked_for:
                self._out.replaced.append(source)
            else:
                self._out.resumed.append((source, file))
                del self._unclaimed[file.identity]
        return unmatched

    def _remounted(self, source: Source) -> FoundFile | None:
        file = self._paths.get(source.path)
        if file is None or file.inode != source.inode or not source.known.offset:
            return None
        return self._unclaimed.get(file.identity)

    def _find_copies(self, unmatched: list[Source]) -> list[Source]:
        """Find files that are copies of the sources ``unmatched`` (case 2 in the module's docstring).

        Returns the sources for which no copy was found.
        """
        by_head: defaultdict[tuple[int, str], list[Source]] = defaultdict(list)
        for source in unmatched:
            if source.known.offset:
                by_head[min(source.known.offset, HEAD_BYTES), source.known.head].append(source)
        lengths = sorted({length for length, _ in by_head}, reverse=True)
        claimed: set[int] = set()
        for file in self._in_order_of_claims():
            head = (self._head(file) or b"") if lengths else b""
            for length in lengths:
                found = [
                    source
                    for source in by_head.get((length, digest(head[:length])), ())
                    if len(head) >= length and source.number not in claimed and self._is_copy(file, source)
                ]
                if found:
                    # Of several sources with this beginning, take the one with most known content, then the
                    # newest.
                    source = max(found, key=lambda source: (_known_bytes(source), source.number))
                    claimed.add(source.number)
                    self._out.resumed.append((source, file))
                    self._originals.add(source, file)
                    del self._unclaimed[file.identity]
                    break
        return [source for source in unmatched if source.number not in claimed]

    def _in_order_of_claims(self) -> list[FoundFile]:
        """Sort plain files before compressed ones, which may be copies of them; then the older ones first.

        But files that are read in any case come after those that would be skipped: if a source took a file
        that is new, its own copy of the same content would be skipped, and the new lines be lost.
        """
        before = self._circumstances.rotated_before

        def rank(file: FoundFile) -> tuple[bool, bool, int, str]:
            is_read = file.asked_for or self._rotated_from(file, before) is not None
            return file.is_compressed, is_read, file.modified_ns, file.path

        return sorted(self._unclaimed.values(), key=rank)

    def _is_copy(self, file: FoundFile, source: Source) -> bool:
        """Whether ``file`` is a copy of the source's lost file."""
        if not is_rotation_name(file.path, source.path):
            return False
        # Truncation and compression leave copies. If the file is merely gone, a plain copy is not expected: a
        # file with the same beginning is more likely its successor, unless much content is equal.
        identity = (source.device, source.inode)
        there = self._by_identity.get(identity)
        was_truncated = source.truncated or (
            there is not None and there is not file and not self._contents.is_reborn(source, there)
        )
        is_expected = (file.is_compressed and not self._is_being_compressed(file)) or (
            was_truncated and file.path != source.path
        )
        if not is_expected and source.known.offset < TELLING_BYTES:
            return False
        if self._contents.fingerprint(file, source.known.offset) != source.known:
            return False
        preview = source.preview
        if preview.offset > source.offset and self._contents.fingerprint(file, preview.offset) != preview:
            return False  # more content is known (the preview) than was read, and it differs
        return source.known.offset >= TELLING_BYTES or not self._is_copy_of_more(file, source)

    def _is_being_compressed(self, file: FoundFile) -> bool:
        """Whether the plain file of the same name exists and has, as far as known, the same beginning."""
        plain = self._paths.get(file.path.removesuffix(GZIP_SUFFIX)) if file.is_compressed else None
        if plain is None or plain.is_gone:
            return False
        head, of_plain = self._head(file), self._head(plain)
        return head is None or of_plain is None or of_plain.startswith(head)

    def _is_copy_of_more(self, file: FoundFile, source: Source) -> bool:
        """Whether ``file`` has more content than the source, and is a copy of another file that exists."""
        return len(self._head(file) or b"") > source.known.offset and any(
            known is not None and self._contents.is_beginning(file, original)
            for known, original in self._originals.related_to(file.path)
        )

    # --- cases 3 to 5

    def _rotated_names(self) -> AbstractSet[str]:
        """Return the names that belong to another file since the last look, or whose file was truncated.

        Also sets ``rotated`` of the result.
        """
        standing = {
            file.path
            for source, file in self._out.resumed
            if file.path == source.path
            and not file.is_gone
            and not source.skipped
            and (source.known.offset or source.read_at == file.stamp)
        }
        found = {file.path for file in self._unclaimed.values() if file.asked_for}
        # An empty file that is gone may have grown before it was compressed under another name.
        vanished = {
            source.path for source in self._out.missing if not (source.skipped or source.known.offset)
        }
        self._out.rotated = ((self._names | found | set(self._circumstances.named)) - standing) | vanished
        return self._out.rotated | self._circumstances.rotated_before

    def _judge(self, file: FoundFile, rotated: AbstractSet[str]) -> None:
        """Add ``file`` to the list of the result to which it belongs: cases 3 to 5 of the module text."""
        name: str | None = file.path
        if not file.asked_for:
            if not self._is_beside(file):
                return
            name = self._rotated_from(file, rotated)
        head = self._head(file)
        original, is_copy = None, None
        if head is not None:
            why = self._why_not_text(file, head)
            if why is not None:
                self._out.not_text.append((file, why))
                return
            original, is_copy = self._original_of(file, head)
        if name is not None and (is_copy is None or is_copy):
            self._out.may_be_unread.add(file.identity)
            self._out.rotated.add(name)  # so that a later compressed copy of it is not skipped
        if head is None or is_copy is None:
            self._out.undecided.append(file)
        elif original is not None and is_copy:
            self._out.copies.append((file, original.path))
        elif name is None:
            self._out.skipped.append(file)
        else:
            self._out.new.append(NewFile(file, name, head))
            self._originals.add(None, file)

    def _is_beside(self, file: FoundFile) -> bool:
        """Whether rotation gives this name to one of the files that are asked for."""
        return any(
            is_derived(file.path, name)
            for name in possible_originals(file.path)
            if name in self._names or name in self._circumstances.named or name in self._paths
        )

    def _rotated_from(self, file: FoundFile, rotated: AbstractSet[str]) -> str | None:
        """Return the name under which the lines of a file not asked for were written; None: skip it."""
        if not self._circumstances.is_watched(file):
            return None
        made_of = [
            name for name in possible_originals(file.path) if name in rotated and is_derived(file.path, name)
        ]
        if made_of:
            return max(made_of, key=len)
        return file.path if self._circumstances.may_be_unread(file) else None

    def _original_of(self, file: FoundFile, head: bytes) -> tuple[FoundFile | None, bool | None]:
        """Return the original of ``file``, and whether ``file`` is a copy of it; None: not known yet."""
        if file.is_gone and self._circumstances.is_left_behind(file):
            return file, True  # still a copy; its original is unknown
        is_settled = not self._is_being_compressed(file) and self._circumstances.is_settled(file)
        is_other = bool(head) and len(head) < TELLING_BYTES and is_settled
        for source, original in self._originals.related_to(file.path):
            if is_other and not (file.is_compressed and original.is_gone):
                continue  # but a compressed copy of a deleted file is expected at any age
            original_head = self._head(original)
            if original_head is None:
                return original, None
            if not original_head.startswith(head):
                continue
            is_copy = self._contents.is_beginning(file, original)
            if is_copy is None or is_copy:
                return original, is_copy
            if source is not None and not self._contents.is_intact(source, original):
                return original, None  # it was truncated between two steps of this look
        return None, False

    def _why_not_text(self, file: FoundFile, head: bytes) -> str | None:
        """Return why ``file`` does not seem to consist of lines; None if it does, or is read anyway.

        A file under the name of one that was read, also a rotated one, is read too: it is the same log.
        """
        if file.path in self._circumstances.named:
            return None
        if file.path.endswith(UNREADABLE_SUFFIXES):
            return "its name is that of compressed content other than gzip: unpack it to ingest it"
        if not self._names.isdisjoint({file.path, *possible_originals(file.path)}):
            return None
        if is_utf16(head):
            return UTF16
        if head.startswith(b"\0"):
            head = self._contents.after_hole(file) or b"\0"
        return NUL if b"\0" in head else None

    def _head(self, file: FoundFile) -> bytes | None:
        if file.identity not in self._heads:
            self._heads[file.identity] = self._contents.head(file)
        return self._heads[file.identity]


def _known_bytes(source: Source) -> int:
    return max(source.offset, source.preview.offset)


NUL = "it has NUL bytes at its beginning, so it is no text; name it to ingest it"
UTF16 = "it is UTF-16 text: convert it first, as with iconv -f UTF-16 -t UTF-8"


def is_utf16(head: bytes) -> bool:
    """Whether a file begins with the byte order mark of UTF-16: its lines do not end with a byte of LF."""
    return head.startswith((b"\xff\xfe", b"\xfe\xff"))


class _Originals:
    """The files of which others may be copies, by their present names and those they were found under."""

    def __init__(self, resumed: Iterable[tuple[Source, FoundFile]]) -> None:
        self._by_name: defaultdict[str, list[tuple[Source | None, FoundFile]]] = defaultdict(list)
        self._gone: list[tuple[Source | None, FoundFile]] = []
        for source, file in resumed:
            self.add(source, file)

    def add(self, source: Source | None, file: FoundFile) -> None:
        if source is None or not source.skipped:
            names = {file.path, source.path} if source is not None else {file.path}
            for name in names:
                self._by_name[name].append((source, file))
            if file.is_gone:
                self._gone.append((source, file))

    def related_to(self, path: str) -> list[tuple[Source | None, FoundFile]]:
        """Return the files of which a file called ``path`` may be a copy, with their sources."""
        named = [found for name in possible_originals(path) for found in self._by_name.get(name, ())]
        # A deleted file's last name is a weaker hint: its copy may have been renamed since.
        return named + [(source, file) for source, file in self._gone if is_rotation_name(path, file.path)]


def _originals_first(files: Iterable[FoundFile]) -> list[FoundFile]:
    """Sort likely originals before their copies: plain before compressed, then by length of the path."""
    return sorted(files, key=lambda file: (file.is_compressed, len(file.path), file.path))
