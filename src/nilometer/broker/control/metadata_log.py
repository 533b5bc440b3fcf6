"""This broker's view of the metadata log: entries are read from the store, folded, and passed to subscribers.

Before the broker writes anything it checks that its version can fold the whole log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.entries import BadEntry, Entry, decode_entry, decode_snapshot, encode_snapshot
from nilometer.cluster.history import MetadataHistory
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.prepared_entry import PreparedEntry
from nilometer.coordination.factory import StoreReader, open_reader
from nilometer.coordination.store import CoordinationError, CoordinationStore, EntriesRetired, StoreRefused
from nilometer.identifiers import EntryNumber
from nilometer.invariants import InvariantBroken
from nilometer.runtime import Runtime
from nilometer.steps import at_once

logger = logging.getLogger("nilometer.broker.control")

READ_ENTRIES_MAX = 256
LARGE_ENTRY_BYTES = 32 * 1024
"""An entry above this size is decoded, checked and applied in a turn of the event loop each."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Of the newest entries as stored: one may have almost a megabyte, as clients alter settings."""
ENTRIES_BETWEEN_SNAPSHOTS = 4096
BYTES_BETWEEN_SNAPSHOTS = 20 * 1024 * 1024
"""Entries may be large: with thousands of partitions the entry of a failed broker takes a megabyte."""

Subscriber = Callable[[ImageDelta, ClusterImage], Awaitable[None] | None]
BeforeEntry = Callable[[Entry, ClusterImage], Awaitable[None]]
BeforeReload = Callable[[ClusterImage], Awaitable[None]]


class MetadataBlocked(CoordinationError):
    """The metadata log has an entry that this version of the broker cannot fold."""


class _Checked(NamedTuple):
    number: int
    data: bytes
    entry: Entry
    prepared: PreparedEntry


class MetadataLog:
    def __init__(
        self,
        store: CoordinationStore,
        on_blocked: Callable[[str], None] = lambda _reason: None,
        turns: Turns | None = None,
    ) -> None:
        """``on_blocked`` is called once, before any request can act on an image that is no longer updated.

        ``turns``: in which large entries are prepared; None: at once."""
        self._store = store
        self._turns = turns
        self.image = ClusterImage()
        self._subscribers: list[Subscriber] = []
        self._reload_subscribers: list[Callable[[ClusterImage], None]] = []
        self._preparers: list[tuple[BeforeEntry, BeforeReload]] = []
        self._folding = asyncio.Lock()
        self._snapshot_number = 0
        self._bytes_since_snapshot = 0
        self.blocked: str | None = None
        """Why no more entries can be folded; None while they can."""
        self._on_blocked = on_blocked
        self.entry_bytes: dict[int, bytes] = {}
        """The newest entries as stored, by number, so that the controller recognises its own."""
        self._kept_bytes = 0
        self._checked: _Checked | None = None
        """An entry that this broker has checked, to append it."""

    def subscribe(self, subscriber: Subscriber, on_reload: Callable[[ClusterImage], None]) -> None:
        """Call ``subscriber`` after each folded entry, with the delta and the new image. It may return what
        remains to be awaited before the next subscriber is called.

        ``on_reload`` is called when a snapshot has replaced the image: all of it may have changed.
        """
        self._subscribers.append(subscriber)
        self._reload_subscribers.append(on_reload)

    def prepare(self, before_entry: BeforeEntry, before_reload: BeforeReload) -> None:
        """Await ``before_entry`` before an entry that counts is folded, with the entry and the current image;
        and ``before_reload`` before the image is replaced, with the new image."""
        self._preparers.append((before_entry, before_reload))

    async def check(self, number: int, entry: Entry, data: bytes) -> bool:
        """Check an entry that is to be appended next; it is not checked again when it is folded.

        ``data``: the entry as stored. Returns False if another entry has been folded meanwhile. Raises
        InvariantBroken.
        """
        prepared = await self._prepare(entry)
        if number != self.image.number + 1:
            return False
        self.image.check_entry(EntryNumber(number), entry, prepared)
        self._checked = _Checked(number, data, entry, prepared)
        return True

    async def _prepare(self, entry: Entry) -> PreparedEntry:
        steps = self.image.prepare(entry)
        return at_once(steps) if self._turns is None else await LongWork(self._turns).go_through(steps)

    async def catch_up(self) -> None:
        """Fold all entries that the store has now.

        Raises CoordinationError: MetadataBlocked if one of them cannot be folded.
        """
        async with self._folding:
            if self.blocked is not None:
                raise MetadataBlocked(self.blocked)
            while True:
                try:
                    entries = await self._store.read(self.image.number + 1, READ_ENTRIES_MAX)
                except EntriesRetired:
                    await self._load_snapshot()
                    continue
                for entry in entries:
                    await self._fold(entry.number, entry.data)
                if not entries:  # a store may return fewer than requested also before the end of the log
                    return

    async def catch_up_with_all(self) -> None:
        """Fold all entries appended before this call, by any broker. Raises CoordinationError.

        Needed before this broker uses the response of a broker that may have folded more entries. Costs a
        quorum round trip of the store.
        """
        await self._store.sync()
        await self.catch_up()

    async def check_reaches(self, number: int) -> None:
        """Raise StoreRefused if the metadata log ends before entry ``number``, which this broker has seen.

        With such a log all newer topics would seem deleted, and their records would be removed.
        """
        if self.image.number < number:
            await self.catch_up_with_all()  # this server of the store may lack entries that the others have
        if self.image.number < number:
            raise StoreRefused(
                f"the metadata log ends with entry {self.image.number}, but entry {number} registered this "
                "broker: the coordination store was recreated, or has lost entries. Restore it from a "
                "copy; this broker's data was not changed"
            )

    async def maybe_write_snapshot(self) -> None:
        """Write a snapshot of the image if there are many entries since the last one. Only the controller
        calls this."""
        number = self.image.number + 1
        if (
            number - self._snapshot_number >= ENTRIES_BETWEEN_SNAPSHOTS
            or self._bytes_since_snapshot >= BYTES_BETWEEN_SNAPSHOTS
        ):
            data = encode_snapshot(self.image.snapshot())
            if await self._store.write_snapshot(number, data):
                logger.info("Wrote a snapshot of the metadata below entry %d", number)
            self._snapshot_number = number
            self._bytes_since_snapshot = 0

    async def _load_snapshot(self) -> None:
        snapshot = await self._store.read_snapshot()
        if snapshot is None or snapshot.number <= self.image.number + 1:
            return
        try:
            image = ClusterImage.from_snapshot(decode_snapshot(snapshot.data))
        except Exception as error:  # whatever the error is, no image can be made of such a snapshot
            raise self._block(f"the snapshot of the metadata below entry {snapshot.number}", error) from None
        for _, before_reload in self._preparers:
            await before_reload(image)
        self.image = image
        self._snapshot_number = snapshot.number
        self._bytes_since_snapshot = 0
        for on_reload in self._reload_subscribers:
            on_reload(self.image)

    async def _fold(self, number: int, data: bytes) -> None:
        try:
            checked, self._checked = self._checked, None
            if checked is not None and (checked.number, checked.data) == (number, data):
                entry, prepared = checked.entry, checked.prepared
            else:
                entry = decode_entry(data)
                await let_others_run(data)
                prepared = await self._prepare(entry)
                self.image.check_entry(EntryNumber(number), entry, prepared)
            await let_others_run(data)
        except (BadEntry, InvariantBroken) as error:
            raise self._block(f"entry {number} of the metadata log", error) from None
        if self.image.counts(entry):
            for before_entry, _ in self._preparers:
                await before_entry(entry, self.image)
        delta = self.image.apply_entry(EntryNumber(number), entry, prepared)
        self._bytes_since_snapshot += len(data)
        self._keep(number, data)
        if not delta.accepted:
            logger.warning(
                "Entry %d of the metadata log was written by a deposed controller and is ignored", number
            )
        await self._tell(delta, 0)

    def _keep(self, number: int, data: bytes) -> None:
        """Keep an entry as stored, and forget the oldest ones if they are too many or too large."""
        kept = self.entry_bytes
        kept[number] = data
        self._kept_bytes += len(data)
        while len(kept) > READ_ENTRIES_MAX or (self._kept_bytes > KEPT_BYTES_MAX and len(kept) > 1):
            self._kept_bytes -= len(kept.pop(next(iter(kept))))

    async def _tell(self, delta: ImageDelta, first: int) -> None:
        """Call the subscribers from number ``first`` on."""
        for number in range(first, len(self._subscribers)):
            if (rest := self._subscribers[number](delta, self.image)) is not None:
                telling = self._tell_after(rest, delta, number + 1)
                if self._turns is not None:
                    telling = self._turns.noted(telling, "changes of the metadata")
                await _whole(telling)
                return

    async def _tell_after(self, rest: Awaitable[None], delta: ImageDelta, first: int) -> None:
        await rest
        await self._tell(delta, first)

    def _block(self, what: str, error: Exception) -> MetadataBlocked:
        self.blocked = blocked_reason(what, error)
        self._on_blocked(self.blocked)
        return MetadataBlocked(self.blocked)


