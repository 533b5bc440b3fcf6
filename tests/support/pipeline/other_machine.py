"""Another machine, as far as its files go: a mount namespace without this checkout and Python's packages.

It has a Python environment of its own, with the packages that executors need and no others, and a folder that
it does not share.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import nilometer

CHECKOUT = Path(nilometer.__file__).parents[2]


class OtherMachine:
    """``command`` is to be put before the command of a process that is to run there."""

    def __init__(self, folder: Path, packages: Iterable[str]) -> None:
        environment, script = folder / "environment", folder / "enter.sh"
        venv.create(environment, with_pip=False, symlinks=True)
        self.python = environment / "bin" / "python3"
        self.packages = next(environment.glob("lib/python3*/site-packages"))
        self.private = folder / "private"
        """A folder of which this machine and the other one each have another."""
        self.private.mkdir()
        lines = ["set -e", "mount --make-rprivate /"]
        for source in places_of(packages):
            target = self.packages / source.name
            target.mkdir() if source.is_dir() else target.touch()
            lines.append(f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(target))}")
        hidden = {CHECKOUT, Path(sys.prefix), self.private}
        lines += [
            f"mount -t tmpfs none {shlex.quote(str(one))}"
            for one in sorted(hidden)
            if not any(other in one.parents for other in hidden)
        ]
        script.write_text("\n".join([*lines, 'exec "$@"', ""]))
        self.command = ["unshare", "--mount", "sh", str(script)]


def can_have_another_machine() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def places_of(packages: Iterable[str]) -> list[Path]:
    """Return the files and folders in which these distributions, and what they require, are installed."""
    names, left = set[str](), list(packages)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name not in names:
            names.add(name)
            required = importlib.metadata.requires(name) or []
            left += [match[0] for one in required if ";" not in one and (match := re.match(r"[\w.-]+", one))]
    found = set[Path]()
    for name in names:
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__", "/"}
        found |= {Path(str(distribution.locate_file(top))) for top in tops}
    return sorted(one for one in found if one.exists())
