"""docs/spec-coverage.md has a row for each requirement, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ID = re.compile(r"\b[A-Z]-\d+\b")
REQUIRED = re.compile(r"^\| ([A-Z]-\d+) \|", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/.-]+)(?:::(\w+))?`")


def test_every_test_named_in_the_coverage_table_exists():
    named = NAMED.findall((ROOT / "docs/spec-coverage.md").read_text(encoding="utf-8"))
    assert len(named) > 50
    missing = [
        f"{path}::{name}" if name else path
        for path, name in named
        if not (ROOT / path).exists()
        or (name and f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not missing


def rows_by_id() -> dict[str, str]:
    """Return the rows of docs/spec-coverage.md by each id in their first column."""
    lines = (ROOT / "docs/spec-coverage.md").read_text(encoding="utf-8").splitlines()
    first_columns = [(line, line.split("|")[1]) for line in lines if line.startswith("| ")]
    return {found: line for line, column in first_columns for found in ID.findall(column)}


def required_ids() -> list[str]:
    return REQUIRED.findall((ROOT / "docs/requirements.md").read_text(encoding="utf-8"))


def test_every_requirement_has_a_row_and_no_other_id_has():
    assert len(required_ids()) > 80
    assert sorted(rows_by_id()) == sorted(required_ids())


@pytest.mark.parametrize("required", required_ids())
def test_every_row_names_what_shows_it_or_why_nothing_does(required: str):
    assert re.search(r"`tests/|not covered by a test: \w", rows_by_id()[required])


@pytest.mark.parametrize("case", [found for found in required_ids() if found.startswith("E-")])
def test_every_edge_case_names_a_test(case: str):
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", rows_by_id()[case])
