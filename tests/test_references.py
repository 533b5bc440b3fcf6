"""Modules and files that docstrings and developers' pages name: each exists, and is not the module itself."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "nilometer"
PAGES = {
    "docs/architecture.md": (),
    "docs/performance.md": (),
    "docs/replication.md": ("replication",),
    "docs/security.md": (),
    "docs/simulation.md": ("simulation", "simulation/checkers"),
    "CONTRIBUTING.md": (),
}
"""And the rooms that their paths may begin at, besides the repository and its source."""
ROLE = re.compile(r":(mod|class|func|meth|attr|data|exc):`([^`]+)`")
FILE = re.compile(r"`([\w./*-]+(?:\.py|/))`")


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def unknown_references(path: Path) -> list[str]:
    """Return what a module's text refers to and does not exist, and what is the module itself."""
    own, found = module_of(path), list[str]()
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    for kind, target in ROLE.findall(path.read_text(encoding="utf-8")):
        name = target.lstrip("~")
        if name.startswith(".") or (kind == "mod" and is_module(f"{package}.{name}")):
            name = f"{package}.{name.lstrip('.')}"
        if not name.startswith("nilometer."):
            if kind == "mod" and importlib.util.find_spec(name.partition(".")[0]) is None:
                found.append(target)
            continue
        module = name
        while kind != "mod" and not is_module(module) and "." in module:
            module = module.rpartition(".")[0]
        if not is_module(module) or module == "nilometer" or module == own:
            found.append(target)
    return found


def test_docstrings_name_modules_that_exist_and_not_their_own() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted(SOURCE.rglob("*.py"))
        if (names := unknown_references(path))
    }
    assert found == {}


@pytest.mark.parametrize("page", PAGES)
def test_the_developers_pages_name_files_that_exist(page: str) -> None:
    """A name alone may be in any folder of the repository's code."""
    begins = (ROOT, SOURCE, *(SOURCE / room for room in PAGES[page]))
    names = {
        path.name + ("/" if path.is_dir() else "")
        for root in (ROOT / "src", ROOT / "tests", ROOT / "tools", ROOT / "bench")
        for path in root.rglob("*")
        if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
    }
    missing = [
        name
        for name in FILE.findall((ROOT / page).read_text(encoding="utf-8"))
        if name not in names and not any(any(root.glob(name.rstrip("/"))) for root in begins)
    ]
    assert missing == []