async def let_others_run(data: bytes) -> None:
    """Leave the turn of the event loop before more is done with a large entry."""
    if len(data) > LARGE_ENTRY_BYTES:
        await asyncio.sleep(0)


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, also if this task is cancelled: the entry is in the image already."""
    working, cancelled = asyncio.ensure_future(work), False
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            cancelled = True
    working.result()
    if cancelled:
        raise asyncio.CancelledError


def blocked_reason(what: str, error: Exception) -> str:
    return (
        f"{what} cannot be applied by this version of the broker: {error}. None of it was applied; "
        "restart the broker with a version that can read it"
    )


async def why_unreadable(setting: str, runtime: Runtime) -> str | None:
    """Return why the metadata log of the local store ``setting`` cannot be folded; None if it can.

    A store that does not exist yet, or cannot be read now, is left to the broker's start.
    """
    try:
        reader = await open_reader(setting, runtime)
        try:
            return await _fold(reader)
        finally:
            await reader.close()
    except (CoordinationError, OSError):
        return None


async def _fold(reader: StoreReader) -> str | None:
    history = MetadataHistory()
    while True:
        try:
            entries = await reader.read(history.next_number, READ_ENTRIES_MAX)
        except EntriesRetired:
            snapshot = await reader.read_snapshot()
            if snapshot is None or snapshot.number <= history.next_number:
                return None  # the store contradicts itself: its own reader says how
            try:
                history.load_snapshot(snapshot.data)
            except Exception as error:  # whatever the error is, no image can be made of such a snapshot
                return blocked_reason(f"the snapshot of the metadata below entry {snapshot.number}", error)
            continue
        if not entries:
            return None
        for entry in entries:
            try:
                for _ in history.apply([(entry.number, entry.data)]):
                    pass
            except (BadEntry, InvariantBroken) as error:
                return blocked_reason(f"entry {entry.number} of the metadata log", error)
