"""Unpacks an archive."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive into ``folder``, and return the folder. By `tar`: Python 3.11 knows which files are
    safe to unpack only from 3.11.4 on."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder
