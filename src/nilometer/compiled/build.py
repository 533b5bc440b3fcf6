"""Compiles the modules (:mod:`.modules`): ``python -m nilometer.compiled.build``.

Needs Cython, a C compiler and Python's headers; takes three minutes of processor time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from nilometer.compiled import (
    FOLDER,
    MANIFEST,
    PACKAGE,
    VARIABLE,
    digest_of,
    file_name,
    read_manifest,
    source_of,
)
from nilometer.compiled.declarations import Module, declarations, extension_types
from nilometer.compiled.modules import MODULES

_DIRECTIVES = {
    "annotation_typing": False,  # annotations are for pyright; declarations make types
    "binding": True,
    "nonecheck": True,  # a reference may be None
    "overflowcheck": True,
}
_FLAGS = ("-O2", "-g0", "-DNDEBUG", "-fwrapv", "-fno-strict-aliasing", "-fno-plt", "-w")


class CannotCompile(Exception):
    """The modules cannot be compiled here; the message says why."""


def what_is_missing() -> str | None:
    """Return what this machine lacks to compile, in a sentence; None if nothing."""
    compiler = _compiler()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        return f"Python's headers are not installed ({header})"
    if importlib.util.find_spec("Cython") is None:
        return "Cython is not installed: pip install cython"
    return None


def is_fresh(folder: Path = FOLDER) -> bool:
    """Whether ``folder`` has the modules of the present sources, for this interpreter."""
    manifest = read_manifest(folder)
    return manifest is not None and manifest["digests"] == _digests()


def build(folder: Path = FOLDER, *, is_default: bool = False) -> None:
    """Compile all modules into ``folder``, in place of those that were compiled before. Raises CannotCompile.

    ``is_default``: whether they are used without being asked for.
    """
    if folder.exists() and not (folder / MANIFEST).exists():
        raise CannotCompile(
            f"{folder} has no compiled modules, so it is not replaced: remove it, or give another folder"
        )
    if (missing := what_is_missing()) is not None:
        raise CannotCompile(missing)
    digests = _digests()
    with tempfile.TemporaryDirectory(prefix="nilometer-compiled-") as name:
        work = Path(name)
        _copy_sources(work)
        _translate(work)
        _compile_all(work)
        manifest = {
            "interpreter": sys.implementation.cache_tag,
            "is_default": is_default,
            "digests": digests,
        }
        (work / "built" / MANIFEST).write_text(json.dumps(manifest, indent=1))
        _replace(folder, work / "built")


def _replace(folder: Path, built: Path) -> None:
    """Put what is in ``built`` in the place of ``folder``: as a whole, also if this process is killed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".built-", dir=folder.parent) as name:
        beside = Path(name)
        shutil.copytree(built, beside / "new")
        if folder.exists():
            folder.rename(beside / "old")
        (beside / "new").rename(folder)


def _digests() -> dict[str, str]:
    names = [f"{PACKAGE.name}.{module}" for module in MODULES]
    return {name: digest_of(source_of(name)) for name in names}


def _copy_sources(work: Path) -> None:
    """Copy the sources of the modules, with their declarations, and what makes packages of their folders."""
    modules = [Module(one, source_of(f"{PACKAGE.name}.{one}").read_text("utf-8")) for one in MODULES]
    types = extension_types(modules)
    for module in modules:
        source = source_of(f"{PACKAGE.name}.{module.name}")
        copied = work / PACKAGE.name / source.relative_to(PACKAGE)
        copied.parent.mkdir(parents=True, exist_ok=True)
        declared, typed = declarations(module, types)
        copied.write_text(typed, "utf-8")
        copied.with_suffix(".pxd").write_text(declared, "utf-8")
        for folder in copied.relative_to(work).parents[:-1]:
            (work / folder / "__init__.py").touch()


def _translate(work: Path) -> None:
    from Cython.Build import cythonize  # pyright: ignore[reportUnknownVariableType]
    from Cython.Compiler.Errors import CompileError

    sources = [str(path.relative_to(work)) for path in sorted(work.rglob("*.pxd"))]
    before = Path.cwd()
    os.chdir(work)
    try:
        cythonize(
            [source.removesuffix("pxd") + "py" for source in sources],
            nthreads=os.cpu_count() or 1,
            language_level=3,
            compiler_directives=_DIRECTIVES,
            quiet=True,
        )
    except CompileError as error:
        raise CannotCompile(f"Cython refuses a module: {error}") from error
    finally:
        os.chdir(before)


def _compile_all(work: Path) -> None:
    (work / "built").mkdir()
    command = [
        *_compiler(),
        *shlex.split(sysconfig.get_config_var("CCSHARED") or ""),
        *_FLAGS,
        f"-I{sysconfig.get_path('include')}",
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(partial(_compile_one, work, command), MODULES):
            pass


def _compiler() -> list[str]:
    return shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")


def _compile_one(work: Path, command: Sequence[str], module: str) -> None:
    source = work.joinpath(PACKAGE.name, *module.split(".")).with_suffix(".c")
    made = work / "built" / file_name(f"{PACKAGE.name}.{module}")
    done = subprocess.run(
        [*command, str(source), "-o", str(made)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotCompile(f"the C compiler refuses {module}: {done.stderr.strip()[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nilometer.compiled.build", description=__doc__)
    parser.add_argument("--if-stale", action="store_true", help="do nothing if they are compiled already")
    parser.add_argument("--check", action="store_true", help="only say what is missing; exit code 1 if so")
    parser.add_argument("--into", type=Path, help="of an installation, which uses them without being asked")
    chosen = parser.parse_args()
    if chosen.check:
        if (missing := what_is_missing()) is not None:
            print(f"The modules are not compiled: {missing}", file=sys.stderr)
        return int(missing is not None)
    if chosen.if_stale and is_fresh():
        return 0
    try:
        build(chosen.into or FOLDER, is_default=chosen.into is not None)
    except CannotCompile as reason:
        print(f"The modules are not compiled: {reason}", file=sys.stderr)
        return 1
    used = f"{VARIABLE}=1 uses them" if chosen.into is None else f"used unless {VARIABLE} is 0"
    print(f"{len(MODULES)} modules are compiled, {used}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
