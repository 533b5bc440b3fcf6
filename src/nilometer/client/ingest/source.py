"""One file that is being read: how far, and how to know it again. Pure.

A file is known by its device and inode, and by what was read of it: the hash of its first bytes and of the
last bytes before the offset. Both must still be there. So a file that was renamed is found under its new
name, a copy (as ``copytruncate`` and compression make them) is distinguished from another file that merely
begins alike, and a file that was truncated or rewritten is seen to be another one, whatever its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

HEAD_BYTES = 1024
TAIL_BYTES = 256

ReadRange = Callable[[int, int], bytes]
"""(begin, end) -> the bytes of a file's content in that range; fewer where it ends before."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of the bytes before ``offset``."""

    offset: int
    head: str
    tail: str

    @classmethod
    def of(cls, read: ReadRange, offset: int) -> Fingerprint:
        head = read(0, min(HEAD_BYTES, offset))
        tail = read(max(offset - TAIL_BYTES, 0), offset)
        return cls(offset, digest(head), digest(tail))

    def matches(self, read: ReadRange) -> bool:
        """Whether a file's content begins with what was read."""
        return Fingerprint.of(read, self.offset) == self


NOWHERE = -1
NOTHING_READ = Fingerprint(0, digest(b""), digest(b""))


@dataclass(frozen=True, slots=True)
class Source:
    """A file as of the last checkpoint. ``number`` is unique in its state file and never used again."""

    number: int
    path: str
    """The name it was found under first: what its records carry."""
    device: int
    inode: int
    fingerprint: Fingerprint = NOTHING_READ
    preview: Fingerprint = NOTHING_READ
    """Of its first bytes, taken before a line of it was sent: what it is known by until lines are counted."""
    lines: int = 0
    finished: bool = False
    """Read to its end, and its end is final."""
    read_at: tuple[int, int] | None = None
    """Size and time of change (ns) of the file when it had been read to its end: as long as they stay, there
    is nothing more to read. None while there is."""
    birth_ns: int = 0
    """When the file was created; 0 where the system does not tell."""
    skipped: bool = False
    """Known only so that it is never read: a rotated file from before ingest knew the place."""
    truncated: bool = False
    """Its file was truncated: where what was read of it is now, a short copy of it is expected."""
    gone_ms: int | None = None
    """Since when (wall clock) its file was seen to be nowhere; None while it is there."""

    @property
    def offset(self) -> int:
        """Bytes of content (decompressed, where it is compressed) whose lines are in the topic."""
        return self.fingerprint.offset

    @property
    def known(self) -> Fingerprint:
        """What is known of its content."""
        return self.fingerprint if self.offset else self.preview

    def previewed(self, head: bytes) -> Source:
        """``head``: its first bytes."""
        return replace(self, preview=Fingerprint(len(head), digest(head), digest(head[-TAIL_BYTES:])))

    def read_to(self, fingerprint: Fingerprint, lines: int) -> Source:
        return replace(self, fingerprint=fingerprint, lines=lines)

    def as_finished(self) -> Source:
        return replace(self, finished=True)

    def found_as(self, device: int, inode: int, birth_ns: int = 0) -> Source:
        return replace(
            self,
            device=device,
            inode=inode,
            birth_ns=birth_ns,
            read_at=None,
            finished=False,
            truncated=False,
            gone_ms=None,
        )

    def as_nowhere(self, *, truncated: bool) -> Source:
        """Its inode is another file's by now: only a copy of its content is its file again."""
        return replace(self, device=NOWHERE, inode=NOWHERE, read_at=None, truncated=truncated)

    def as_gone(self, since_ms: int | None) -> Source:
        return replace(self, gone_ms=since_ms)


class ContentMark:
    """Follows the content of one source as it is read, so that a fingerprint can be had of what was read.

    Of what *was* read, not of what the file holds now: it may have been truncated since.
    """

    __slots__ = ("_head", "_line_end", "_position", "_recent", "_tail")

    def __init__(self, read: ReadRange, offset: int) -> None:
        """From ``offset`` on, which is the end of a line, or 0."""
        self._head = read(0, HEAD_BYTES)[: min(HEAD_BYTES, offset)]
        self._recent = self._tail = read(max(offset - TAIL_BYTES, 0), offset) if offset else b""
        self._position = self._line_end = offset

    @property
    def position(self) -> int:
        """Bytes read, those of a line not yet complete included."""
        return self._position

    @property
    def recent(self) -> bytes:
        """The last bytes read."""
        return self._recent

    def feed(self, data: bytes) -> None:
        if len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        cut = data.rfind(b"\n") + 1
        if cut:
            self._tail = (self._recent + data[max(cut - TAIL_BYTES, 0) : cut])[-TAIL_BYTES:]
            self._line_end = self._position + cut
        self._recent = (self._recent + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self._position += len(data)

    def finish(self) -> None:
        """The last line counts too, though it has no newline."""
        self._tail, self._line_end = self._recent, self._position

    def fingerprint(self) -> Fingerprint:
        """Of all complete lines."""
        head = self._head[: min(HEAD_BYTES, self._line_end)]
        return Fingerprint(self._line_end, digest(head), digest(self._tail))
