"""How a tool changes the metadata of a cluster whose brokers do not run: it opens the store of a metadata
quorum itself, and appends the entry of a decision to the log of an open store.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import msgspec

from nilometer.broker.quorum.member import QuorumMember
from nilometer.broker.settings.quorum import QuorumSettings
from nilometer.broker.turns import Turns
from nilometer.cluster.controller.controllership import offline_entry
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.entries import encode_entry
from nilometer.cluster.history import MetadataHistory
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import CoordinationStore, EntriesRetired, StoreDamaged, StoreUnavailable
from nilometer.identifiers import EntryNumber
from nilometer.runtime import Entropy, Runtime
from nilometer.storage.directories.log_directory import read_meta_properties
from nilometer.storage.names import META_PROPERTIES

# The store of a metadata quorum for a tool: it writes there without a broker.
#
# While no broker runs, the tool runs the voters' nodes itself, on their folders and listeners
# (:func:`nodes_store` of all voters' settings). While they run, it is one more node, which only observes
# (:func:`as_observer`).

OPEN_TIMEOUT_S = 30.0
TOOL_ID_MIN = 1 << 30
"""The node ids of tools begin here: no broker has one of them."""
TOOL_IDS = 1 << 29


def as_observer(settings: QuorumSettings, directory: str, runtime: Runtime) -> QuorumSettings:
    """Return the settings of a tool that takes part while the nodes run: those of a broker, with a folder of
    its own, and a node id by chance."""
    chance = int.from_bytes(runtime.entropy.bytes(8), "big")
    return msgspec.structs.replace(
        settings,
        node_id=TOOL_ID_MIN + chance % TOOL_IDS,
        is_controller=False,
        listeners=(),
        own=None,
        is_alone=False,
        joins=False,
        directory=directory,
    )


@asynccontextmanager
async def nodes_store(
    nodes: Sequence[QuorumSettings], runtime: Runtime, *, is_new: bool = False
) -> AsyncGenerator[QuorumStore]:
    """Run these nodes, and yield their open store. ``is_new``: they may form a new quorum.

    Raises StoreUnavailable if no leader is found in time; StoreRefused, StoreDamaged, CannotListen, LockHeld
    (a broker runs), CorruptCheckpoint, OSError.
    """
    turns = Turns(runtime.clock)
    async with AsyncExitStack() as closing:
        members: list[QuorumMember] = []
        known: str | None = None
        for settings in nodes:
            member = QuorumMember(settings, runtime, turns)
            closing.push_async_callback(member.close)
            members.append(member)
            await member.identify()
            path = posixpath.join(settings.directory, META_PROPERTIES)
            found = await runtime.disk.offload(lambda path=path: read_meta_properties(runtime.disk, path))
            known = known if found is None or found.cluster_id is None else found.cluster_id

        async def opened(member: QuorumMember) -> QuorumStore:
            store = await member.open(known, has_logs=not is_new)
            closing.push_async_callback(store.close)
            await store.open()
            member.note_cluster_id(store.cluster_id)
            return store

        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S), asyncio.TaskGroup() as group:
                opening = [group.create_task(opened(member)) for member in members]
        except TimeoutError as error:
            raise StoreUnavailable(
                f"the metadata quorum has no leader after {OPEN_TIMEOUT_S:.0f} s: a majority of its voters "
                "must run, or be on this machine"
            ) from error
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        yield opening[0].result()


# Writes a change to the metadata log while no broker runs.

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
