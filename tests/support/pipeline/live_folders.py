"""Copies folders that a running broker writes to, in which files appear and vanish meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path


def copy_live_folder(source: Path, target: Path) -> None:
    """Copy all files below ``source``, except those that vanish meanwhile.

    A broker replaces a checkpoint by renaming a temporary file, and renames segments before it deletes them:
    ``shutil.copytree`` fails for a name that is gone. The caller first waits until the broker has written
    everything that the copy must contain.
    """
    target.mkdir(parents=True)
    with contextlib.suppress(FileNotFoundError):  # the folder was deleted
        for entry in sorted(source.iterdir()):
            if entry.is_dir():
                copy_live_folder(entry, target / entry.name)
                continue
            try:
                content = entry.read_bytes()
            except FileNotFoundError:
                continue
            (target / entry.name).write_bytes(content)
