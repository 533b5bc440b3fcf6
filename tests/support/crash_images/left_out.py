"""Leaves out each fsync of the product in turn, and looks for an image that is wrong then.

``python -m support.crash_images.left_out`` prints a line for each call that the recordings make: what is
wrong without it, and in which of how many images, or that none of them was. ``--line 'flushing.py:52 sync'``
tries only that one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nilometer.simulation.disk import FolderNode
from support.crash_images.campaign import chance_of, record, record_after_power_cut
from support.crash_images.images import Names, Replay
from support.crash_images.kinds import Kinds
from support.crash_images.log_judge import Promises
from support.crash_images.log_judge import judge as judge_log
from support.crash_images.machine_campaign import Case, cases_of, judged
from support.crash_images.recording import Mark, Recording, Sync, SyncDirectory

EXPOSED = 60
"""After how many operations a sync that was left out is looked for, if no other one follows before."""
SCENARIOS = ("log", "log again", "local", "quorum", "voters", "upgrade")


class Outcome(NamedTuple):
    images: int
    """How many were judged, up to the first one that is wrong."""
    kind: str
    text: str
    """What is wrong; empty: nothing."""


def all_cases(scenario: str, seed: int) -> list[Case]:
    if not scenario.startswith("log"):
        return cases_of(scenario, seed)
    with tempfile.TemporaryDirectory() as folder:
        recorded = record_after_power_cut if scenario == "log again" else record
        recording = recorded(Path(folder), seed)

    def judge(image: FolderNode, marks: Sequence[Mark]) -> list[str]:
        promises = Promises()
        promises.note(marks)
        return judge_log(image, f"{recording.root}/data", promises)

    return [Case(scenario, seed, 0, recording, judge, "", "")]


def exposed_cuts(recording: Recording, line: str) -> Iterator[int]:
    """Yield the cuts after a sync by ``line``, up to the next one of the same file or folder by another."""
    open_until: dict[object, int] = {}
    for cut, operation in enumerate(recording.operations, start=1):
        if isinstance(operation, Sync | SyncDirectory):
            target = operation.file if isinstance(operation, Sync) else operation.path
            if operation.line == line:
                open_until[target] = cut + EXPOSED
            else:
                open_until.pop(target, None)
        if not isinstance(operation, Mark) and any(cut <= end for end in open_until.values()):
            yield cut


def try_without(case: Case, line: str, images: int, chance: random.Random) -> Outcome:
    cuts = list(exposed_cuts(case.recording, line))
    chosen = sorted(chance.sample(cuts, min(len(cuts), images)))
    replay = Replay(case.recording, Names.IN_ORDER, frozenset({line}))
    kinds = Kinds()
    kind_at = [kinds.of(each) for each in case.recording.operations]
    for count, cut in enumerate(chosen, start=1):
        replay.run(cut)
        found = judged(case, replay.draw(chance_of(case.seed, cut, 0)), replay.marks)
        if found:
            return Outcome(count, kind_at[cut - 1] or "", found[0])
    return Outcome(len(chosen), "", "")


def lines_of(cases: Iterable[Case]) -> dict[str, str]:
    """Return the calls that recordings make, by their lines."""
    return {
        each.line: each.site
        for case in cases
        for each in case.recording.operations
        if isinstance(each, Sync | SyncDirectory) and each.line
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, action="append", default=[])
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--line", action="append", default=[])
    parser.add_argument("--images", type=int, default=40, help="of each recording, for each call")
    chosen = parser.parse_args()
    cases = [
        case
        for seed in chosen.seed or [1]
        for scenario in chosen.scenario or SCENARIOS
        for case in all_cases(scenario, seed)
    ]
    sites = lines_of(cases)
    for line in chosen.line or sorted(sites):
        judged_images = 0
        for case in cases:
            outcome = try_without(case, line, chosen.images, random.Random(line))
            judged_images += outcome.images
            if outcome.text:
                where = f"{case.scenario}, {outcome.kind}: {outcome.text.splitlines()[-1][:150]}"
                print(f"{line} | {sites[line]} | image {judged_images} | {where}", flush=True)
                break
        else:
            print(f"{line} | {sites.get(line, '')} | none of {judged_images} |", flush=True)


if __name__ == "__main__":
    main()
