"""Chooses the demo's input files: the given ones, or logs of this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from nilometer.cli.demo.demo_run import Demo, DemoFailed

USUAL_LOGS = (
    "/var/log/dpkg.log",
    "/var/log/apt/history.log",
    "/var/log/alternatives.log",
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/auth.log",
    "/var/log/nginx/access.log",
    "/var/log/apache2/access.log",
    "/var/log/httpd/access_log",
    "/var/log/system.log",
    "/var/log/install.log",
)
USUAL_BYTES_MAX = 64 * 1024 * 1024
"""The maximum total size of the machine's logs to read: a demo without given files should be short."""
STILL_WRITTEN_SECONDS = 3_600
SNIFF_BYTES = 1_024


def log_files(source: Path | None) -> list[Path]:
    if source is None:
        files = [path for path in map(Path, USUAL_LOGS) if _is_readable_text(path)]
        files = _up_to(files, USUAL_BYTES_MAX) or _any_logs()
    elif source.is_dir():
        files = [
            path
            for path in sorted(source.rglob("*"))
            if not _is_hidden(path, source) and _is_readable_text(path)
        ]
    else:
        files = [source]
    if not files:
        raise DemoFailed(
            f"no readable log file in {source or '/var/log'}. Name a file or a folder: make demo INPUT=path"
        )
    return [path.resolve() for path in files]


def _any_logs() -> list[Path]:
    """Return other text files of /var/log, for a machine that has none of the usual ones."""
    found = [path for path in sorted(Path("/var/log").glob("**/*")) if _is_readable_text(path)]
    return _up_to([path for path in found if path.suffix != ".gz"], USUAL_BYTES_MAX)


def _up_to(files: Sequence[Path], bytes_max: int) -> list[Path]:
    taken: list[Path] = []
    for path in files:
        bytes_max -= path.stat().st_size
        if bytes_max >= 0:
            taken.append(path)
    return taken


def _is_hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _is_readable_text(path: Path) -> bool:
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            return path.suffix == ".gz" or b"\0" not in file.read(SNIFF_BYTES)
    except OSError:
        return False


def stable(demo: Demo, files: list[Path]) -> list[Path]:
    """Return the files, with copies of those still being written: both counts must read the same lines."""
    stable: list[Path] = []
    for number, path in enumerate(files):
        if time.time() - path.stat().st_mtime < STILL_WRITTEN_SECONDS:
            copy = demo.run_dir / "input" / str(number) / path.name
            copy.parent.mkdir(parents=True)
            stable.append(Path(shutil.copy2(path, copy)))
        else:
            stable.append(path)
    return stable
