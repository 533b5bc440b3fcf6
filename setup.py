"""What pyproject.toml cannot say: a build writes down its commit, for ``nilometer --version``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
IN_SDIST = ROOT / "src" / "nilometer" / "commit"


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


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib, "nilometer"))


class SdistWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir, "src", "nilometer"))


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SdistWithCommit})
