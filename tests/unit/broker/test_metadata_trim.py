"""When the controller lets a snapshot stand for the entries so far: after many of them, or many bytes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from nilometer.broker.control import metadata_log
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.entries import encode_entry
from nilometer.coordination.local.store import LocalStore
from nilometer.identifiers import BrokerId, Incarnation
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy

TERMS = 20


async def _entry_sizes_and_trims(folder: Path) -> tuple[list[int], list[int]]:
    """One broker after the other becomes controller. The bytes of each entry, and after which of them entries
    were retired."""
    store = LocalStore(Runtime.system(), str(folder))
    await store.open()
    metadata, chance = MetadataLog(store), SeededEntropy(random.Random(1))
    sizes: list[int] = []
    trims: list[int] = []
    try:
        for number in range(TERMS):
            data = encode_entry(
                controllership_entry(metadata.image, BrokerId(1), Incarnation(f"{number}"), chance)
            )
            assert await store.append(number, data) is True
            sizes.append(len(data))
            await metadata.catch_up()
            before = await store.read_snapshot()
            await metadata.maybe_write_snapshot()
            if await store.read_snapshot() != before:
                trims.append(number)
    finally:
        await store.close()
    return sizes, trims


def test_trimming_counts_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 800
    monkeypatch.setattr(metadata_log, "BYTES_BETWEEN_SNAPSHOTS", limit)
    sizes, trims = asyncio.run(_entry_sizes_and_trims(tmp_path))
    due: list[int] = []
    since = 0
    for number, size in enumerate(sizes):
        since += size
        if since >= limit:
            due.append(number)
            since = 0
    assert len(due) > 1
    assert trims == due


def test_trimming_counts_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "ENTRIES_BETWEEN_SNAPSHOTS", 8)
    _, trims = asyncio.run(_entry_sizes_and_trims(tmp_path))
    assert trims == [7, 15]


@pytest.mark.parametrize(("limit", "kept"), [("READ_ENTRIES_MAX", 7), ("KEPT_BYTES_MAX", 1)])
def test_few_entries_are_kept_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, kept: int
) -> None:
    monkeypatch.setattr(metadata_log, limit, kept)

    async def numbers_kept() -> list[int]:
        store = LocalStore(Runtime.system(), str(tmp_path))
        await store.open()
        metadata, chance = MetadataLog(store), SeededEntropy(random.Random(1))
        try:
            for number in range(TERMS):
                entry = controllership_entry(metadata.image, BrokerId(1), Incarnation(f"{number}"), chance)
                assert await store.append(number, encode_entry(entry)) is True
                await metadata.catch_up()
        finally:
            await store.close()
        return list(metadata.entry_bytes)

    assert asyncio.run(numbers_kept()) == list(range(TERMS - kept, TERMS))
