"""An open file: one process's descriptor on a file of its machine's disk.

Invariant: a failed write may have been executed in part, as on a real disk; the writer cannot know.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from typing_extensions import Buffer

from nilometer.simulation.file_tree import FileNode
from nilometer.simulation.host_disk import DiskUser, HostDisk


class VirtualFile:
    def __init__(self, disk: HostDisk, process: DiskUser, path: str, node: FileNode, writable: bool) -> None:
        self._disk = disk
        self._process = process
        self._path = path
        self._node: FileNode | None = node
        self._writable = writable
        disk.opened(process)

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        self._step("size")
        return len(self._checked("size").data)

    def read_at(self, position: int, length: int) -> bytes:
        self._step("read")
        return bytes(self._checked("read").data[position : position + length])

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        node = self._checked("read")
        if self._disk.cold and self._disk.chance.random() < self._disk.cold:
            return None
        return bytes(node.data[position : position + length])

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._step("append")
        node = self._to_write("append", len(data), data)
        node.append(data)
        self._disk.on_append(self._path, data)
        return len(data)

    def write_at(self, position: int, data: Buffer) -> None:
        content = bytes(data)
        self._step("write")
        grown = max(0, position + len(content) - len(self._checked("write").data))
        node = self._to_write("write", grown, b"")
        node.write(position, content)

    def truncate(self, size: int) -> None:
        self._step("truncate")
        grown = size - len(self._checked("truncate").data)
        node = self._to_write("truncate", max(0, grown), b"")
        node.truncate(size)
        self._disk.used += min(0, grown)

    def sync(self) -> None:
        self._step("sync")
        node = self._checked("sync")
        begun = node.content_mark
        self._disk.spend_fsync()
        node.sync(begun)

    def close(self) -> None:
        if self._node is not None:
            self._disk.closed(self._process)
        self._node = None

    def _to_write(self, verb: str, size: int, partly: bytes) -> FileNode:
        if not self._writable:
            raise OSError(errno.EBADF, "Bad file descriptor", self._path)
        try:
            node = self._checked(verb, size)
        except OSError:
            if self._node is not None:  # a random part is written
                part = partly[: self._disk.chance.randint(0, len(partly))]
                room = max(0, self._disk.capacity - self._disk.used)
                self._node.append(part[:room])
                self._disk.used += len(part[:room])
            raise
        self._disk.used += size
        node.modified_ms = int(self._disk.loop.time() * 1000)
        return node

    def _step(self, verb: str) -> None:
        """Start a call: an offloaded job may be suspended before it, never within it."""
        self._disk.step(self._process, verb, self._path)

    def _checked(self, verb: str, size: int = 0) -> FileNode:
        self._disk.operation(self._process, verb, self._path, size)
        if self._node is None:
            raise OSError(errno.EBADF, "Bad file descriptor", self._path)
        return self._node
