"""Whether this version can fold the whole metadata log: checked before the broker writes anything.

The broker folds the log again when it has opened its log directories, which changes them: it removes the
marker of a clean shutdown, and recovers logs. A version that cannot go on should change nothing. Only a
store on this machine is read ahead; a ZooKeeper ensemble is read once, later.
"""

from __future__ import annotations

from nilometer.broker.control.metadata_log import blocked_reason
from nilometer.cluster.entries import BadEntry
from nilometer.cluster.history import MetadataHistory
from nilometer.coordination import CoordinationError, EntriesRetired, StoreReader, open_reader
from nilometer.invariants import InvariantBroken
from nilometer.runtime import Runtime

READ_ENTRIES_MAX = 256


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
