"""`nilometer simulate --jobs`: seeds in processes of their own, told in order, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nilometer.cli.simulate import (
    SeedOptions,
    SeedReport,
    Summary,
    plan_of,
    play_in_processes,
    play_seed,
    replay_command,
)
from support.eventually import eventually

OPTIONS = SeedOptions(minutes=0.1)
FAILING_SEED = 3
DEADLY_SEED = 5


def scripted_play(seed: int, options: SeedOptions) -> SeedReport:
    """Even seeds take longer; one seed fails, one takes its process down."""
    if seed == DEADLY_SEED:
        os._exit(9)
    time.sleep(0.2 * (seed % 2 == 0))
    return SeedReport(seed=seed, exit=12 * (seed == FAILING_SEED), simulated_s=1.0, real_s=0.0)


def _played(seeds: range, *, keep_going: bool) -> list[int]:
    reports = play_in_processes(seeds, 2, OPTIONS, keep_going=keep_going, play=scripted_play)
    return [report.seed for report in reports]


def test_reports_come_in_the_order_of_the_seeds() -> None:
    assert _played(range(6, 12), keep_going=False) == [6, 7, 8, 9, 10, 11]


def test_the_first_seed_that_fails_ends_the_run() -> None:
    assert _played(range(5), keep_going=False) == [0, 1, 2, 3]


def test_all_seeds_are_played_when_that_is_wanted() -> None:
    assert _played(range(5), keep_going=True) == [0, 1, 2, 3, 4]


def test_a_process_that_dies_fails_its_seed_and_no_other() -> None:
    reports = play_in_processes(range(5, 8), 1, OPTIONS, keep_going=True, play=scripted_play)
    died, *others = reports
    assert (died.seed, died.exit) == (DEADLY_SEED, 10)
    assert died.summary.startswith("seed 5: no verdict: the process that played it ended with exit code 9;")
    assert [report.exit for report in others] == [0, 0]


@pytest.mark.parametrize(
    ("wanted", "option"), [(True, " --remote-storage"), (False, " --no-remote-storage"), (None, "")]
)
def test_remote_storage_is_drawn_or_as_wanted(wanted: bool | None, option: str) -> None:
    options = SeedOptions(minutes=0.1, remote_storage=wanted)
    tiered = {plan_of(seed, options).tier is not None for seed in range(20)}
    assert tiered == ({True, False} if wanted is None else {wanted})
    assert replay_command(3, options) == f"nilometer simulate --seed 3 --minutes 0.1{option}"


def test_what_was_done_is_counted_over_all_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(2)
    for seed, counts in enumerate(({"reassignments": 2, "commits": 1}, {"commits": 4})):
        summary.add(SeedReport(seed=seed, exit=0, simulated_s=1.0, real_s=0.0, counts=counts))
    summary.print_summary()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["5 commits (in 2 of 2 seeds)", "2 reassignments (in 1 of 2 seeds)"]


def test_no_process_is_left_when_no_reader_is_left() -> None:
    reports = play_in_processes(range(6, 12), 2, OPTIONS, keep_going=True, play=scripted_play)
    next(reports)
    assert multiprocessing.active_children()
    reports.close()
    assert multiprocessing.active_children() == []


def test_a_seed_takes_the_same_course_in_another_process() -> None:
    reports = list(play_in_processes(range(2), 2, OPTIONS, keep_going=True))
    assert [report.digest for report in reports] == [play_seed(seed, OPTIONS).digest for seed in range(2)]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_interrupted(by: signal.Signals) -> None:
    command = [sys.executable, "-m", "nilometer.cli", "simulate", "--seeds", "50", "--jobs", "2"]
    run = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: len(_group(run.pid)) >= 4, "two children play", 60)
        if by is signal.SIGINT:
            os.killpg(run.pid, by)  # as a terminal does
        else:
            run.kill()
        assert run.wait(60) != 0
        eventually(lambda: not _group(run.pid), "no process is left", 60)
        told = run.communicate()[0]
        if by is signal.SIGINT:
            assert b"Traceback" not in told
            assert b" x real time: 0 failed" in told
    finally:
        if _group(run.pid):
            os.killpg(run.pid, signal.SIGKILL)


def _group(leader: int) -> list[int]:
    """The processes of the group of ``leader`` that still run."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found
