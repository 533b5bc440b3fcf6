"""Which records, times and states does the tier of one partition have for readers?

:class:`PartitionReads` keeps no state. The :class:`~.remote_partition.RemotePartition` owns what is known of
the chain, and says which manifest readers may use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from nilometer.broker.tiering.remote_partition import RemotePartition
from nilometer.runtime.object_store import ObjectNotFound, ObjectStoreError
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.time_search import TimestampOffset
from nilometer.tier.format import Manifest
from nilometer.tier.reader import LogState, RemoteCache, RemoteReader, RemoteRecords

T = TypeVar("T")

OUTDATED_MAX = 3
"""How often a read begins again because segments were copied and deleted here meanwhile."""
LOCAL_BYTES_MAX = 64 << 10
"""So much of what follows a gap at the end of the tier is read at once."""


class _Outdated(ObjectStoreError):
    """The manifest does not name segments that were copied, and deleted here, since it was read."""


class PartitionReads:
    def __init__(self, tier: RemotePartition, cache: RemoteCache) -> None:
        self._tier = tier
        self._cache = cache

    async def read(
        self, offset: int, max_bytes: int, *, read_committed: bool
    ) -> tuple[bytes, list[AbortedTxn]]:
        """Return the batches from the one that contains ``offset`` on, and the aborted transactions of them.

        Raises OffsetOutOfRange, ObjectStoreError, DamagedObject.
        """

        async def work(reader: RemoteReader) -> tuple[bytes, list[AbortedTxn]]:
            found = await reader.read(offset, max_bytes)
            self._tier.traffic.fetched_bytes += len(found.records)
            if not found.records:
                found = self._read_local(found.next_offset, max_bytes, read_committed=read_committed)
            if not read_committed:
                return found.records, []
            aborted, local_from = await reader.aborted(offset, found.next_offset, found.records)
            if local_from is not None:
                log = self._tier.partition.log
                if log.local_start_offset > local_from:
                    raise _Outdated(
                        f"{self._tier.folder}: segments were deleted here while their copies were read"
                    )
                # Not off the event loop: it is the owner of the log that keeps what it reads of an index.
                local = log.aborted_transactions(offset, found.next_offset, found.records)
                aborted = list(dict.fromkeys((*aborted, *local)))
            return found.records, aborted

        try:
            return await self._with_reader(work)
        except OffsetOutOfRange:
            if offset < self._tier.log_from:  # what is out of range is below the log start
                await self._tier.look_for_log_start()
            raise

    def _read_local(self, offset: int, max_bytes: int, *, read_committed: bool) -> RemoteRecords:
        """Return what follows the tier, which ends with a gap."""
        log, upper = self._tier.partition.log, self._tier.partition.replica.high_watermark
        if log.local_start_offset > offset:
            raise _Outdated(f"{self._tier.folder}: segments were deleted here while their copies were read")
        if read_committed:
            upper = log.last_stable_offset(upper)
        wanted = min(max_bytes, LOCAL_BYTES_MAX)  # it is read on the event loop
        found = log.read(offset, wanted, upper) if offset < upper else None
        return (
            RemoteRecords(b"", offset)
            if found is None
            else RemoteRecords(bytes(found.records), found.next_offset)
        )

    async def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record in the tier that is not older; None if there is none. Raises as
        :meth:`read`."""
        if not await self._tier.has_what_was_deleted_here():
            raise _Outdated(f"{self._tier.folder}: the last manifest lacks records that were deleted here")
        start = self._tier.partition.log.log_start_offset
        return await self._with_reader(lambda reader: reader.offset_for_timestamp(timestamp, start))

    async def state_at(self, offset: int) -> LogState:
        """Return the state of a log that begins at ``offset``, or a little above.

        By what the present leader has written: before that, records of an unclean election's losers may be
        there. Raises as :meth:`read`.
        """
        return await self._reader_of(await self._tier.manifest_of_present_leader()).state_at(offset)

    async def _with_reader(self, work: Callable[[RemoteReader], Awaitable[T]]) -> T:
        """Call ``work``; with an outdated manifest it may fail, and is called again with the last one."""
        for _ in range(OUTDATED_MAX):
            try:
                return await work(self._reader_of(await self._tier.readable(is_again=False)))
            except _Outdated:
                continue  # the last manifest that is known names what was deleted here
            except (OffsetOutOfRange, ObjectNotFound):
                break
        return await work(self._reader_of(await self._tier.readable(is_again=True)))

    def _reader_of(self, manifest: Manifest) -> RemoteReader:
        return RemoteReader(self._cache, self._tier.folder, manifest)
