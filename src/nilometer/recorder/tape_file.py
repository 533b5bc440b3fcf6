"""The file of a recording: what is written survives the death of the process, and costs the event loop
neither a system call nor a fault of a new page.

Entries are copied into a *ring* of slots, a part of the file that stays mapped into memory. A thread copies
each full slot behind the ring, as a *block*. So at any moment the blocks, and then the slots that are no
blocks yet, are the recording.

File: a page with ``MAGIC``, the lengths of the last entry and of the header, and the last entry, if the
recording has ended; the header (MessagePack), to the end of a page; ``SLOTS`` slots; blocks, of a slot's size
each. Slot and block: number from 1 on, length of what follows, the part of that up to the end of the last
entry that is whole, CRC-32C (not of a slot that is being filled), and the entries. One that is longer than
what is left of its slot goes on in the next. Numbers are ``u64`` of the machine's byte order.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import BinaryIO

import msgspec
from crc32c import crc32c
from typing_extensions import Buffer

from nilometer.recorder.tape import Header, NotARecording, RecordingEnded

MAGIC = b"nilometer recording 2\n..".replace(b".", b"\0")
_WORD = 8
_LAST, _HEADER = 3, 4
"""The words of the first page: the length of the last entry, and of the header."""
_LAST_AT = 5 * _WORD
_HEAD = 4 * _WORD
_NUMBER, _LENGTH, _WHOLE, _CRC = range(4)
PAGE = 4_096
SLOT = 256 * 1024
SLOTS = 8
_ROOM = SLOT - _HEAD
HEADER_MAX = 16 * 1024 * 1024
STALL_S = 5.0
"""So many seconds the broker waits for a disk that does not keep up; then the recording ends."""


def is_being_written(path: str) -> bool:
    """Whether a process has a recording open. Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class RingFile:
    """A recording that is being written, by the event loop's thread alone."""

    def __init__(self, path: str, header: Header, bytes_max: int) -> None:
        """``bytes_max``: of the file, but one block at least. Raises OSError."""
        encoded = msgspec.msgpack.encode(header)
        self._ring_at = PAGE + -(-len(encoded) // PAGE) * PAGE
        self._blocks_at = self._ring_at + SLOTS * SLOT
        self._blocks_max = max(1, (bytes_max - self._blocks_at) // SLOT)
        self._bytes_max = bytes_max
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._descriptor, 0, self._blocks_at)
            self._map = mmap.mmap(self._descriptor, self._blocks_at)
        except OSError as error:
            os.close(self._descriptor)
            os.unlink(path)
            raise OSError(f"{path} cannot be written: {error}") from error
        self._view = memoryview(self._map)
        self._page = self._view[:PAGE].cast("Q")
        self._heads = [
            self._view[at : at + _HEAD].cast("Q") for at in range(self._ring_at, self._blocks_at, SLOT)
        ]
        self._map[: len(MAGIC)] = MAGIC
        self._map[PAGE : PAGE + len(encoded)] = encoded
        self._page[_HEADER] = len(encoded)
        self._writer = ThreadPoolExecutor(1, "recording")
        self._writing = deque[Future[None]]()
        """Slots that become blocks, in their order."""
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        """Begin the next slot, which is free."""
        slot = self._number % SLOTS
        self._head = head = self._heads[slot]
        self._start = self._at = self._ring_at + slot * SLOT + _HEAD
        self._end = self._start + _ROOM
        self._number += 1
        head[_LENGTH] = head[_WHOLE] = head[_CRC] = 0
        head[_NUMBER] = self._number

    def write(self, entries: bytes, data: Buffer = b"") -> None:
        """Write whole entries. ``data``: the last bytes of the last one. Raises RecordingEnded."""
        middle = self._at + len(entries)
        end = middle + len(data)  # type: ignore[arg-type]  # bytes, or a view of bytes
        if end > self._end:
            self._write_over(entries, data)
            return
        self._map[self._at : middle] = entries
        if end > middle:
            self._map[middle:end] = data
        self._at = end
        head = self._head
        head[_LENGTH] = head[_WHOLE] = end - self._start  # from now on it is there

    def _write_over(self, entries: bytes, data: Buffer) -> None:
        """Write what goes on in the next slot."""
        rest = memoryview(b"".join((entries, data)))
        if self._number + len(rest) // _ROOM + 1 > self._blocks_max:
            raise RecordingEnded(f"it has reached its bound of {self._bytes_max} bytes")
        while rest:
            if self._at == self._end:
                self._next()
            taken = min(len(rest), self._end - self._at)
            self._map[self._at : self._at + taken] = rest[:taken]
            self._at += taken
            self._head[_LENGTH] = self._at - self._start
            rest = rest[taken:]
        self._head[_WHOLE] = self._head[_LENGTH]

    def _next(self) -> None:
        self._writing.append(self._writer.submit(self._write_block, self._number))
        if len(self._writing) == SLOTS:  # the next slot is that of the first of them
            try:
                self._writing[0].result(STALL_S)
            except TimeoutError:
                reason = f"its disk does not keep up: nothing was written in {STALL_S:g} s"
                raise RecordingEnded(reason) from None
            except OSError as error:
                raise RecordingEnded(f"its file cannot be written: {error.strerror}") from error
            self._writing.popleft()
        self._begin()

    def _write_block(self, number: int) -> None:
        """Copy a full slot behind the ring; runs on the writer's thread. Raises OSError."""
        slot = (number - 1) % SLOTS
        start = self._ring_at + slot * SLOT
        with (
            self._view[start : start + SLOT] as data,
            data[_HEAD : _HEAD + self._heads[slot][_LENGTH]] as entries,
        ):
            self._heads[slot][_CRC] = crc32c(entries)
            written = 0
            while written < SLOT:  # the end of a disk takes a part
                at = self._blocks_at + (number - 1) * SLOT + written
                written += os.pwrite(self._descriptor, data[written:], at)

    def finish(self, entry: bytes) -> None:
        """Write the last entry, of at most ``LAST_BYTES``, for which there is always room."""
        self._map[_LAST_AT : _LAST_AT + len(entry)] = entry
        self._page[_LAST] = len(entry)

    def close(self) -> None:
        """What is in the ring stays there."""
        if self._descriptor < 0:
            return
        wait(self._writing, STALL_S)
        self._writer.shutdown(wait=False, cancel_futures=True)
        if not all(each.done() for each in self._writing):
            return  # a thread hangs in a call of the disk, and has the file open
        for words in (*self._heads, self._page, self._view):
            words.release()
        self._map.close()
        os.close(self._descriptor)
        self._descriptor = -1


def read_recording(path: str) -> Iterator[bytes]:
    """Yield the header, and then all whole entries, some at a time. Another process may be writing.

    Raises NotARecording and OSError.
    """
    with open(path, "rb") as file:
        page = file.read(PAGE)
        if page[: len(MAGIC)] != MAGIC or len(page) < PAGE:
            raise NotARecording(f"{path} is no recording, or one of another version")
        words = memoryview(page).cast("Q")
        if max(words[_HEADER], words[_LAST]) > HEADER_MAX:
            raise NotARecording(f"{path} is no recording, or one of another machine")
        header = file.read(words[_HEADER])
        if len(header) < words[_HEADER]:
            raise NotARecording(f"{path} has no header")
        yield header
        file.seek(PAGE + -(-len(header) // PAGE) * PAGE)
        ring = file.read(
            SLOTS * SLOT
        )  # before the blocks: a slot becomes a block meanwhile, and not the reverse
        yield from _whole_entries(_contents(file, ring))
        if last := page[_LAST_AT : _LAST_AT + words[_LAST]]:
            yield last


def _contents(file: BinaryIO, ring: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield what is in each block, and each slot that is none yet, with the length of its whole entries."""
    number = 1
    while block := file.read(SLOT):
        found = _content(block, number)
        if found is None:
            break
        yield found
        number += 1
    slots = [ring[at : at + SLOT] for at in range(0, len(ring), SLOT)]
    while slots:
        found = _content(slots[(number - 1) % len(slots)], number)
        if found is None:
            return
        yield found
        number += 1


def _content(slot: bytes, number: int) -> tuple[bytes, int] | None:
    if len(slot) < _HEAD:
        return None
    head = memoryview(slot[:_HEAD]).cast("Q")
    content = slot[_HEAD : _HEAD + head[_LENGTH]]
    if head[_NUMBER] != number or not head[_WHOLE] <= head[_LENGTH] == len(content):
        return None
    if head[_CRC] and head[_CRC] != crc32c(content):
        return None
    return content, head[_WHOLE]


def _whole_entries(contents: Iterator[tuple[bytes, int]]) -> Iterator[bytes]:
    begun = b""
    for content, whole in contents:
        if whole:
            yield begun + content[:whole]
            begun = content[whole:]
        else:
            begun += content
