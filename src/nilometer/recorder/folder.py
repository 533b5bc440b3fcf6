"""The folder of a broker's recordings: one file for each start, of which the oldest are removed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from nilometer.recorder.tape import Header, NotARecording
from nilometer.recorder.tape_file import is_being_written, read_recording
from nilometer.runtime import Clock
from nilometer.version import __version__

SUFFIX = ".recording"


@functools.cache
def digest_of_sources() -> str:
    """Return the digest of all modules of this package: a recording is replayed by the same ones."""
    package = Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(str(path.relative_to(package)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()


LEFT_OUT, NO_STORE = "left-out", "file:///left-out"
"""In the place of a secret value, and of a URI with one."""


LOGIN_MODULE = "sasl.jaas.config"
"""Its value has stand-ins already: it must be readable."""


def new_header(
    settings: Mapping[str, str],
    sensitive: Collection[str],
    clock: Clock,
    open_files_max: int,
    boot: str = "",
    number: int = 0,
) -> Header:
    """``settings``: the broker's, as given; ``sensitive``: the names of those that are left out."""
    source = digest_of_sources()  # it takes long: before the clocks are read
    return Header(
        source=source,
        version=__version__,
        python=sys.version.split()[0],
        settings={name: _shown(name, value, sensitive) for name, value in settings.items()},
        sensitive=sorted(name for name in settings if name in sensitive),
        started_ms=clock.wall_ms(),
        started_monotonic_ms=clock.monotonic_ms(),
        open_files_max=open_files_max,
        boot=boot,
        number=number,
    )


_PRIVATE_KEY = re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(-----END [^-]*PRIVATE KEY-----|$)", re.DOTALL)
"""May stand beside certificates: all of a file is pasted into a setting of theirs."""
_LOGIN_OF_URL = re.compile(r"(?<=://)[^/@\s,]*@")
_QUERY_OF_URL = re.compile(r"(?<=[?])\S+")


def _shown(name: str, value: str, sensitive: Collection[str]) -> str:
    if name.endswith(LOGIN_MODULE):
        return value
    if name in sensitive:
        return NO_STORE if "://" in value else LEFT_OUT
    value = _PRIVATE_KEY.sub("", value)
    if "://" not in value:
        return value
    value = _LOGIN_OF_URL.sub("", value)
    return _QUERY_OF_URL.sub(LEFT_OUT, value) if name.endswith(".url") else value


class NewRecording(NamedTuple):
    path: str
    number: int


def new_recording(folder: str, node_id: int, wall_ms: int, bytes_max: int) -> NewRecording:
    """Return the path of a new recording and the number of the start, after the oldest of this broker were
    removed that leave no room for it. The newest one stays, and those that a process has open.

    ``bytes_max``: how large the others may be. Raises OSError.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    paths = filter(Path.is_file, Path(folder).glob(f"*-broker-{node_id}{SUFFIX}"))  # no pipes: they hang
    known = sorted(((_number_of(path), path) for path in paths), reverse=True)
    left = bytes_max
    for _, path in known:
        with contextlib.suppress(FileNotFoundError):  # another start has removed it
            size = path.stat().st_size
            if size > left < bytes_max and not is_being_written(str(path)):
                path.unlink()
            left -= size
    at = datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    number = 1 + max((number for number, _ in known), default=0)
    return NewRecording(os.path.join(folder, f"{at}-broker-{node_id}{SUFFIX}"), number)


def _number_of(path: Path) -> int:
    """Return the number of a start; 0 if it cannot be read."""
    try:
        return msgspec.msgpack.decode(next(read_recording(str(path))), type=Header).number
    except (OSError, NotARecording, msgspec.MsgspecError):
        return 0
