"""What constraints.txt pins can be installed on the oldest Python that pyproject.toml names."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
PINNED = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)


def oldest_python() -> str:
    requires: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    return requires.removeprefix(">=") + ".0"


@pytest.mark.parametrize("package", PINNED)
def test_a_pinned_package_takes_the_oldest_python(package: str) -> None:
    """Debian's is 3.11.2: a package that needs 3.11.5 would end the set-up there."""
    try:
        requires = importlib.metadata.metadata(package)["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("of an extra that is not installed")
    assert requires is None or oldest_python() in SpecifierSet(requires)
