"""Copies of folders that a running broker writes to: files come and go while they are copied."""

from __future__ import annotations

import contextlib
from pathlib import Path


def copy_live_folder(source: Path, target: Path) -> None:
    """Copy all files below ``source`` that are still there when their turn comes.

    A broker replaces a checkpoint by renaming a temporary file, and renames segments before it deletes them:
    ``shutil.copytree`` fails on a name that is gone. The caller waits until the broker has written down
    what the copy must have.
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
