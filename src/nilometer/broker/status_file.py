"""The reason why a broker of ``nilometer up`` does not serve, in a file that ``nilometer status`` reads.

The broker's process alone writes the file; it removes it when it starts.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec

logger = logging.getLogger("nilometer.broker")

NOT_READY = "!"
"""The prefix of a line on the ready descriptor with the reason why the broker will not be ready."""


class BrokerStatus(msgspec.Struct, frozen=True):
    state: str
    """``fenced``: the process runs but serves no requests. ``failed``: the process ended."""
    reason: str


class BrokerStatusFile:
    def __init__(self, path: Path | None) -> None:
        self._path = path

    def clear(self) -> None:
        """Remove the file. Raises OSError."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def write(self, state: str, reason: str) -> None:
        """Write state and reason; a failed write is only logged, since the log has the reason too."""
        if self._path is None:
            return
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps({"state": state, "reason": reason}), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            logger.error("%s cannot be written: %s", self._path, error)

    def read(self) -> BrokerStatus | None:
        """Return the broker's status; None if there is no file, or it cannot be read."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8")) if self._path else None
            return None if found is None else BrokerStatus(str(found["state"]), str(found["reason"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
