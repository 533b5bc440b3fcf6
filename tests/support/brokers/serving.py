"""A broker's address and data folder, for tests of clients that run with any broker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Serving:
    bootstrap: str
    data_dir: Path
