"""The compiled form (``make compiled``) runs the same course as the sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.compiled import VARIABLE
from nilometer.compiled.build import is_fresh

pytestmark = pytest.mark.skipif(
    not is_fresh() and not os.environ.get("CI"), reason="make compiled makes the compiled modules"
)

TESTS = Path(__file__).parents[2]
FORMS = {"0": "interpreted", "1": "compiled"}


def run(form: str, *arguments: str) -> str:
    environment = {**os.environ, VARIABLE: form, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_the_one_asked_for(form: str) -> None:
    said = run(form, "-c", "import nilometer.broker.connection as c; print(c.__file__)")
    assert said.strip().endswith(".so") == (form == "1")
    assert FORMS[form] in run(form, "-m", "nilometer.cli", "--version")


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_simulated_cluster_takes_the_same_course_in_both_forms(seed: int, tmp_path: Path) -> None:
    """All that clients and brokers send, write and decide, in the order of time."""
    traces = {form: tmp_path / form for form in FORMS}
    for form, trace in traces.items():
        run(form, *f"-m nilometer.cli simulate --seed {seed} --minutes 0.3 --trace {trace}".split())
    interpreted, compiled = (trace.read_bytes() for trace in traces.values())
    assert len(interpreted) > 10_000
    assert interpreted == compiled


def test_the_cleaner_finds_the_same_in_hostile_bytes_in_both_forms() -> None:
    interpreted, compiled = (
        run(form, "-m", "support.logs.hostile_layouts", "3", "2000").splitlines() for form in FORMS
    )
    corrupt = sum(line.endswith("is corrupt") for line in interpreted)
    assert 200 < corrupt < 1_800
    assert interpreted == compiled
