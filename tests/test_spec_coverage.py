"""docs/spec-coverage.md names tests; a name that no test has would be a broken promise."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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


def test_every_row_of_the_requirements_has_a_line():
    text = (ROOT / "docs/spec-coverage.md").read_text(encoding="utf-8")
    for letter, count in (("L", 6), ("P", 5), ("R", 13), ("K", 5), ("X", 4), ("N", 3)):
        for number in range(1, count + 1):
            assert re.search(rf"\b{letter}-{number}\b", text), f"{letter}-{number}"


def test_every_replication_edge_case_names_a_test():
    text = (ROOT / "docs/spec-coverage.md").read_text(encoding="utf-8")
    for number in [*range(1, 27), 31, 32]:
        assert re.search(rf"^\| E-{number} \|.*`tests/[\w/]+\.py::test_\w+`", text, re.MULTILINE), (
            f"E-{number}"
        )
