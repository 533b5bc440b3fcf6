"""The audit log: denied operations, and changes that clients have made, as JSON lines in rotated files.

A line has its time, kind (``denied``, ``changed``, ``dropped``), principal, client address, API and resource.
Denials that are equal but for their time are one line with a count, for each interval between two writes. So
a client that repeats a denied request cannot fill the disk; and what does not fit into memory is counted.

Files: ``audit.log`` is written, ``audit.log.1`` is the one before it. This module is their only writer.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable

import msgspec

from nilometer.broker.request_context import RequestContext
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.runtime import Runtime

logger = logging.getLogger("nilometer.broker")

FLUSH_INTERVAL_MS = 1000
DENIALS_MAX = 10_000
"""Lines kept in memory until they are written; further denials are counted as dropped."""
PENDING_MAX = 2 * DENIALS_MAX
"""The same for all lines: denials, which every client can cause, leave room for changes."""
NAME_SHOWN_MAX = 256
"""Characters of a resource's name in a line: a denied client chooses it, and may choose 32 kB."""
CHANGES_SHOWN_MAX = 100
"""Changes of one request that its line lists."""
FILE_NAME = "audit.log"

_Key = tuple[object, ...]


class _Line(msgspec.Struct, omit_defaults=True):
    time_ms: int
    kind: str
    principal: str = ""
    client_address: str = ""
    listener: str = ""
    api: str = ""
    operation: str = ""
    resource_type: str = ""
    resource: str = ""
    count: int = 1
    """How many equal denials the line stands for; for ``dropped``, how many lines were lost; for ``changed``,
    how many records of the metadata log."""
    changes: list[dict[str, object]] = []


class AuditFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where the lines are written, and how much of them is kept."""

    directory: str
    bytes_max: int
    """A file that has reached this size is followed by the next one."""
    files_max: int


class AuditLog:
    def __init__(self, runtime: Runtime, files: AuditFiles) -> None:
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._files = files
        self._pending: dict[_Key, _Line] = {}
        self._sequence = 0
        self._dropped = 0
        self._failed = False

    def denied(
        self, context: RequestContext, api: str, operation: Operation, kind: ResourceType, name: str
    ) -> None:
        if len(name) > NAME_SHOWN_MAX:
            name = f"{name[:NAME_SHOWN_MAX]}…"
        key = (context.principal, context.client_address, api, operation, kind, name)
        known = self._pending.get(key)
        if known is not None:
            known.count += 1
            return
        line = self._line("denied", context, api)
        line.operation, line.resource_type, line.resource = operation.name, kind.name, name
        self._put(key, line, DENIALS_MAX)

    def changed(self, context: RequestContext, api: str, changes: Iterable[dict[str, object]]) -> None:
        """Note a change that a client made: ``changes`` describe it, without values of settings."""
        line = self._line("changed", context, api)
        line.count = 0
        for change in changes:
            line.count += 1
            if len(line.changes) < CHANGES_SHOWN_MAX:
                line.changes.append(change)
        self._sequence += 1
        self._put((self._sequence,), line, PENDING_MAX)

    def _line(self, kind: str, context: RequestContext, api: str) -> _Line:
        return _Line(
            self._clock.wall_ms(),
            kind,
            str(context.principal),
            context.client_address,
            context.listener,
            api,
            changes=[],
        )

    def _put(self, key: _Key, line: _Line, lines_max: int) -> None:
        if len(self._pending) >= lines_max:
            self._dropped += 1
        else:
            self._pending[key] = line

    async def flush(self) -> None:
        """Write all lines noted so far. If that fails, it is logged, and the lines are lost."""
        lines, self._pending = list(self._pending.values()), {}
        if self._dropped:
            lines.append(_Line(self._clock.wall_ms(), "dropped", count=self._dropped))
            self._dropped = 0
        if not lines:
            return
        try:
            await self._disk.offload(lambda: self._write(lines))
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.error("The audit log in %s cannot be written: %s", self._files.directory, error)
            self._failed = True

    def _write(self, lines: Iterable[_Line]) -> None:
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        disk, files = self._disk, self._files
        disk.make_directories(files.directory, private=True)
        path = posixpath.join(files.directory, FILE_NAME)
        if disk.exists(path) and disk.file_size(path) >= files.bytes_max:
            self._rotate(path)
        file = disk.open(path, create=True, private=True)
        try:
            file.append([data])
        finally:
            file.close()

    def _rotate(self, path: str) -> None:
        disk = self._disk
        kept = self._files.files_max - 1
        for number in range(kept, 0, -1):
            older = path if number == 1 else f"{path}.{number - 1}"
            if disk.exists(older):
                disk.rename(older, f"{path}.{number}")
        if kept == 0:
            disk.remove(path)
