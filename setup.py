"""What pyproject.toml cannot say: a build writes down its commit, for ``nilometer --version``, and compiles
the modules that gain by it where there is a C compiler. NILOMETER_COMPILED=1 insists on it, 0 refuses it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
SOURCES = ROOT / "src"
IN_SDIST = SOURCES / "nilometer" / "commit"
WANTED = os.environ.get("NILOMETER_COMPILED")


def commit() -> str | None:
    """Return the commit: of the checkout, else as the sdist has it; None if neither is known."""
    if not (ROOT / ".git").exists():
        return IN_SDIST.read_text(encoding="ascii") if IN_SDIST.exists() else None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write_commit(package: Path) -> None:
    found = commit()
    if found is not None and package.is_dir():
        (package / "commit").write_text(found, encoding="ascii")


@functools.cache
def is_compiled() -> bool:
    """Whether this build compiles: it says so if it does not."""
    return WANTED != "0" and (WANTED == "1" or compiling("--check") == 0)


def compiling(*arguments: str) -> int:
    """Run the command that compiles; return its exit code. It prints what it has done, or lacks."""
    path = os.pathsep.join([str(SOURCES), *sys.path])
    environment = {**os.environ, "NILOMETER_COMPILED": "0", "PYTHONPATH": path}
    command = [sys.executable, "-m", "nilometer.compiled.build", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


class Build(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib, "nilometer")
        write_commit(package)
        if is_compiled() and compiling("--into", str(package / "compiled" / "built")) != 0 and WANTED == "1":
            sys.exit("NILOMETER_COMPILED=1 asks for compiled modules.")


class SdistWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir, "src", "nilometer"))


class MaybeCompiled(Distribution):
    def has_ext_modules(self) -> bool:
        """Whether the wheel fits one interpreter and system only."""
        return is_compiled()


setup(cmdclass={"build_py": Build, "sdist": SdistWithCommit}, distclass=MaybeCompiled)
