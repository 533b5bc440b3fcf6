"""docs/requirements.md has a row for every requirement that code, tests and documents cite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "docs/requirements.md"
ROW = re.compile(r"^\| ([A-Z]-\d+) \|", re.MULTILINE)
CURVES = r"P-(?:256|384|521)"
CITED = re.compile(rf"(?<![\w-])(?!{CURVES}\b)[ACEGKLNPQRX]-\d+(?![\w-])")
OTHER_SCHEME = re.compile(r"\bEDGE[ -]?\d+")
KINDS = {".py", ".md", ".txt"}


def _texts() -> Iterator[tuple[str, str]]:
    for place in ("src", "tests", "docs", "bench", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        root = ROOT / place
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            is_built = "target" in path.parts or path == Path(__file__)
            if path.suffix in KINDS and path.is_file() and not is_built:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_every_cited_requirement_has_a_row() -> None:
    rows = set(ROW.findall(REQUIREMENTS.read_text(encoding="utf-8")))
    cited = {(name, found) for name, text in _texts() for found in CITED.findall(text)}
    assert len({found for _, found in cited}) > 50, "the pattern still finds citations"
    assert sorted(each for each in cited if each[1] not in rows) == []


def test_requirements_are_cited_in_one_form() -> None:
    assert [(name, OTHER_SCHEME.findall(text)) for name, text in _texts() if OTHER_SCHEME.search(text)] == []


def test_the_rows_of_each_area_are_numbered_without_gaps_or_repetitions() -> None:
    numbers: dict[str, list[int]] = {}
    for row in ROW.findall(REQUIREMENTS.read_text(encoding="utf-8")):
        letter, number = row.split("-")
        numbers.setdefault(letter, []).append(int(number))
    assert numbers == {letter: list(range(1, len(found) + 1)) for letter, found in numbers.items()}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(KIP-966, E-22)", ["E-22"]),
        ("`R-3`, R-4", ["R-3", "R-4"]),
        ("KAFKA-13207, UTF-8 and P-256", []),
        ("broker-1, log.E-1.x, E-1-2", ["E-1"]),
    ],
)
def test_what_counts_as_a_citation(text: str, found: list[str]) -> None:
    assert CITED.findall(text) == found
