"""The tables of the report: what was played, with which faults, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from .campaigns import BY_NAME, CAMPAIGNS
from .record import Verdict

BEGIN, END = "<!-- runs: begin -->\n", "<!-- runs: end -->\n"
SHOWN_DIGITS = 12
"""Of a checksum; ``runs.jsonl`` has all."""


class Run(msgspec.Struct, frozen=True):
    campaign: str
    day: str
    revision: str
    """The commit that was played."""
    interpreter: str
    minutes: float
    """What was asked for."""
    verdict: Verdict

    @property
    def command(self) -> str:
        campaign = BY_NAME[self.campaign]
        told = campaign.environment(self.verdict.seed, self.minutes).items()
        words = " ".join(f"{name}={value}" for name, value in told)
        return f"{words} pytest -m soak --timeout 7200 '{campaign.test}'"


def load_runs(path: Path) -> list[Run]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Run) for line in lines]


def append_run(path: Path, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(run) + b"\n")


def with_tables(page: str, runs: Sequence[Run]) -> str:
    """Return the page with these tables between its marks. Raises ValueError if it has none."""
    before, found, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not (found and found_end):
        raise ValueError(f"the page has no part between {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + tables(runs) + END + after


def tables(runs: Sequence[Run]) -> str:
    return "\n".join([*_campaigns(runs), "", *_faults(runs), "", *_each(runs), ""])


def _campaigns(runs: Sequence[Run]) -> Iterable[str]:
    yield "| campaign | clients | runs | hours | what they did | faults | findings |"
    yield "|---|---|---|---|---|---|---|"
    for campaign in CAMPAIGNS:
        own = [one.verdict for one in runs if one.campaign == campaign.name]
        did = _sum(one.counts for one in own)
        yield (
            f"| {campaign.name}: {campaign.title} | {campaign.clients} | {len(own)} | {_hours(own)} | "
            f"{', '.join(f'{count:,} {name}' for name, count in did.items() if count) or '–'} | "
            f"{_sum(one.faults for one in own).total():,} | {sum(len(one.wrong) for one in own)} |"
        )
    every = [one.verdict for one in runs]
    faults, findings = _sum(one.faults for one in every).total(), sum(len(one.wrong) for one in every)
    yield f"| all | | {len(every)} | {_hours(every)} | | {faults:,} | {findings} |"


def _faults(runs: Sequence[Run]) -> Iterable[str]:
    yield "| fault | rounds | in the campaigns |"
    yield "|---|---|---|"
    for fault, rounds in sorted(_sum(one.verdict.faults for one in runs).items()):
        within = dict.fromkeys(one.campaign for one in runs if one.verdict.faults.get(fault))
        yield f"| {fault} | {rounds:,} | {', '.join(within)} |"


def _each(runs: Sequence[Run]) -> Iterable[str]:
    yield "| run | day | revision | seconds | repeated by | SHA-256 of its history | findings |"
    yield "|---|---|---|---|---|---|---|"
    for number, one in enumerate(runs, 1):
        found = "; ".join(_cell(each) for each in one.verdict.wrong) or "none"
        yield (
            f"| {number} | {one.day} | {one.revision} | {one.verdict.seconds:,.0f} | `{one.command}` | "
            f"`{one.verdict.history_sha256[:SHOWN_DIGITS] or '–'}` | {found} |"
        )


def _cell(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else "?"
    return first.replace("|", "\\|")


def _hours(verdicts: Sequence[Verdict]) -> str:
    return f"{sum(one.seconds for one in verdicts) / 3600:.2f}"


def _sum(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return total
