"""Builds the sdist and the wheel of this repository, and installs the wheel where nothing else is.

The environment has what the wheel's own metadata requires, and no extra: these packages are copied from the
environment of the tests, with the versions that the tests run with. For another version of Python, pip
installs the same versions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.requirements import Requirement

from nilometer.compiled import VARIABLE

from .unpacking import unpack

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "src"
COMMIT = "commit"
"""In the folder of the build: the commit that it is of."""
AUTHOR = ("-c", "user.name=Nilometer", "-c", "user.email=build@localhost", "-c", "commit.gpgsign=false")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "built", "*.egg-info", "*.pyc")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def source_files() -> set[str]:
    """Return the paths of the package's files, relative to ``src``."""
    return {
        str(path.relative_to(SOURCES))
        for path in (SOURCES / "nilometer").rglob("*")
        if path.is_file() and not {"__pycache__", "built"} & set(path.parts)  # compiled modules and kernels
    }


def build_both(folder: Path) -> tuple[Path, Path]:
    """Build the sdist from a copy of the sources, and the wheel from the sdist; return both."""
    backend = folder / "backend"
    requires = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    _run(sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", backend, *requires)
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tree)
    shutil.copytree(SOURCES, tree / "src", ignore=NOT_SOURCES)
    for command in (["init"], ["add", "."], [*AUTHOR, "commit", "--no-verify", "--message", "The build"]):
        _run("git", *command, cwd=tree)
    (folder / COMMIT).write_text(_run("git", "rev-parse", "HEAD", cwd=tree).strip())
    sdist = _build(backend, tree, "build_sdist", folder)
    (unpacked,) = unpack(sdist, folder / "unpacked").iterdir()
    return sdist, _build(backend, unpacked, "build_wheel", folder, {VARIABLE: "0"})


def build_wheel(sdist: Path, target: Path, variables: Mapping[str, str]) -> Path:
    """Build the wheel where :func:`build_both` has built ``sdist``; return it. Raises AssertionError."""
    (unpacked,) = (sdist.parent / "unpacked").iterdir()
    target.mkdir()
    return _build(sdist.parent / "backend", unpacked, "build_wheel", target, variables)


def _build(
    backend: Path, tree: Path, what: str, target: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> Path:
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment = {**inherited, **variables, "PYTHONPATH": str(backend)}
    printed = _run(sys.executable, "-c", BUILD, what, target, cwd=tree, env=environment)
    return target / printed.splitlines()[-1]


def install_alone(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel and what it requires; return its folder of programs."""
    _run(sys.executable, "-m", "venv", "--without-pip", folder)
    programs = folder / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    _run(*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", wheel)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (information,) = packages.glob("nilometer-*.dist-info")
    _copy_required(PathDistribution(information), packages, set())
    return programs


def find_python(version: str) -> Path | None:
    """Return an interpreter of this version that can make environments, from where pyenv keeps its own or
    the PATH; None without one."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    in_path = shutil.which(f"python{version}")
    candidates = [*root.glob(f"versions/{version}.*/bin/python"), *([Path(in_path)] if in_path else [])]
    program = "import ensurepip, sys; print(*sys.version_info[:2], sep='.')"
    for python in candidates:
        said = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:  # pyenv's command for a version may not find it
            return python
    return None


def install_with(python: Path, wheel: Path, folder: Path) -> Path:
    """Make an environment of ``python`` as :func:`install_alone` does; return its folder of programs."""
    _run(python, "-m", "venv", folder)
    programs = folder / "bin"
    pip = (programs / "python", "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check")
    _run(*pip, "--constraint", REPOSITORY / "constraints.txt", wheel)
    return programs


def _copy_required(one: Distribution, packages: Path, copied: set[str]) -> None:
    for requirement in map(Requirement, one.requires or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        needed = distribution(requirement.name)
        assert requirement.specifier.contains(needed.version, prereleases=True), requirement
        if needed.name in copied:
            continue
        copied.add(needed.name)
        for file in needed.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(needed.locate_file(file), target)  # type: ignore[arg-type]
        _copy_required(needed, packages, copied)


def _run(*command: object, **options: Any) -> str:
    done = subprocess.run(
        [str(one) for one in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout
