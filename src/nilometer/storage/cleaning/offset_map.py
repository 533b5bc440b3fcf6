"""A map from key to newest offset for one compaction round, in bounded memory.

Of a key, only 128 bits of hash are stored, in an open-addressing table of fixed size, so a round needs no
more memory than ``log.cleaner.dedupe.buffer.size``, however long the keys are. Two keys with the same hash
would be treated as one; with 128 bits that does not happen by chance (Kafka relies on the same). The hash is
Python's own (SipHash, with a secret of the process) of the key, and of the key after a prefix: both together
take a fourth of the time of one BLAKE2 or MD5 digest.

Invariant: never more entries than :attr:`OffsetMap.capacity`, so that a search always finds a free slot.
"""

from __future__ import annotations

from array import array

NO_OFFSET = -1
SLOT_BYTES = 3 * 8
"""Bytes of a hash and an offset."""
LOAD_FACTOR = 0.9
"""Kafka's default of ``log.cleaner.io.buffer.load.factor``."""

PIECE_SLOTS = 1 << 15
"""How many slots are allocated or freed at once. All 128 MB in one call would hold the interpreter, and with
it the event loop, for 30 to 70 ms."""

_SECOND = b"second "
"""The prefix of the key for the second half of its hash."""


class OffsetMap:
    __slots__ = ("_count", "_ends", "_firsts", "_seconds", "_slots", "capacity")

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
        self._firsts = _zeros(slots)
        self._seconds = _zeros(slots)
        self._ends = _zeros(slots)
        """The offset after the newest one of the key; 0: the slot is free."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self.capacity

    @property
    def utilization(self) -> float:
        """The share of the capacity that is in use, from 0 to 1."""
        return self._count / self.capacity if self.capacity else 0.0

    def release(self) -> None:
        """Free the memory, piece by piece; the map is empty and full afterwards."""
        self._count = self.capacity = 0
        self._slots = 1
        for table in (self._firsts, self._seconds, self._ends):
            while len(table) > PIECE_SLOTS:
                del table[-PIECE_SLOTS:]
        self._firsts, self._seconds, self._ends = _zeros(1), _zeros(1), _zeros(1)

    def put(self, key: bytes, offset: int) -> bool:
        """Set the newest offset of ``key``, above all offsets put before; False if the map is full."""
        first, second = hash(key), hash(_SECOND + key)
        ends, slots = self._ends, self._slots
        slot = first % slots
        while ends[slot]:
            if self._firsts[slot] == first and self._seconds[slot] == second:
                ends[slot] = offset + 1
                return True
            slot += 1
            if slot == slots:
                slot = 0
        if self._count >= self.capacity:
            return False
        self._firsts[slot], self._seconds[slot], ends[slot] = first, second, offset + 1
        self._count += 1
        return True

    def get(self, key: bytes) -> int:
        """Return the newest offset of ``key``; :data:`NO_OFFSET` if it was not put."""
        first = hash(key)
        ends, slots = self._ends, self._slots
        slot = first % slots
        while end := ends[slot]:
            if self._firsts[slot] == first and self._seconds[slot] == hash(_SECOND + key):
                return end - 1
            slot += 1
            if slot == slots:
                slot = 0
        return NO_OFFSET


def _zeros(count: int) -> array[int]:
    piece = array("q", bytes(8 * PIECE_SLOTS))
    zeros = array("q")
    for _ in range(count // PIECE_SLOTS):
        zeros.extend(piece)
    zeros.extend(piece[: count % PIECE_SLOTS])
    return zeros
