"""The folder of a broker's recordings: one file for each start, of which the oldest are removed."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from nilometer.recorder.tape import Header
from nilometer.version import __version__

SUFFIX = ".recording"


def digest_of_sources() -> str:
    """Return the digest of all modules of this package: a recording is replayed by the same ones."""
    package = Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(str(path.relative_to(package)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def new_header(settings: Mapping[str, str], wall_ms: int, open_files_max: int) -> Header:
    """``settings``: the broker's, as given."""
    return Header(
        source=digest_of_sources(),
        version=__version__,
        python=sys.version.split()[0],
        settings=dict(settings),
        started_ms=wall_ms,
        open_files_max=open_files_max,
    )


def new_path(folder: str, node_id: int, wall_ms: int, bytes_max: int) -> str:
    """Return the path of a new recording, after the oldest were removed that leave no room for it.

    ``bytes_max``: how large the others may be. Raises OSError.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    left = bytes_max
    for path in sorted(Path(folder).glob(f"*{SUFFIX}"), reverse=True):
        left -= path.stat().st_size
        if left < 0:
            path.unlink()
    at = datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    return os.path.join(folder, f"{at}-broker-{node_id}{SUFFIX}")
