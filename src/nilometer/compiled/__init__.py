"""The compiled form of some modules: the same sources, translated to C by Cython (:mod:`.build`).

Installing makes it where there is a C compiler, unless NILOMETER_COMPILED is 0, and the installation uses it.
A checkout has it after ``make compiled``, and uses it only if NILOMETER_COMPILED is 1. With 0 everything is
interpreted. A module whose source has changed since it was compiled is refused: nothing runs in two versions.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).parent.parent
FOLDER = Path(__file__).with_name("built")
MANIFEST = "manifest.json"
VARIABLE = "NILOMETER_COMPILED"


def source_of(module: str) -> Path:
    """Return the file of a module of this package, named in full."""
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def digest_of(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


class StaleModule(ImportError):
    """A module's source has changed since it was compiled."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} has changed since it was compiled: compile again (make compiled), or set {VARIABLE}=0",
            name=name,
        )


class CompiledFinder:
    """Finds the compiled form of modules, as an entry of :data:`sys.meta_path`."""

    def __init__(self, folder: Path, digests: Mapping[str, str]) -> None:
        """``digests``: of the sources, by the full names of the modules."""
        self._folder = folder
        self._digests = digests

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raises StaleModule."""
        digest = self._digests.get(name)
        if digest is None:
            return None
        if digest_of(source_of(name)) != digest:
            raise StaleModule(name)
        file = str(self._folder / file_name(name))
        loader = importlib.machinery.ExtensionFileLoader(name, file)
        return importlib.util.spec_from_file_location(name, file, loader=loader)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what is known of the modules in ``folder``; None if there are none for this interpreter."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):  # the latter where the package is in an archive
        return None
    return manifest if manifest["interpreter"] == sys.implementation.cache_tag else None


def file_name(module: str) -> str:
    """Return the name of a compiled module's file: it fits one interpreter only."""
    return module + importlib.machinery.EXTENSION_SUFFIXES[0]


def is_used() -> bool:
    """Whether this process runs the compiled modules."""
    return any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)


def form() -> str:
    """Return ``compiled`` or ``interpreted``."""
    return "compiled" if is_used() else "interpreted"


def use(folder: Path = FOLDER) -> None:
    """Import the compiled modules in place of their sources from now on, if they are there and wanted.

    Raises ImportError if NILOMETER_COMPILED asks for what is not there, or is neither 0 nor 1.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in {"", "0", "1"}:
        raise ImportError(f"{VARIABLE} is {wanted!r}: give 1 for compiled modules, 0 for interpreted ones")
    if wanted == "0" or is_used():
        return
    manifest = read_manifest(folder)
    if manifest is not None and (wanted == "1" or manifest["is_default"]):
        sys.meta_path.insert(0, CompiledFinder(folder, manifest["digests"]))
    elif wanted == "1":
        raise ImportError(
            f"{VARIABLE} is 1, but there are no compiled modules for {sys.implementation.cache_tag} in "
            f"{folder}: make compiled makes them"
        )
