"""A source: one ingested file, its position, and the fingerprint by which it is recognised. Pure.

A file is recognised by its device and inode, and by the content that was read: the hash of its first bytes
and of the last bytes before the offset. Both must match. So a renamed file is found under its new name, a
copy (as ``copytruncate`` and compression make them) is distinguished from another file that merely begins the
same, and a truncated or rewritten file is seen to be another one, whatever its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

HEAD_BYTES = 1024
TAIL_BYTES = 256

ReadRange = Callable[[int, int], bytes]
"""(begin, end) -> the bytes of a file's content in that range; fewer if it ends before."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of a content's first bytes (``head``) and of the last bytes before ``offset`` (``tail``)."""

    offset: int
    head: str
    tail: str

    @classmethod
    def of(cls, read: ReadRange, offset: int) -> Fingerprint:
        head = read(0, min(HEAD_BYTES, offset))
        tail = read(max(offset - TAIL_BYTES, 0), offset)
        return cls(offset, digest(head), digest(tail))

    def matches(self, read: ReadRange) -> bool:
        """Whether the content returned by ``read`` has this fingerprint."""
        return Fingerprint.of(read, self.offset) == self


NOWHERE = -1
NOTHING_READ = Fingerprint(0, digest(b""), digest(b""))


@dataclass(frozen=True, slots=True)
class Source:
    """One ingested file. ``number`` is unique in its state file and never reused."""

    number: int
    path: str
    """The path under which it was found first: the ``path`` header of its records."""
    device: int
    inode: int
    fingerprint: Fingerprint = NOTHING_READ
    preview: Fingerprint = NOTHING_READ
    """The fingerprint of its first bytes, taken before a line was sent; used while ``offset`` is 0."""
    lines: int = 0
    finished: bool = False
    """Whether it was read to its end, and the end is final."""
    read_at: tuple[int, int] | None = None
    """Size and modification time (ns) of the file when it was read to its end; None if it was not.

    While they stay the same, there is nothing more to read.
    """
    birth_ns: int = 0
    """The file's creation time in nanoseconds since 1970; 0 if unknown."""
    skipped: bool = False
    """Whether it is recorded only so that it is never read: a rotated file older than the ingest."""
    truncated: bool = False
    """Whether its file was truncated, so that a copy of the content is expected, even a short one."""
    gone_ms: int | None = None
    """The wall-clock time since which its file is missing; None while it exists."""

    @property
    def offset(self) -> int:
        """The number of bytes of (decompressed) content whose lines are in the topic."""
        return self.fingerprint.offset

    @property
    def known(self) -> Fingerprint:
        """The fingerprint by which it is recognised: of the read content, or of the first bytes."""
        return self.fingerprint if self.offset else self.preview

    def previewed(self, head: bytes) -> Source:
        """Return the source with a preview of ``head``, its first bytes."""
        return replace(self, preview=Fingerprint(len(head), digest(head), digest(head[-TAIL_BYTES:])))

    def read_to(self, fingerprint: Fingerprint, lines: int) -> Source:
        return replace(self, fingerprint=fingerprint, lines=lines)

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
        """Return the source without an inode, which is another file's now: only a copy can be its file."""
        return replace(self, device=NOWHERE, inode=NOWHERE, read_at=None, truncated=truncated)

    def as_gone(self, since_ms: int | None) -> Source:
        return replace(self, gone_ms=since_ms)


class ContentMark:
    """Computes the fingerprint of one source's content while it is read.

    The fingerprint is of the bytes that *were* read: the file may have been truncated since.
    """

    __slots__ = ("_head", "_line_end", "_position", "_recent", "_tail")

    def __init__(self, read: ReadRange, offset: int) -> None:
        """Begin at ``offset``, which is the end of a line, or 0; ``read`` returns the content before it."""
        self._head = read(0, HEAD_BYTES)[: min(HEAD_BYTES, offset)]
        self._recent = self._tail = read(max(offset - TAIL_BYTES, 0), offset) if offset else b""
        self._position = self._line_end = offset

    @property
    def position(self) -> int:
        """The number of bytes read, including those of an incomplete line."""
        return self._position

    @property
    def recent(self) -> bytes:
        """The last bytes read, at most ``TAIL_BYTES``."""
        return self._recent

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the content."""
        if len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        cut = data.rfind(b"\n") + 1
        if cut:
            self._tail = (self._recent + data[max(cut - TAIL_BYTES, 0) : cut])[-TAIL_BYTES:]
            self._line_end = self._position + cut
        self._recent = (self._recent + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self._position += len(data)

    def finish(self) -> None:
        """Include the incomplete last line in the fingerprint."""
        self._tail, self._line_end = self._recent, self._position

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of all complete lines."""
        head = self._head[: min(HEAD_BYTES, self._line_end)]
        return Fingerprint(self._line_end, digest(head), digest(self._tail))
