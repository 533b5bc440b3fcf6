"""The word list of `make lint` finds a banned word in prose and in identifiers, and allows exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "codespell"), str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "line",
    [
        "# It is deleted by " + "who" + "ever asks.",
        "Any" + "body may read it.",
        "def let_any" + "body_join() -> None: ...",
        "class NoSuchMis" + "fortune: ...",
        "MIS" + "HAPS_MAX = 3",
    ],
)
def test_a_banned_word_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(f"{line}\n")
    done = check(tmp_path / "planted.py")
    assert done.returncode != 0
    assert "planted.py:1:" in done.stdout


@pytest.mark.parametrize(
    "line",
    ["# The broker deletes it again.", "lifetime_ms = 3", '"--mis' + 'haps",  # codespell:ignore'],
)
def test_other_words_and_marked_lines_pass(line: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(f"{line}\n")
    done = check(tmp_path / "planted.py")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_list_has_one_entry_for_each_word() -> None:
    """codespell keeps the last of several entries, silently."""
    lines = (ROOT / "docs" / "vocabulary.txt").read_text().splitlines()
    words = [line.partition("->")[0] for line in lines]
    assert words == sorted(set(words))
