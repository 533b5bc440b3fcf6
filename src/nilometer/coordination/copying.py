"""Copying the content of one store to another, while no broker uses either.

The source is closed before it is read: from then on brokers refuse it, and its description names the target.
The target counts only when everything in it was written, and read again: a copy that a kill interrupted is
repeated. A copy that fails removes what it has written, and opens the source again.
Entries keep their numbers, since broker epochs are such numbers; the cluster keeps its id and its secret.

Incarnations of sessions are the stores' own (FRESH_INCARNATION), and the copied metadata names some. So the
target is told the highest one of each broker, and gives none of these again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from nilometer.coordination.store import (
    CoordinationError,
    EntriesRetired,
    Entry,
    Snapshot,
    StoreDamaged,
    StoredSecret,
    StoreMoved,
    StoreRefused,
    StoreUnavailable,
)

READ_ENTRIES_MAX = 256

T = TypeVar("T")

Incarnations = Mapping[int, int]
"""By broker id: the highest incarnation that the metadata names."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """All that a store keeps, but for its sessions."""

    cluster_id: str
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    """Those after the snapshot."""
    secret: StoredSecret | None

    @property
    def next_number(self) -> int:
        return (0 if self.snapshot is None else self.snapshot.number) + len(self.entries)


class Reading(Protocol):
    async def read(self, from_number: int, limit: int) -> list[Entry]: ...

    async def read_snapshot(self) -> Snapshot | None: ...


class Source(Protocol):
    """A store to copy from."""

    @property
    def name(self) -> str:
        """As ``nilometer.coordination`` names it."""
        ...

    @property
    def cluster_id(self) -> str:
        """Known once open, as ``moved_to``: the target of an earlier copy; "" without one."""
        ...

    @property
    def moved_to(self) -> str: ...

    async def open(self) -> None:
        """Raises StoreRefused, StoreUnavailable, StoreDamaged."""
        ...

    async def users(self) -> list[str]:
        """Return what uses the store: brokers that run."""
        ...

    async def note_moved(self, target: str) -> None:
        """Close the store for brokers, because ``target`` has its content; "": open it again."""
        ...

    async def contents(self) -> Contents: ...

    async def close(self) -> None:
        """Release what :meth:`open` took."""
        ...


class Target(Protocol):
    """A store that does not exist yet."""

    @property
    def name(self) -> str: ...

    async def open(self, source: str, cluster_id: str, *, is_repeated: bool = False) -> None:
        """Check that there is nothing, or an interrupted copy of the same source; if the copy is repeated,
        that there is one: else the source may have been copied to another machine, to a store of this name.

        Raises StoreRefused, StoreUnavailable.
        """
        ...

    async def write(self, contents: Contents, incarnations: Incarnations) -> None:
        """Write everything, durably; it does not count yet."""
        ...

    async def written(self) -> Contents:
        """Return what was written, read from where it is."""
        ...

    async def publish(self) -> None:
        """From now on it is the store."""
        ...

    async def is_published(self) -> bool:
        """Whether it is, after :meth:`publish` has failed."""
        ...

    async def discard(self) -> None:
        """Remove what was written: it takes space, and is not published. Raises StoreDamaged if another
        command copies to it."""
        ...

    async def close(self) -> None: ...


async def copy(
    source: Source,
    target: Target,
    incarnations_of: Callable[[Contents], Incarnations],
    adapted: Callable[[Contents], Contents] | None = None,
) -> Contents:
    """Copy a store that is open; return what was copied. If it fails, brokers may use the source as before;
    the error says so if they may not.

    ``incarnations_of``: reads the metadata, which is opaque here. ``adapted``: returns what of the contents
    the target can use; None: all. Raises CoordinationError.
    """
    await _check_unused(source)
    if source.moved_to not in ("", target.name):  # by a copy that was interrupted
        raise StoreMoved(source.name, source.moved_to)
    await target.open(source.name, source.cluster_id, is_repeated=bool(source.moved_to))
    try:
        await source.note_moved(target.name)
        await _check_unused(source)  # none was started in between, and none is from now on
        found = await source.contents()
        contents = found if adapted is None else adapted(found)
        await target.write(contents, incarnations_of(contents))
        if await target.written() != contents:
            raise StoreDamaged(f"{target.name} does not have what was written to it")
        if await source.contents() != found:
            raise StoreRefused(f"{source.name} has changed while it was read: stop all its brokers")
        await target.publish()
    except BaseException as error:
        await _undo(source, target, error)
        raise
    return contents


async def _undo(source: Source, target: Target, failed: BaseException) -> None:
    """Open the source again after a copy that ``failed``. Raises StoreUnavailable if it stays closed."""
    try:
        is_published = await target.is_published()
        if not is_published:
            try:
                await target.discard()
            except StoreDamaged:
                raise  # another command copies to it: the source stays closed
            except BaseException:
                await source.note_moved("")
                raise
            await source.note_moved("")
    except CoordinationError as error:
        raise StoreUnavailable(
            f"{_why(failed)}. And {source.name} could not be opened again: {error}. If brokers refuse it, "
            'repeat the copy, or open it with "nilometer metadata reopen"'
        ) from failed
    if is_published:
        raise StoreUnavailable(
            f"{_why(failed)}. But {target.name} is complete: use it, {source.name} is closed"
        ) from failed


def _why(failed: BaseException) -> str:
    return str(failed) if isinstance(failed, Exception) else "the copy was interrupted"


def not_begun(source: str, target: str) -> StoreRefused:
    """The error of a target that should have an interrupted copy."""
    return StoreRefused(
        f"{source} is closed, because its metadata was copied to {target}, and nothing of it is there: "
        "perhaps on another machine. If no broker has used it there, open the store again with "
        '"nilometer metadata reopen", and repeat the copy'
    )


async def to_end(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, which cancelling does not stop, to its end: what comes next must not run beside it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _check_unused(source: Source) -> None:
    if users := await source.users():
        raise StoreRefused(f"{source.name} is in use by {', '.join(users)}: stop all brokers first")


async def read_all(reader: Reading, cluster_id: str, secret: StoredSecret | None) -> Contents:
    """Return the contents of a store that no broker writes to. Raises CoordinationError."""
    snapshot: Snapshot | None = None
    entries: list[Entry] = []
    number = 0
    while True:
        try:
            found = await reader.read(number, READ_ENTRIES_MAX)
        except EntriesRetired:
            if number:
                raise
            snapshot = await reader.read_snapshot()
            if snapshot is None or not snapshot.number:
                raise
            number = snapshot.number
            continue
        if not found:
            return Contents(cluster_id=cluster_id, snapshot=snapshot, entries=tuple(entries), secret=secret)
        entries += found
        number = found[-1].number + 1
