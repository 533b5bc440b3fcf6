"""Why a broker of ``nilometer up`` does not serve, left where ``nilometer status`` finds it.

The broker's process alone writes the file; it removes it when it starts.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("nilometer.broker")

NOT_READY = "!"
"""What a line on the ready descriptor begins with that says why the broker will not be ready."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    state: str
    """``fenced``: its process stays and serves nothing. ``failed``: its process ended."""
    reason: str


class BrokerStatusFile:
    def __init__(self, path: Path | None) -> None:
        self._path = path

    def clear(self) -> None:
        """Raises OSError."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def write(self, state: str, reason: str) -> None:
        """A disk that takes nothing more is no reason to end otherwise: the log has it too."""
        if self._path is None:
            return
        aside = self._path.with_suffix(".tmp")
        try:
            aside.write_text(json.dumps({"state": state, "reason": reason}), encoding="utf-8")
            aside.replace(self._path)
        except OSError as error:
            logger.error("%s cannot be written: %s", self._path, error)

    def read(self) -> BrokerStatus | None:
        """None where the broker has nothing to say, or what is there cannot be read."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8")) if self._path else None
            return None if found is None else BrokerStatus(str(found["state"]), str(found["reason"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
