"""What a run leaves as evidence, if it is asked to: its history and its verdict.

``NILOMETER_EVIDENCE=FOLDER`` asks for it. The folder then has ``history.edn.gz`` and ``run.json``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from .jepsen_history import lines, save

__all__ = ["Verdict", "is_wanted", "keep", "lines", "verdict_in"]

FOLDER = "NILOMETER_EVIDENCE"
HISTORY, VERDICT = "history.edn.gz", "run.json"
SHOWN_MAX = 2_000
"""Characters of each finding."""


class Verdict(msgspec.Struct, frozen=True):
    """What one run did and found."""

    seed: int
    seconds: float
    counts: dict[str, int]
    """What clients and administrators did, by its name."""
    faults: dict[str, int]
    wrong: list[str]
    history_sha256: str
    history_bytes: int


def is_wanted() -> bool:
    return FOLDER in os.environ


def keep(
    history: Iterable[str],
    *,
    seed: int,
    seconds: float,
    counts: Mapping[str, int],
    faults: Mapping[str, int],
    wrong: Sequence[str],
) -> None:
    """Write both files; the verdict last, so that it speaks of a whole history."""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / HISTORY
    save(path, history)
    content = path.read_bytes()
    verdict = Verdict(
        seed=seed,
        seconds=round(seconds, 1),
        counts=dict(counts),
        faults=dict(faults),
        wrong=[one[:SHOWN_MAX] for one in wrong],
        history_sha256=hashlib.sha256(content).hexdigest(),
        history_bytes=len(content),
    )
    (folder / VERDICT).write_bytes(msgspec.json.encode(verdict))


def verdict_in(folder: Path) -> Verdict | None:
    """Return what the run in ``folder`` has left; None if it ended before its verdict."""
    path = folder / VERDICT
    return msgspec.json.decode(path.read_bytes(), type=Verdict) if path.exists() else None
