"""Draws crash images of recordings and judges them: many at random, each of them again by its numbers.

``python -m support.crash_images.campaign --seed 3 --cut 703 --draw 2`` judges one image of the recording of
seed 3 again: the third drawn at the power cut after 703 operations. Without ``--cut``, all of them.
``--drop SITE`` leaves out the syncs of one call, as :meth:`Recording.sync_sites` names it.
"""

from __future__ import annotations

import argparse
import collections
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from nilometer.simulation.disk import FolderNode
from support.crash_images.images import Names, Replay, digest, write_to
from support.crash_images.kinds import TRUNCATION, Kinds
from support.crash_images.log_judge import Promises, judge
from support.crash_images.log_scenario import LogScenario
from support.crash_images.recording import Mark, Recording

STEPS = 60
MORE = {TRUNCATION: 8}
"""Of the kinds of write that are rare, so many times as many images are drawn."""
Judge = Callable[[FolderNode, str, Promises], list[str]]


class Finding(NamedTuple):
    """``cut``: how many operations were executed before the power cut. ``draw``: the image's number there."""

    seed: int
    cut: int
    draw: int
    kind: str
    text: str
    options: str = ""
    module: str = "campaign"

    def __str__(self) -> str:
        numbers = f"--seed {self.seed} --cut {self.cut} --draw {self.draw}{self.options}"
        command = f"PYTHONPATH=tests python -m support.crash_images.{self.module} {numbers}"
        return f"{self.kind}: {self.text}\n  {command}"


class Tally(NamedTuple):
    images: collections.Counter[str]
    """How many distinct images were judged, by the step, or the kind of write, that the power cut
    interrupted."""
    findings: list[Finding]
    writes: collections.Counter[str]
    """The same images, by the kind of write."""


def record(folder: Path, seed: int, steps: int = STEPS) -> Recording:
    return LogScenario(folder, seed).run(steps)


def record_after_power_cut(folder: Path, seed: int, steps: int = STEPS) -> Recording:
    """Record a scenario that continues with what a random power cut has left of another one."""
    first, second = folder / "first", folder / "second"
    for each in (first, second):
        each.mkdir()
    before = LogScenario(first, seed)
    recording = before.run(steps)
    chance, replay = random.Random(seed), Replay(recording)
    replay.run(chance.randrange(len(recording.operations) // 2, len(recording.operations)))
    write_to(replay.draw(chance), second)
    return LogScenario(second, seed + 1, before, replay.marks).run(steps)


def run(
    recording: Recording,
    seed: int,
    *,
    per_cut: int = 1,
    names: Names = Names.IN_ORDER,
    dropped: frozenset[str] = frozenset(),
    findings_max: int = 20,
    share: float = 1.0,
    wanted: frozenset[str] = frozenset(),
) -> Tally:
    """Draw ``per_cut`` images after each operation, or after a random ``share`` of them, and judge those that
    differ from all before, or of which more is promised; stop after ``findings_max`` findings. ``wanted``:
    only after these kinds of write."""
    tally = Tally(collections.Counter(), [], collections.Counter())
    options = "" if names is Names.IN_ORDER else f" --names {names.value}"
    options += " --again" if recording.present else ""
    seen: dict[bytes, int] = {}
    chance = random.Random(seed)
    for cut, kind, write, replay, promises in _cuts(recording, names, dropped):
        if chance.random() >= share or (wanted and write not in wanted):
            continue
        for draw in range(per_cut * MORE.get(write, 1)):
            image = replay.draw(chance_of(seed, cut, draw))
            mark = digest(image)
            if seen.get(mark) == promises.count:
                continue
            tally.images[kind] += mark not in seen
            tally.writes[write] += mark not in seen
            seen[mark] = promises.count
            for text in _judged(image, recording, promises):
                tally.findings.append(Finding(seed, cut, draw, kind, text, options))
        if len(tally.findings) >= findings_max:
            break
    return tally


def judge_one(
    recording: Recording, seed: int, cut: int, draw: int, names: Names, dropped: frozenset[str]
) -> list[str]:
    """Judge one image again."""
    for at, _, _, replay, promises in _cuts(recording, names, dropped):
        if at == cut:
            return _judged(replay.draw(chance_of(seed, cut, draw)), recording, promises)
    raise ValueError(f"the recording has no operation {cut}")


def chance_of(seed: int, cut: int, draw: int) -> random.Random:
    return random.Random(f"{seed} {cut} {draw}")


def _cuts(
    recording: Recording, names: Names, dropped: frozenset[str]
) -> Iterator[tuple[int, str, str, Replay, Promises]]:
    """Yield the number of operations before the cut, the step, the kind of write, and what there is then."""
    replay, promises, kind, noted = Replay(recording, names, dropped), Promises(), "start", 0
    kinds = Kinds()
    for cut, operation in enumerate(recording.operations, start=1):
        replay.run(cut)
        write = kinds.of(operation)
        if isinstance(operation, Mark):
            kind = str(operation.values[0]) if operation.kind == "flag" else kind
            continue
        promises.note(replay.marks[noted:])
        noted = len(replay.marks)
        if cut <= recording.present:
            continue
        assert write is not None, "it is no mark"
        yield cut, kind, write, replay, promises


def _judged(image: FolderNode, recording: Recording, promises: Promises) -> list[str]:
    try:
        return judge(image, f"{recording.root}/data", promises)
    except Exception as error:  # whatever it is, the broker did not start, or stopped
        return [f"{type(error).__name__}: {error}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--again", action="store_true", help="after an earlier power cut")
    parser.add_argument("--cut", type=int)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--per-cut", type=int, default=4)
    parser.add_argument("--names", type=Names, default=Names.IN_ORDER)
    parser.add_argument("--drop", action="append", default=[])
    chosen = parser.parse_args()
    dropped = frozenset(chosen.drop)
    with tempfile.TemporaryDirectory() as folder:
        recorded = record_after_power_cut if chosen.again else record
        recording = recorded(Path(folder), chosen.seed, chosen.steps)
    if chosen.cut is not None:
        found = judge_one(recording, chosen.seed, chosen.cut, chosen.draw, chosen.names, dropped)
        print("\n".join(found) or "the image is in order")
        return bool(found)
    tally = run(recording, chosen.seed, per_cut=chosen.per_cut, names=chosen.names, dropped=dropped)
    print(f"{tally.images.total()} images: {dict(tally.images)}; {dict(tally.writes)}")
    print("\n".join(str(each) for each in tally.findings))
    return bool(tally.findings)


if __name__ == "__main__":
    raise SystemExit(main())
