"""Writes a change to the metadata log while no broker runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nilometer.cluster.controller.controllership import offline_entry
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.entries import encode_entry
from nilometer.cluster.history import MetadataHistory
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationStore, EntriesRetired, StoreDamaged
from nilometer.identifiers import EntryNumber
from nilometer.runtime import Entropy

R = TypeVar("R")
READ_ENTRIES_MAX = 256


class BrokersRun(Exception):
    """A change is not made offline while brokers run: their controller makes it."""

    def __init__(self, broker_ids: list[int]) -> None:
        shown = ", ".join(map(str, broker_ids))
        super().__init__(f"brokers run, or have stopped only just now: {shown}")


async def change_offline(
    store: CoordinationStore, chance: Entropy, decide: Callable[[ClusterImage], Decision[R]]
) -> R:
    """Append the entry of a decision to the log of an open store; return the decision's response.

    Raises BrokersRun, Refusal, BadEntry, CoordinationError.
    """
    while True:
        history = await _history(store)
        sessions = await store.sessions()
        if sessions:
            raise BrokersRun([session.broker_id for session in sessions])
        entry, response = offline_entry(history.image, store.cluster_id, chance, decide)
        number = EntryNumber(history.next_number)
        history.image.check_entry(number, entry)
        if await store.append(number, encode_entry(entry)):
            return response


async def _history(store: CoordinationStore) -> MetadataHistory:
    history = MetadataHistory()
    await store.sync()
    while True:
        try:
            entries = await store.read(history.next_number, READ_ENTRIES_MAX)
        except EntriesRetired:
            snapshot = await store.read_snapshot()
            if snapshot is None:
                raise StoreDamaged("entries are missing, and there is no snapshot of them") from None
            history.load_snapshot(snapshot.data)
            continue
        if not entries:
            return history
        for _ in history.apply((entry.number, entry.data) for entry in entries):
            pass
