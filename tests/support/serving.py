"""Where some broker answers, and where it keeps its log: all that a test of clients needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Serving:
    bootstrap: str
    data_dir: Path
