"""A map from key to newest offset for one compaction round, in bounded memory.

Keys are stored as 128-bit hashes in an open-addressing table of fixed size, so a round needs no more memory
than ``log.cleaner.dedupe.buffer.size``, however long the keys are. Two keys with the same hash would be
treated as one; with 128 bits that does not happen by chance (Kafka relies on the same).

Invariant: never more entries than :attr:`OffsetMap.capacity`, so that a search always finds a free slot.
"""

from __future__ import annotations

from hashlib import blake2b

NO_OFFSET = -1
HASH_BYTES = 16
SLOT_BYTES = HASH_BYTES + 8
"""Bytes of a hash and an offset."""
LOAD_FACTOR = 0.9
"""Kafka's default of ``log.cleaner.io.buffer.load.factor``."""

_EMPTY = bytes(HASH_BYTES)
_NEVER_EMPTY = bytes(HASH_BYTES - 1) + b"\x01"


class OffsetMap:
    __slots__ = ("_count", "_hashes", "_offsets", "_slots", "capacity")

    def __init__(
        self, buffer_bytes: int, load_factor: float = LOAD_FACTOR, keys_max: int | None = None
    ) -> None:
        """Allocate a table of at most ``buffer_bytes``; smaller if at most ``keys_max`` keys will be put.

        Raises ValueError if not even one key fits.
        """
        slots = buffer_bytes // SLOT_BYTES
        if keys_max is not None:
            slots = min(slots, int(keys_max / load_factor) + 2)
        self.capacity = min(int(slots * load_factor), slots - 1)
        if self.capacity < 1:
            raise ValueError(f"an offset map of {buffer_bytes} bytes holds no key")
        self._slots = slots
        self._hashes = bytearray(slots * HASH_BYTES)
        self._offsets = memoryview(bytearray(slots * 8)).cast("q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self.capacity

    @property
    def utilization(self) -> float:
        """The share of the capacity that is in use, from 0 to 1."""
        return self._count / self.capacity

    def put(self, key: bytes, offset: int) -> bool:
        """Set the newest offset of ``key``, above all offsets put before; False if the map is full."""
        digest, slot = self._find(key)
        if slot < 0:
            if self._count >= self.capacity:
                return False
            slot = -slot - 1
            self._hashes[slot * HASH_BYTES : (slot + 1) * HASH_BYTES] = digest
            self._count += 1
        self._offsets[slot] = offset
        return True

    def get(self, key: bytes) -> int:
        """Return the newest offset of ``key``; :data:`NO_OFFSET` if it was not put."""
        _, slot = self._find(key)
        return self._offsets[slot] if slot >= 0 else NO_OFFSET

    def _find(self, key: bytes) -> tuple[bytes, int]:
        """Return the key's hash and its slot; if it has none, ``-1 - slot`` of the free slot it would get."""
        digest = blake2b(key, digest_size=HASH_BYTES).digest()
        if digest == _EMPTY:
            digest = _NEVER_EMPTY
        hashes, slots = self._hashes, self._slots
        slot = int.from_bytes(digest[:8]) % slots
        while True:
            found = bytes(hashes[slot * HASH_BYTES : (slot + 1) * HASH_BYTES])
            if found == digest:
                return digest, slot
            if found == _EMPTY:
                return digest, -slot - 1
            slot += 1
            if slot == slots:
                slot = 0
