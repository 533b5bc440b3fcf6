"""Play the campaigns of the evidence, and judge the histories that they leave.

``PYTHONPATH=src:tests python -m support.evidence play --minutes 10`` repeats a small part of the report, in
``build/evidence``; it goes on where an earlier call was stopped, until so many minutes have been played.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from .campaigns import CAMPAIGNS, Campaign
from .jepsen_history import judged, load
from .record import FOLDER, HISTORY, Verdict, verdict_in
from .report import BEGIN, END, Run, append_run, load_runs, with_tables

REPOSITORY = Path(__file__).resolve().parents[3]
OWN = REPOSITORY / "build" / "evidence"
PUBLISHED = REPOSITORY / "docs" / "evidence"
HISTORIES = {OWN: OWN / "histories", PUBLISHED: OWN / "published"}
"""Of the runs that are listed in each folder."""
RUN_MINUTES_MAX = 20.0
OUTPUT_LINES = 15
"""Of a run that ends without a verdict, the last ones are its finding."""


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--minutes", type=click.FloatRange(min=0.5), default=10.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the first run.")
@click.option("--publish", is_flag=True, help="Add the runs to those of docs/evidence.")
def play(minutes: float, seed: int, publish: bool) -> None:
    """Play until MINUTES in all have been played, and each campaign once. Exit code 1: something was found,
    or a run ended without a verdict, which is not counted."""
    folder = PUBLISHED if publish else OWN
    page = folder / "index.md"
    runs = load_runs(folder / "runs.jsonl")
    while True:
        left = minutes - sum(one.verdict.seconds for one in runs) / 60
        campaign = min(CAMPAIGNS, key=lambda one: (_played_s(runs, one), CAMPAIGNS.index(one)))
        if left <= 0 and _played_s(runs, campaign):
            break  # and each campaign has been played
        each = min(RUN_MINUTES_MAX, minutes / len(CAMPAIGNS), max(left, 0.5))
        run = _play(campaign, seed + len(runs), round(each, 2), HISTORIES[folder])
        if not run.verdict.history_sha256:
            raise click.ClickException(f"{campaign.name}: {run.verdict.wrong[0]}")
        append_run(folder / "runs.jsonl", run)
        runs.append(run)
        text = page.read_text() if page.exists() else BEGIN + END
        page.write_text(with_tables(text, runs))
        click.echo(f"{campaign.name}: {'; '.join(run.verdict.wrong) or 'nothing found'}: {run.command}")
    click.echo(f"{sum(one.verdict.seconds for one in runs) / 60:.1f} minutes are played: {page}")
    if any(one.verdict.wrong for one in runs):
        sys.exit(1)


def _played_s(runs: Sequence[Run], campaign: Campaign) -> float:
    return sum(one.verdict.seconds for one in runs if one.campaign == campaign.name)


def _play(campaign: Campaign, seed: int, minutes: float, histories: Path) -> Run:
    """Play one run, whose history is then in a folder below ``histories``."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "src", "tests")
    revision = _git("rev-parse", "--short=10", "HEAD") + ("-changed" if changed else "")
    kept = histories / f"{campaign.name}-{seed}"
    shutil.rmtree(kept, ignore_errors=True)  # of a run that was interrupted
    kept.mkdir(parents=True)
    environment = {**os.environ, **campaign.environment(seed, minutes), FOLDER: str(kept)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "--timeout", "7200", campaign.test]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    verdict = verdict_in(kept)
    if verdict is None:
        # A client's library that aborts the process says why on the other stream.
        last = "\n".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-OUTPUT_LINES:])
        wrong = [f"ended with {done.returncode} and without a verdict: {last}"]
        verdict = Verdict(seed, round(time.monotonic() - began, 1), {}, {}, wrong, "", 0)
    else:
        # The file alone must show the same as the run did while it had everything.
        more = [one for one in judged(load(kept / HISTORY)) if one not in "\n".join(verdict.wrong)]
        ended = [f"pytest ended with {done.returncode}"] if done.returncode and not verdict.wrong else []
        verdict = msgspec.structs.replace(verdict, wrong=[*verdict.wrong, *more, *ended])
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    day = datetime.now(UTC).date().isoformat()
    return Run(campaign.name, day, revision, interpreter, minutes, verdict)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@main.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def judge(files: Sequence[Path]) -> None:
    """Judge histories again, from their FILES alone; exit code 1: one has an anomaly."""
    found = 0
    for path in files:
        anomalies = judged(load(path))
        found += len(anomalies)
        click.echo(f"{path}: {len(anomalies)} anomalies" + "".join(f"\n  {one}" for one in anomalies))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
