"""Sources of ingest as a test writes them down."""

from __future__ import annotations

from nilometer.client.ingest.source import Fingerprint, Source


def reading(content: bytes):
    return lambda begin, end: content[begin:end]


def source_of(path: str, inode: int, read: bytes, number: int = 0, *, finished: bool = False) -> Source:
    fingerprint = Fingerprint.of(reading(read), len(read))
    return Source(number, path, 1, inode, fingerprint, lines=read.count(b"\n"), finished=finished)


LOG = b"".join(b"line %d\n" % number for number in range(400))
