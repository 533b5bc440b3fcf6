"""The file of a recording: what is written survives the death of the process, and costs the event loop next
to no system call, and no fault of a new page.

Entries are copied into a *slot*, a part of the file that stays mapped into memory. A full slot is written to
the file's end, as a *block*, and begun again. So at any moment the blocks, and then the slot, are the
recording. A thread that did the writing would cost far more: it had to wait for the interpreter's lock.

File: a page with ``MAGIC``, the lengths of the last entry and of the header, and the last entry, if the
recording has ended; the header (MessagePack), to the end of a page; the slot; blocks, of its size each. Slot
and block: number from 1 on, length of what follows, the part of that up to the end of the last entry that is
whole, CRC-32C (of a block, and of the slot if the recording has ended), and the entries. One that is longer
than what is left of its slot goes on in the next. Numbers are ``u64`` of the machine's byte order.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from typing import BinaryIO

import msgspec
from crc32c import crc32c
from typing_extensions import Buffer

from nilometer.recorder.tape import HEADER_MAX, Header, NotARecording, RecordingEnded

MAGIC = b"nilometer recording 2\n..".replace(b".", b"\0")
_WORD = 8
_LAST, _HEADER = 3, 4
"""The words of the first page: the length of the last entry, and of the header."""
_LAST_AT = 5 * _WORD
_HEAD = 4 * _WORD
_NUMBER, _LENGTH, _WHOLE, _CRC = range(4)
PAGE = 4_096
SLOT = 128 * 1024
_ROOM = SLOT - _HEAD


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


class SlotFile:
    """A recording that is being written, by the event loop's thread alone."""

    def __init__(self, path: str, header: Header, bytes_max: int) -> None:
        """``bytes_max``: of the file, but one block at least. Raises OSError."""
        encoded = msgspec.msgpack.encode(header)
        slot_at = PAGE + -(-len(encoded) // PAGE) * PAGE
        self._blocks_at = slot_at + SLOT
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
        self._map[: len(MAGIC)] = MAGIC
        self._map[PAGE : PAGE + len(encoded)] = encoded
        view = memoryview(self._map)
        self._page = view[:PAGE].cast("Q")
        self._page[_HEADER] = len(encoded)
        self._slot = view[slot_at : self._blocks_at]
        self._head = self._slot[:_HEAD].cast("Q")
        self._start = slot_at + _HEAD
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._at = self._start
        self._number += 1
        head = self._head
        head[_LENGTH] = head[_WHOLE] = head[_CRC] = 0
        head[_NUMBER] = self._number

    def write(self, entries: bytes, data: Buffer = b"") -> None:
        """Write whole entries. ``data``: the last bytes of the last one. Raises RecordingEnded."""
        middle = self._at + len(entries)
        end = middle + len(data)  # type: ignore[arg-type]  # bytes, or a view of bytes
        if end > self._blocks_at:
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
            if self._at == self._blocks_at:
                self._write_block()
                self._begin()
            taken = min(len(rest), self._blocks_at - self._at)
            self._map[self._at : self._at + taken] = rest[:taken]
            self._at += taken
            self._head[_LENGTH] = self._at - self._start
            rest = rest[taken:]
        self._head[_WHOLE] = self._head[_LENGTH]

    def _write_block(self) -> None:
        """Write the full slot to the file's end. Raises RecordingEnded."""
        self._head[_CRC] = crc32c(self._slot[_HEAD:])
        written, at = 0, self._blocks_at + (self._number - 1) * SLOT
        try:
            while written < SLOT:  # the end of a disk takes a part
                written += os.pwrite(self._descriptor, self._slot[written:], at + written)
        except OSError as error:
            raise RecordingEnded(f"its file cannot be written: {error.strerror}") from error

    def finish(self, entry: bytes) -> None:
        """Write the last entry, of at most ``LAST_BYTES``, for which there is always room."""
        self._head[_CRC] = crc32c(self._slot[_HEAD : _HEAD + self._head[_LENGTH]])
        self._map[_LAST_AT : _LAST_AT + len(entry)] = entry
        self._page[_LAST] = len(entry)

    def close(self) -> None:
        """What is in the slot stays there."""
        if self._descriptor < 0:
            return
        for view in (self._page, self._head, self._slot):
            view.release()
        self._map.close()
        os.close(self._descriptor)
        self._descriptor = -1


def read_recording(path: str) -> Iterator[bytes]:
    """Yield the header, and then all whole entries, some at a time. Another process may be writing.

    Of a process that was killed these are all that it wrote. Raises OSError, and NotARecording, which for
    what is damaged or cut comes behind the entries before the damage.
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
        yield from _whole_entries(_contents(file, PAGE + -(-len(header) // PAGE) * PAGE, path))
        if last := page[_LAST_AT : _LAST_AT + words[_LAST]]:
            yield last


def _contents(file: BinaryIO, slot_at: int, path: str) -> Iterator[tuple[bytes, int]]:
    """Yield what is in each block, and in the slot, with the length of its whole entries.

    The slot's number says how many blocks there are. Its own block may be there, too, or a part of it: a
    process was killed between the end of a block and the beginning of the slot. Another process that writes
    makes the file longer at any moment, and the slot's number greater: so they are looked at in this order.
    Of a file that was copied meanwhile the slot may be older than the last blocks. Raises NotARecording.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(slot_at)
    slot = file.read(SLOT)
    if len(slot) < SLOT:
        raise NotARecording(f"{path} is damaged: it is cut short before its first block")
    slot_number = memoryview(slot[:_HEAD]).cast("Q")[_NUMBER]
    number = 1
    while (found := _content(block := file.read(SLOT), number)) is not None and len(block) == SLOT:
        yield found
        number += 1
    is_cut = number < slot_number or size > slot_at + SLOT + number * SLOT
    if is_cut or slot_number < 1 or (number > slot_number and _content(slot, slot_number) is None):
        raise NotARecording(f"{path} is damaged in block {number}: what follows cannot be read")
    if number == slot_number:
        if (found := _content(slot, number)) is None:
            raise NotARecording(f"{path} is damaged in block {number}, its last one")
        yield found


def _content(slot: bytes, number: int) -> tuple[bytes, int] | None:
    """Return what is in a block or the slot, and the length of its whole entries; None if it is not sound."""
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
    begun = list[bytes]()
    for content, whole in contents:
        if whole:
            yield b"".join((*begun, content[:whole]))
            begun = [content[whole:]]
        else:
            begun.append(content)
