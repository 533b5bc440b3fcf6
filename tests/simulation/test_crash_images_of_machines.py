"""What a power cut at any moment may leave of a broker, or of a voter of a metadata quorum, opened again.

Both run on recorded machines of the simulation, so a seed gives the same recording each time: see
``docs/simulation.md``. A finding prints the command that judges its image again.
"""

from __future__ import annotations

import collections
import itertools

import pytest

from support.crash_images import kinds
from support.crash_images.images import Replay
from support.crash_images.machine import Store, record_machine
from support.crash_images.machine_campaign import cases_of, run

IMAGES_MIN = 500
"""Of each kind of write, in the soak."""
OF_LOGS = {
    kinds.APPEND,
    kinds.ROLL,
    kinds.INDEX,
    kinds.PRODUCERS,
    kinds.CHECKPOINT,
    kinds.SWAP,
    kinds.FOLDER,
}
OF_METADATA = {kinds.METADATA_LOG[kinds.APPEND], kinds.SNAPSHOT, kinds.VOTE, kinds.COMMITTED}
KINDS = {
    "local": {kinds.STORE, kinds.OFFSETS, kinds.TRANSACTIONS, "first start", *OF_LOGS},
    "quorum": {kinds.OFFSETS, kinds.TRANSACTIONS, "first start", *OF_METADATA},
    "voters": {kinds.METADATA_LOG[kinds.TRUNCATION], "format of a metadata log", *OF_METADATA},
    "upgrade": {"upgrade"},
}
QUICK = {"local": (4, 1), "quorum": (3, 1), "voters": (20, 12), "upgrade": (1, 10)}
"""How long a recording is, and how many images of each kind are judged."""


@pytest.mark.parametrize("scenario", list(KINDS))
def test_a_machine_keeps_its_promises_after_a_power_cut(scenario: str) -> None:
    rounds, images = QUICK[scenario]
    found: collections.Counter[str] = collections.Counter()
    for case in cases_of(scenario, 1, rounds):
        tally = run(case, images, per_cut=1)
        assert tally.findings == [], "\n".join(map(str, tally.findings))
        found += tally.images
    assert found.total() >= images


def test_a_recorded_machine_has_what_its_recording_says_each_time() -> None:
    recording, written = record_machine(3, Store.LOCAL, rounds=2)
    again, _ = record_machine(3, Store.LOCAL, rounds=2)
    assert again == recording
    replay = Replay(recording)
    replay.run(len(recording.operations))
    assert replay.all_written() == written


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("scenario", list(KINDS))
def test_many_images_of_machines(scenario: str) -> None:
    images: collections.Counter[str] = collections.Counter()
    for seed in itertools.count(100):
        missing = frozenset(kind for kind in KINDS[scenario] if images[kind] < IMAGES_MIN)
        if not missing:
            break
        for case in cases_of(scenario, seed):
            tally = run(case, IMAGES_MIN // 4, wanted=missing)
            assert tally.findings == [], "\n".join(map(str, tally.findings))
            images += tally.images
    print(dict(images))
