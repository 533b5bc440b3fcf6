"""The list of mutants is about the code as it is; ``python -m mutants`` tries them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from mutants.catalogue import BY_NAME, MUTANTS
from mutants.drawn import JUDGED, STRATA, known, lines_of, table
from mutants.mutant import REPOSITORY, Mutant, texts_of


def test_each_has_a_name() -> None:
    assert len(BY_NAME) == len(MUTANTS)


@functools.cache
def texts(where: str) -> dict[Path, str]:
    return texts_of(REPOSITORY / where)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_it_changes_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    path = mutant.file(texts(mutant.where))
    changed = texts(mutant.where)[path].replace(mutant.old, mutant.new)
    assert mutant.old != mutant.new
    if path.suffix == ".py":
        ast.parse(changed)
    assert mutant.tests
    for test in mutant.tests:
        name, *functions = test.split("::")
        text = (REPOSITORY / "tests" / name).read_text(encoding="utf-8")
        for function in functions:
            assert f"def {function.partition('[')[0]}(" in text or f"class {function}" in text, test


def test_what_is_judged_as_equivalent_has_a_reason_and_survived() -> None:
    tried = known()
    for name, line in lines_of(JUDGED).items():
        assert line["why"], name
        assert name not in tried or tried[name]["layer"] is None, f"{name} was noticed"


def test_the_page_has_the_table_of_what_was_tried() -> None:
    """``python -m mutants.drawn --table`` prints it."""
    page = (REPOSITORY / "docs/simulation.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- drawn mutants: generated -->\n")
    assert rest.partition("\n<!-- drawn mutants: end -->")[0] == table(known(), lines_of(JUDGED))


def test_the_share_that_is_noticed_is_of_those_that_are_not_equivalent() -> None:
    tried = {
        f"{path}::{name}": {"layer": layer, "cpu_s": 1.4}
        for path, name, layer in (
            ("raft/log.py", "a", "unit"),
            ("raft/log.py", "b", "process"),
            ("raft/log.py", "c", None),
            ("storage/log.py", "d", "unit"),
            ("storage/log.py", "e", None),
        )
    }
    lines = table(tried, ["raft/log.py::c"]).splitlines()
    assert (
        lines[0] == "| package | unit | model check | simulation | process | survived | equivalent | CPU s |"
    )
    rows = {package: line for package in STRATA for line in lines if line.startswith(f"| {package} |")}
    assert rows["raft"] == "| raft | 1 | 0 | 0 | 1 | 0 | 1 | 3 |"
    assert rows["storage"] == "| storage | 1 | 0 | 0 | 0 | 1 | 0 | 2 |"
    assert lines[-1] == "Noticed: 3 of 4 that are not equivalent (75.0%)."
    assert table({}, ()).endswith("Noticed: 0 of 0 that are not equivalent.")
