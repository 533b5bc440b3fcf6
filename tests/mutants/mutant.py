"""A mutant: one small change of the program that a test must notice. And a copy of the tree to try it in.

A mutant names no file: the text that it replaces is in one place only, wherever modules move. The checkout is
never changed. The copy has an environment of its own, so that the brokers and commands that tests start are
those of the copy, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
NOT_COPIED = (".venv", "build", "tests/java/target")
"""What is built: the copy has links to it."""
TIMEOUT_S = 300
"""For one test: a mutant may let it wait for ever."""
FAILED = re.compile(r"^(?:FAILED|ERROR) tests/([^\s\[]+)", re.MULTILINE)
SECONDS = 2
"""Between two versions of a file: Python would take the bytecode of the other one within a second."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    what: str
    """What the program does then."""
    old: str
    new: str
    tests: Sequence[str]
    """Those that find it, below ``tests``."""
    where: str = "src"

    def file(self, texts: Mapping[Path, str]) -> Path:
        """Return that of ``texts`` which has the text. Raises ValueError unless it is in one place."""
        found = [path for path, text in texts.items() for _ in range(text.count(self.old))]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in {len(found)} places of {self.where}")
        return found[0]


def texts_of(top: Path) -> dict[Path, str]:
    """Return the code and the pages at ``top``, a file or a folder."""
    files = [top] if top.is_file() else sorted(one for one in top.rglob("*") if one.suffix in (".py", ".md"))
    return {path: path.read_text(encoding="utf-8") for path in files}


class Tree:
    """A copy of the checkout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (REPOSITORY / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, target)
        for name in NOT_COPIED:
            if (REPOSITORY / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to((REPOSITORY / name).resolve())
        self._python = self._environment(folder / "environment")
        self._changes = 0

    def _environment(self, at: Path) -> Path:
        """Make an environment with the packages of this one, in which ``nilometer`` is the copy's."""
        venv.create(at, symlinks=True)
        (packages,) = at.glob("lib/python3*/site-packages")
        (own,) = Path(sys.prefix).glob("lib/python3*/site-packages")
        (packages / "paths.pth").write_text(f"{self._folder / 'src'}\n{own}\n")
        for program in (Path(sys.prefix) / "bin").iterdir():
            if program.is_file() and not (at / "bin" / program.name).exists():
                text = program.read_bytes().replace(sys.prefix.encode(), os.fsencode(at))
                (at / "bin" / program.name).write_bytes(text)
                (at / "bin" / program.name).chmod(0o755)
        return at / "bin" / "python"

    def killers(self, mutant: Mutant, *options: str) -> list[str]:
        """Return the tests that fail with the mutant, without parameters. Raises RuntimeError if none ran."""
        path = mutant.file(texts_of(self._folder / mutant.where)).relative_to(self._folder)
        with self.changed(path, lambda text: text.replace(mutant.old, mutant.new)):
            return self.failing(mutant.tests, *options)

    @contextlib.contextmanager
    def changed(self, path: Path, change: Callable[[str], str]) -> Iterator[None]:
        """Change a file of the copy; at the end what runs in the copy is ended, and the file as before."""
        path = self._folder / path
        text = path.read_text(encoding="utf-8")
        self._write(path, change(text))
        try:
            yield
        finally:
            self._end_processes()
            self._write(path, text)

    def _end_processes(self) -> None:
        """End what a failed test has left: brokers, or a command that the mutant lets run for ever."""
        folder = os.fsencode(self._folder)
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended since
                if folder in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

    def failing(self, tests: Sequence[str], *options: str, timeout_s: float | None = None) -> list[str]:
        """Return which of ``tests`` fail. Raises subprocess.TimeoutExpired."""
        arguments = ["-m", "pytest", "-rfE", "--tb=line", "-p", "no:cacheprovider"]
        done = self.run(
            [*arguments, "--timeout", str(TIMEOUT_S), *options, *(f"tests/{one}" for one in tests)],
            timeout_s,
        )
        failed = list(dict.fromkeys(FAILED.findall(done.stdout)))
        if done.returncode not in (0, 1) and not failed:
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return failed

    def run(
        self, arguments: Sequence[str], timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the copy's Python. Raises subprocess.TimeoutExpired."""
        environment = {**os.environ, "VIRTUAL_ENV": str(self._python.parents[1])}
        environment.pop("PYTHONPATH", None)  # the modules that it names would come before the copy's
        return subprocess.run(
            [self._python, *arguments],
            cwd=self._folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def _write(self, path: Path, text: str) -> None:
        self._changes += SECONDS
        path.write_text(text, encoding="utf-8")
        at = path.stat().st_mtime + self._changes
        os.utime(path, (at, at))
