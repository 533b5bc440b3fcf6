"""A test's folder says what it runs: the kinds of folders are few, and unit tests start no process."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "nilometer"
KINDS = {"architecture", "unit", "process", "simulation", "compatibility", "pipeline"}
STARTS_PROCESSES = {"subprocess", "multiprocessing"}


UNIT_TESTS = sorted((TESTS / "unit").rglob("test_*.py"))


def test_every_folder_of_tests_is_of_a_known_kind() -> None:
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if path.parent != TESTS}
    assert found == KINDS


def test_every_folder_of_unit_tests_is_named_after_a_layer() -> None:
    layers = {path.stem for path in PACKAGE.iterdir()}
    assert {path.relative_to(TESTS / "unit").parts[0] for path in UNIT_TESTS} <= layers


def test_modules_have_names_of_their_own() -> None:
    """pytest imports tests, and the helpers beside them, by their bare names."""
    folders = (TESTS / kind for kind in KINDS)
    names = Counter(
        path.stem
        for folder in folders
        for path in folder.rglob("*.py")
        if path.stem not in ("conftest", "__init__")
    )
    assert [name for name, number in names.items() if number > 1] == []


def test_shared_modules_hold_no_tests() -> None:
    assert list((TESTS / "support").rglob("test_*.py")) == []


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in UNIT_TESTS])
def test_a_unit_test_starts_no_process(path: Path) -> None:
    assert not _starts_processes(path, set())


def _starts_processes(path: Path, seen: set[Path]) -> bool:
    """Return whether ``path``, or a module of the tests that it imports, imports what starts processes."""
    if path in seen:
        return False
    seen.add(path)
    names = set(_imported(path))
    if names & STARTS_PROCESSES:
        return True
    return any(_starts_processes(module, seen) for name in names for module in _of_tests(name, path.parent))


def _imported(path: Path) -> Iterator[str]:
    """Yield each imported name with dots, and for ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.parents[node.level - 1].relative_to(TESTS).parts if node.level else ()
            module = ".".join((*package, *filter(None, [node.module])))
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)


def _of_tests(name: str, folder: Path) -> list[Path]:
    """Return the module ``name``, as found in tests/ or beside the test that imports it."""
    relative = Path(*name.split("."))
    places = [root / relative for root in (TESTS, folder)]
    return [
        module
        for place in places
        for module in (place.with_suffix(".py"), place / "__init__.py")
        if module.is_file()
    ]


def test_the_places_that_contributing_names_exist() -> None:
    """They are given from the top of the project, or from the package."""
    text = (TESTS.parent / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+[\w.]+\.(?:py|md|toml)|(?:tests|docs|bench)/(?:\w+/)*)`", text))
    assert len(named) > 20
    missing = {path for path in named if not any((top / path).exists() for top in (TESTS.parent, PACKAGE))}
    assert missing == set()
