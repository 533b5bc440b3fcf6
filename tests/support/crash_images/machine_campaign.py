"""Draws crash images of brokers and voters of the simulation, and judges them.

``python -m support.crash_images.machine_campaign local --seed 3 --cut 703 --draw 2`` judges one image again:
the third drawn at the power cut after 703 operations of the recording of seed 3. Without ``--cut``, up to
``--images`` of each kind of write. ``--drop SITE`` leaves out the syncs of one call, as
:meth:`Recording.sync_sites` names it.
"""

from __future__ import annotations

import argparse
import collections
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from nilometer.simulation.disk import FolderNode
from support.crash_images.campaign import Finding, Tally, chance_of
from support.crash_images.images import Names, Replay, digest
from support.crash_images.kinds import Kinds
from support.crash_images.machine import Store, record_machine
from support.crash_images.machine_judge import judge_machine
from support.crash_images.recording import Mark, Recording
from support.crash_images.upgraded_machine import judge_upgrade, record_upgrade
from support.crash_images.voters import History, judge_voter, record_voters

ROUNDS = {"local": 25, "quorum": 25, "voters": 120, "upgrade": 1}
PER_CUT = 3
Judge = Callable[[FolderNode, Sequence[Mark]], list[str]]


class Case(NamedTuple):
    """A recording, and how its images are judged. ``part``: which one of a scenario's recordings it is."""

    scenario: str
    seed: int
    part: int
    recording: Recording
    judge: Judge
    begun: str
    """The kind of mark that ends the first start."""
    first: str
    """The kind of what is written before it."""


def cases_of(scenario: str, seed: int, rounds: int | None = None) -> list[Case]:
    count = ROUNDS[scenario] if rounds is None else rounds
    if scenario == "voters":
        recordings = record_voters(seed, count)
        history = History(recordings)
        return [
            Case(
                scenario,
                seed,
                part,
                recording,
                lambda image, marks, part=part: judge_voter(image, part + 1, marks, history),
                "identity",
                "format of a metadata log",
            )
            for part, recording in enumerate(recordings)
        ]
    if scenario == "upgrade":
        recording, before = record_upgrade(seed)
        return [
            Case(
                scenario,
                seed,
                0,
                recording,
                lambda image, _marks: judge_upgrade(image, before),
                "",
                "upgrade",
            )
        ]
    store = Store(scenario)
    recording, _ = record_machine(seed, store, count)
    judge = partial(_judge_machine, store)
    return [Case(scenario, seed, 0, recording, judge, "begun", "first start")]


def _judge_machine(store: Store, image: FolderNode, marks: Sequence[Mark]) -> list[str]:
    return judge_machine(image, store, marks)


def _cuts(case: Case) -> Iterator[tuple[int, str]]:
    kinds, first = Kinds(), case.first
    for cut, operation in enumerate(case.recording.operations, start=1):
        if isinstance(operation, Mark):
            first = "" if operation.kind == case.begun else first
            continue
        kind = kinds.of(operation)
        if cut > case.recording.present and kind is not None:
            yield cut, first or kind


def run(
    case: Case,
    images: int,
    *,
    per_cut: int = PER_CUT,
    names: Names = Names.IN_ORDER,
    dropped: frozenset[str] = frozenset(),
    findings_max: int = 20,
    wanted: frozenset[str] = frozenset(),
) -> Tally:
    """Judge up to ``images`` distinct images of each kind of write (``wanted``: only of these)."""
    chance = random.Random(case.seed)
    by_kind: dict[str, list[int]] = {}
    for cut, kind in _cuts(case):
        if not wanted or kind in wanted:
            by_kind.setdefault(kind, []).append(cut)
    chosen = {
        cut: kind
        for kind, cuts in by_kind.items()
        for cut in chance.sample(cuts, min(len(cuts), -(-images // per_cut)))
    }
    seen: dict[bytes, int] = {}
    counts: collections.Counter[str] = collections.Counter()
    tally = Tally(counts, [], counts)
    replay = Replay(case.recording, names, dropped)
    options = f" --part {case.part}" if case.part else ""
    options += "".join(f" --drop '{each}'" for each in sorted(dropped))
    for cut in sorted(chosen):
        replay.run(cut)
        for draw in range(per_cut):
            image = replay.draw(chance_of(case.seed, cut, draw))
            mark = digest(image)
            if seen.get(mark) == len(replay.marks):
                continue
            kind = chosen[cut]
            tally.images[kind] += mark not in seen
            seen[mark] = len(replay.marks)
            tally.findings.extend(
                Finding(case.seed, cut, draw, kind, text, f"{options} {case.scenario}", "machine_campaign")
                for text in judged(case, image, replay.marks)
            )
        if len(tally.findings) >= findings_max:
            break
    return tally


def judged(case: Case, image: FolderNode, marks: Sequence[Mark]) -> list[str]:
    try:
        return case.judge(image, marks)
    except Exception as error:  # whatever it is, the node does not start
        return [f"{type(error).__name__}: {error}"]


def judge_one(case: Case, cut: int, draw: int, names: Names, dropped: frozenset[str]) -> list[str]:
    replay = Replay(case.recording, names, dropped)
    replay.run(cut)
    return judged(case, replay.draw(chance_of(case.seed, cut, draw)), replay.marks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=list(ROUNDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--part", type=int)
    parser.add_argument("--cut", type=int)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--per-cut", type=int, default=PER_CUT)
    parser.add_argument("--names", type=Names, default=Names.IN_ORDER)
    parser.add_argument("--drop", action="append", default=[])
    parser.add_argument("--kind", action="append", default=[])
    parser.add_argument("--sites", action="store_true", help="list the syncs of the recordings")
    chosen = parser.parse_args()
    dropped = frozenset(chosen.drop)
    cases = cases_of(chosen.scenario, chosen.seed, chosen.rounds)
    if chosen.sites:
        counts = collections.Counter(
            site
            for case in cases
            for each in case.recording.operations
            if (site := getattr(each, "site", None))
        )
        print("\n".join(f"{count:6} {site}" for site, count in sorted(counts.items())))
        return 0
    if chosen.cut is not None:
        found = judge_one(cases[chosen.part or 0], chosen.cut, chosen.draw, chosen.names, dropped)
        print("\n".join(found) or "the image is in order")
        return bool(found)
    images: collections.Counter[str] = collections.Counter()
    failed = False
    for case in cases:
        if chosen.part in (None, case.part):
            tally = run(
                case,
                chosen.images,
                per_cut=chosen.per_cut,
                names=chosen.names,
                dropped=dropped,
                wanted=frozenset(chosen.kind),
            )
            images += tally.images
            failed |= bool(tally.findings)
            print("\n".join(map(str, tally.findings)))
    print(f"{images.total()} images: {dict(images)}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
