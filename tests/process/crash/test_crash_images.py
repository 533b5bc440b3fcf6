"""What a power cut at any moment may leave of a log directory, opened again: see ``docs/simulation.md``.

Real writes of the storage engine, or of a whole broker process, are recorded at the file interface. Then
images of the disk are drawn from the recording. A finding prints the command that judges its image again.
"""

from __future__ import annotations

import collections
import random
from pathlib import Path

import pytest

from support.crash_images import kinds
from support.crash_images.broker_scenario import judge_broker, record_broker
from support.crash_images.campaign import chance_of, record, record_after_power_cut, run
from support.crash_images.images import Names, Replay, content_of, folder_content
from support.crash_images.recording import Mark, Recording, RecordingDisk, Sync, Write

SEEDS = (7, 9)
SOAK_SEEDS = range(100, 108)
IMAGES_MIN = 500
"""Of each kind of write, in the soak."""
WRITES = {
    kinds.APPEND,
    kinds.ROLL,
    kinds.TRUNCATION,
    kinds.REMOVAL,
    kinds.INDEX,
    kinds.PRODUCERS,
    kinds.CHECKPOINT,
    kinds.SWAP,
    kinds.FOLDER,
}
KINDS = {"append", "flush", "checkpoint", "truncate", "delete_records", "compact", "recreate", "restart"}


@pytest.mark.quick
@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_directory_keeps_its_promises_after_a_power_cut_at_any_moment(
    tmp_path: Path, seed: int
) -> None:
    recording = record(tmp_path, seed)
    tally = run(recording, seed, share=0.4)
    assert tally.findings == [], "\n".join(str(each) for each in tally.findings)
    assert set(tally.images) >= KINDS
    assert tally.images.total() > 200


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_images_of_many_recordings(tmp_path: Path) -> None:
    images: collections.Counter[str] = collections.Counter()
    writes: collections.Counter[str] = collections.Counter()
    for seed in SOAK_SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        recorded = record if seed % 2 else record_after_power_cut
        tally = run(recorded(folder, seed), seed, per_cut=4)
        assert tally.findings == [], "\n".join(str(each) for each in tally.findings)
        images += tally.images
        writes += tally.writes
    print(dict(images), dict(writes))
    assert images.total() > 10_000
    assert all(images[kind] >= IMAGES_MIN for kind in KINDS), images
    assert all(writes[kind] >= IMAGES_MIN for kind in WRITES), writes


def _judge_broker(folder: Path, seed: int, rounds: int, images: int, *, is_quorum: bool = False) -> None:
    """Record a broker process, and start another one on each of the images.

    Two recordings of a seed differ in the order of concurrent writes; so a failure keeps its recording.
    """
    recording = record_broker(folder, rounds, seed, is_quorum=is_quorum)
    replay = Replay(recording)
    replay.run(end := len(recording.operations))
    assert replay.all_written() == folder_content(folder / "data"), "the recording is complete"
    first = next(at for at, each in enumerate(recording.operations) if isinstance(each, Mark))
    chance, replay = random.Random(seed), Replay(recording)
    for cut in sorted(chance.sample(range(first, end), images)):
        replay.run(cut)
        image = replay.draw(chance_of(seed, cut, 0))
        findings = judge_broker(image, folder / f"image-{cut}", recording, cut, is_quorum=is_quorum)
        numbers = f"{folder}/recording {seed} {cut}{' --quorum' if is_quorum else ''}"
        again = f"PYTHONPATH=tests python -m support.crash_images.broker_scenario {numbers}"
        assert findings == [], "\n".join([again, *findings])


@pytest.mark.quick
def test_a_broker_starts_on_what_a_power_cut_leaves_and_has_what_it_acknowledged(tmp_path: Path) -> None:
    _judge_broker(tmp_path, seed=1, rounds=5, images=2)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_quorum", [False, True])
@pytest.mark.parametrize("seed", range(2, 5))
def test_brokers_start_on_many_images(tmp_path: Path, seed: int, is_quorum: bool) -> None:
    _judge_broker(tmp_path, seed, rounds=12, images=100, is_quorum=is_quorum)


@pytest.mark.quick
def test_the_recording_is_complete(tmp_path: Path) -> None:
    recording = record(tmp_path, 5)
    replay = Replay(recording)
    replay.run(len(recording.operations))
    assert replay.all_written() == folder_content(tmp_path)
    assert sum(isinstance(each, Write) for each in recording.operations) > 100


@pytest.mark.quick
@pytest.mark.parametrize("names", list(Names))
def test_what_was_synced_survives_and_what_was_not_may_be_lost_kept_or_torn(
    tmp_path: Path, names: Names
) -> None:
    disk = RecordingDisk(tmp_path)
    folder = f"{tmp_path}/a"
    disk.make_directories(folder)
    disk.sync_directory(str(tmp_path))
    file = disk.open(f"{folder}/synced", create=True)
    file.append([b"one"])
    file.sync()
    disk.sync_directory(folder)
    file.append([b"two", b"three"])
    file.truncate(5)
    file.append([b"four"])
    for name in ("first", "second"):
        disk.open(f"{folder}/{name}", create=True).close()
    disk.rename(f"{folder}/second", f"{folder}/third")
    disk.remove(f"{folder}/synced")
    contents, found = _drawn(disk.recording, names)
    assert {b"one", b"onetw", b"onetwothree", b"onetwfour", b"onetwfouree", b"one\0\0four"} <= contents
    assert all(content.startswith(b"one") for content in contents)
    in_order = {
        ("synced",),
        ("first", "synced"),
        ("first", "second", "synced"),
        ("first", "synced", "third"),
        ("first", "third"),
    }
    assert found == in_order if names is Names.IN_ORDER else found > {*in_order, (), ("third",)}
    disk.sync_directory(folder)
    assert _drawn(disk.recording, names)[1] == {("first", "third")}


def _drawn(recording: Recording, names: Names) -> tuple[set[bytes], set[tuple[str, ...]]]:
    """Return the contents of the file ``synced`` and the names beside it in many images."""
    replay = Replay(recording, names)
    replay.run(len(recording.operations))
    chance, contents, found = random.Random(1), set[bytes](), set[tuple[str, ...]]()
    for _ in range(4_000):
        image = replay.draw(chance)
        there = dict(content_of(image))
        content = there.get("a/synced")
        contents |= {content} if content is not None else set()
        found.add(tuple(path.removeprefix("a/") for path in there if path.startswith("a/")))
    return contents, found


@pytest.mark.quick
def test_a_sync_covers_what_was_written_before_it_began_and_can_be_left_out(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    file = disk.open(f"{tmp_path}/a", create=True)
    file.append([b"one"])
    file.sync()
    disk.sync_directory(str(tmp_path))
    (sync,) = (each for each in disk.recording.operations if isinstance(each, Sync))
    late = Recording(str(tmp_path), [*disk.recording.operations, Write(sync.file, 3, b"late"), sync])
    for recording, dropped, contents in (
        (disk.recording, frozenset[str](), {b"one"}),
        (disk.recording, frozenset({sync.site}), {b"", b"o", b"one"}),
        (late, frozenset[str](), {b"one", b"onelate"}),
    ):
        replay = Replay(recording, dropped=dropped)
        replay.run(len(recording.operations))
        chance = random.Random(1)
        drawn = {dict(content_of(replay.draw(chance)))["a"] for _ in range(100)}
        assert drawn >= contents
        assert (b"" in drawn) == bool(dropped)
