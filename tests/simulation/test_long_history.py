"""A digested history is judged as the whole one is."""

from __future__ import annotations

import random

import pytest

from nilometer.simulation.checkers.history import History, LongHistory, Seen, check

PARTITIONS = ("t-0", "t-1")


def _play(history: History, seed: int) -> None:
    """Sends, and readers that are mostly right: sometimes one skips, goes back, or reads otherwise."""
    chance = random.Random(seed)
    ends = dict.fromkeys(PARTITIONS, 0)
    positions: dict[tuple[str, str], int] = {}
    for number in range(400):
        partition = chance.choice(PARTITIONS)
        if chance.random() < 0.4:
            send = history.send("p", partition, f"{partition}.{ends[partition]}")
            if chance.random() < 0.9:
                send.acknowledged(ends[partition])
            ends[partition] += 1
            continue
        reader = chance.choice(("a", "b"))
        if chance.random() < 0.03:
            history.moved(reader)
            positions = {key: at for key, at in positions.items() if key[0] != reader}
        at = positions.get((reader, partition), 0)
        if chance.random() < 0.02:
            at = max(0, at + chance.choice((-1, 1, 2)))
        records = [
            Seen(partition, offset, f"{partition}.{offset}" if chance.random() < 0.995 else f"odd{number}")
            for offset in range(at, min(ends[partition], at + chance.randint(1, 5)))
        ]
        if records:
            history.poll(reader, records)
            positions[reader, partition] = records[-1].offset + 1
    history.poll("last", [Seen(p, at, f"{p}.{at}") for p in PARTITIONS for at in range(ends[p] - 1)])
    history.read_to_end("last")


def _found(history: History) -> list[tuple[str, str]]:
    return sorted({(anomaly.kind, anomaly.partition) for anomaly in check(history)})


@pytest.mark.parametrize("seed", range(40))
def test_the_same_is_found_in_both(seed: int) -> None:
    whole, digested = History(), LongHistory(kept_whole=frozenset({"last"}))
    _play(whole, seed)
    _play(digested, seed)
    assert _found(digested) == _found(whole)


def test_what_is_read_again_takes_no_room() -> None:
    history = LongHistory()
    records = [Seen("t-0", offset, f"v{offset}") for offset in range(100)]
    history.poll("tail", records)
    once = len(history.operations)
    for _ in range(50):
        history.moved("again")
        history.poll("again", [Seen(each.partition, each.offset, "".join(each.value)) for each in records])
    assert len(history.operations) == once
