"""What `make test` runs: each promise once, within its budget of processor time, and prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.parts import part_of
from support.quick_part import BUDGET_S, REFERENCE_S, TOLERANCE, over_budget

TESTS = Path(__file__).parent
PROMISES = {
    "compatibility/clients",
    "pipeline/connectors",
    "pipeline/jobs",
    "process/authorization",
    "process/broker",
    "process/chaos",
    "process/cli",
    "process/client",
    "process/console",
    "process/crash",
    "process/groups",
    "process/ingest",
    "process/testing",
    "process/tiering",
}
"""Folders of tests that start processes, of which `make test` runs one or a few."""

PASSES_AND_FAILS = """
def test_that_passes():
    print("of no interest")

def test_that_fails():
    assert 1 == 2
"""


def test_each_promise_has_a_quick_test() -> None:
    marked = {
        path.parent.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*/*/test_*.py")
        if "mark.quick" in path.read_text()
    }
    assert marked == PROMISES


@pytest.mark.parametrize(
    ("cpu_s", "reference_s", "is_over"),
    [
        (TOLERANCE * BUDGET_S - 1, REFERENCE_S, False),
        (TOLERANCE * BUDGET_S + 1, REFERENCE_S, True),
        (2 * TOLERANCE * BUDGET_S - 1, 2 * REFERENCE_S, False),
        (2 * TOLERANCE * BUDGET_S + 2, 2 * REFERENCE_S, True),
    ],
)
def test_the_budget_is_that_of_a_machine_of_this_speed(
    cpu_s: float, reference_s: float, is_over: bool
) -> None:
    assert (over_budget(cpu_s, reference_s) is not None) == is_over


def test_what_fails_is_printed_and_of_what_passes_the_time(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PASSES_AND_FAILS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "support.parts", "--parts", "-p", "no:cacheprovider"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    assert "assert 1 == 2" in done.stdout
    assert "of no interest" not in done.stdout
    assert re.search(r"^repository +2 tests +\d+ s$", done.stdout, re.MULTILINE), done.stdout


def test_the_time_of_a_process_that_outlives_its_parent_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    program = (
        "import resource, sys; from support.quick_part import run; run([sys.executable, '-c', sys.argv[1]]);"
        "print(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, leave], cwd=TESTS, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 0.4


def test_a_part_is_a_folder_of_tests() -> None:
    assert part_of("tests/unit/wire/test_records.py::test_one") == "unit"
    assert part_of("tests/test_layout.py::test_one") == "repository"
