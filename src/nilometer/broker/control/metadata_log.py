"""This broker's view of the metadata log: entries read from the store, folded, and told to who must act.

Everybody learns of a change the same way, the controller included: by folding its entry here. Invariants:

- entries are folded once each, in order; subscribers hear each delta before the next entry is folded;
- whoever has to prepare for an entry is done with that before it is folded, and may be stopped in it: then
  nothing has been folded, and who goes on prepares again;
- whoever waits for an entry's number is released after subscribers have acted on it;
- an entry that this version cannot fold changes nothing, nothing behind it is folded, and no preparer hears
  of it: the log is *blocked* until the broker is restarted. All who run this version stop at the same entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.entries import BadEntry, Entry, decode_entry
from nilometer.cluster.identifiers import EntryNumber
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.partition import BrokenInvariant
from nilometer.cluster.snapshot import decode_snapshot, encode_snapshot
from nilometer.coordination.store import CoordinationError, CoordinationStore, EntriesRetired, StoreRefused

logger = logging.getLogger("nilometer.broker")

READ_ENTRIES_MAX = 256
ENTRIES_BETWEEN_SNAPSHOTS = 4096
BYTES_BETWEEN_SNAPSHOTS = 20 * 1024 * 1024
"""Entries may be large: with thousands of partitions the death of a broker is a megabyte."""

Subscriber = Callable[[ImageDelta, ClusterImage], None]
BeforeEntry = Callable[[Entry, ClusterImage], Awaitable[None]]
BeforeReload = Callable[[ClusterImage], Awaitable[None]]


class MetadataBlocked(CoordinationError):
    """The metadata log goes on with what this version of the broker cannot fold."""


class MetadataLog:
    def __init__(self, store: CoordinationStore) -> None:
        self._store = store
        self.image = ClusterImage()
        self._subscribers: list[Subscriber] = []
        self._reload_subscribers: list[Callable[[ClusterImage], None]] = []
        self._preparers: list[tuple[BeforeEntry, BeforeReload]] = []
        self._folding = asyncio.Lock()
        self._snapshot_number = 0
        self._bytes_since_snapshot = 0
        self.blocked: str | None = None
        """Why nothing more can be folded here."""
        self.on_blocked: Callable[[str], None] = lambda _reason: None
        """Told once, before anybody can act on an image that stands still."""
        self.entry_bytes: dict[int, bytes] = {}
        """The newest entries as they stand in the store, for their authors to recognise."""

    def subscribe(self, subscriber: Subscriber, on_reload: Callable[[ClusterImage], None]) -> None:
        """``on_reload`` is told when the image was replaced by a snapshot's: all of it may have changed."""
        self._subscribers.append(subscriber)
        self._reload_subscribers.append(on_reload)

    def prepare(self, before_entry: BeforeEntry, before_reload: BeforeReload) -> None:
        """``before_entry`` is awaited before an entry that counts is folded, with the image so far;
        ``before_reload`` before the image is replaced, with the one to come."""
        self._preparers.append((before_entry, before_reload))

    async def catch_up(self) -> None:
        """Fold all that the store holds now. Raises CoordinationError: MetadataBlocked if it holds an entry
        that cannot be folded.
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
                if not entries:  # a store may return fewer than asked for anywhere but at the end
                    return

    async def catch_up_with_all(self) -> None:
        """Fold all that anybody had appended before this call, for another broker may have folded it: before
        acting on its answer. Costs a round trip through the whole store. Raises CoordinationError."""
        await self._store.sync()
        await self.catch_up()

    async def check_reaches(self, number: int) -> None:
        """Raises StoreRefused where the store has lost entry ``number``, which this broker acted on once.

        By such a log all topics since then would seem deleted, and their records with them.
        """
        if self.image.number < number:
            await self.catch_up_with_all()  # one server of several may lag behind the others
        if self.image.number < number:
            raise StoreRefused(
                f"the metadata log ends with entry {self.image.number}, but entry {number} registered this "
                "broker: the coordination store was made anew, or has lost what it held. Put it back from a "
                "copy; nothing of this broker's data was touched"
            )

    async def maybe_write_snapshot(self) -> None:
        """Let a snapshot stand for the entries so far, where there are many. The controller's duty."""
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
        except Exception as error:  # whatever it is: of such a snapshot no image can be made
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
            entry = decode_entry(data)
            self.image.check_entry(EntryNumber(number), entry)
        except (BadEntry, BrokenInvariant) as error:
            raise self._block(f"entry {number} of the metadata log", error) from None
        if self.image.counts(entry):
            for before_entry, _ in self._preparers:
                await before_entry(entry, self.image)
        delta = self.image.apply_entry(EntryNumber(number), entry)
        self._bytes_since_snapshot += len(data)
        self.entry_bytes[number] = data
        self.entry_bytes.pop(number - READ_ENTRIES_MAX, None)
        if not delta.accepted:
            logger.warning(
                "Entry %d of the metadata log is of a deposed controller and changes nothing", number
            )
        for subscriber in self._subscribers:
            subscriber(delta, self.image)

    def _block(self, what: str, error: Exception) -> MetadataBlocked:
        self.blocked = (
            f"{what} cannot be folded by this version of the broker: {error}. Nothing of it was applied; "
            "restart the broker with a version that can read it"
        )
        self.on_blocked(self.blocked)
        return MetadataBlocked(self.blocked)
