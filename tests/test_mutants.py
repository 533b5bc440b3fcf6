"""The list of mutants is about the code as it is; ``python -m mutants`` tries them."""

from __future__ import annotations

import ast

import pytest

from mutants.catalogue import BY_NAME, MUTANTS
from mutants.mutant import REPOSITORY, Mutant


def test_each_has_a_name() -> None:
    assert len(BY_NAME) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_it_changes_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    path = mutant.file(REPOSITORY)
    changed = path.read_text(encoding="utf-8").replace(mutant.old, mutant.new)
    assert mutant.old != mutant.new
    if path.suffix == ".py":
        ast.parse(changed)
    assert mutant.tests
    for test in mutant.tests:
        name, *functions = test.split("::")
        text = (REPOSITORY / "tests" / name).read_text(encoding="utf-8")
        for function in functions:
            assert f"def {function.partition('[')[0]}(" in text or f"class {function}" in text, test
