"""The examples of property tests: the same in each run; or many, and a command that replays them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
PROPERTY = """
from hypothesis import given
from hypothesis import strategies as st
from support.properties import examples

drawn = []

@given(st.integers())
@examples(20)
def test_a_property(number):
    drawn.append(number)

def test_another():
    assert 0, f"drawn {len(drawn)} {sum(drawn)}"

@given(st.lists(st.integers(), min_size=4))
def test_a_property_that_does_not_hold(numbers):
    assert len(set(numbers)) < 4, f"not {numbers}"
"""


def run(folder: Path, *options: str, **environment: str) -> str:
    (folder / "test_property.py").write_text(PROPERTY)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.properties", "-p", "no:cacheprovider", *options],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr


def drawn(output: str) -> tuple[int, int]:
    """Return how many examples of the first property were drawn, and their sum."""
    found = re.search(r"drawn (\d+) (-?\d+)", output)
    assert found is not None, output
    return int(found[1]), int(found[2])


def test_each_run_draws_the_same_examples(tmp_path: Path) -> None:
    at_home, in_ci = run(tmp_path), run(tmp_path, CI="true")
    assert drawn(at_home) == drawn(in_ci)
    assert drawn(at_home)[0] == 20
    assert "the command that replays it" not in at_home
    assert not (tmp_path / ".hypothesis" / "examples").exists()


def test_more_examples_are_drawn_at_random_and_a_command_replays_them(
    tmp_path: Path,
) -> None:
    first, second = run(tmp_path, "--examples", "3"), run(tmp_path, "--examples", "3")
    assert drawn(first)[0] == drawn(second)[0] == 60
    assert drawn(first)[1] != drawn(second)[1]
    command = re.search(r"^pytest (--examples 3 --hypothesis-seed \d+) '(\S+)'$", first, re.MULTILINE)
    assert command is not None, first
    assert command[2] == "test_property.py::test_a_property_that_does_not_hold"
    assert drawn(run(tmp_path, *command[1].split())) == drawn(first)


def test_no_examples_are_refused(tmp_path: Path) -> None:
    assert "--examples 0: at least 1 is needed" in run(tmp_path, "--examples", "0")
