"""When a source whose file is nowhere is forgotten. Pure.

A rotated file that was deleted is no more; but a folder that is not mounted now may be back tomorrow with all
its files. What tells them apart: of a folder that is away no file is found at all.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container, Sequence

from nilometer.client.ingest.found_files import Look
from nilometer.client.ingest.source import Source

FORGET_MS = 60 * 60 * 1_000
"""Of a file that is gone from its folder; until then a copy of it may appear."""
FORGET_AWAY_MS = 30 * 24 * 60 * 60 * 1_000
"""Of a file in whose folder nothing is found."""
GONE_MAX = 1_000
"""Files gone from their folders that are remembered at a time."""


def away(sources: Sequence[Source], look: Look) -> list[Source]:
    """Those in whose folder nothing is found."""
    folders = {posixpath.dirname(file.path) for file in look.files}
    return [source for source in sources if posixpath.dirname(source.path) not in folders]


def decide_missing(
    missing: Sequence[Source], look: Look, wall_ms: int, sent: Container[int] = ()
) -> tuple[list[Source], list[int]]:
    """The sources to be remembered, with since when they are gone; the numbers of those to be forgotten.

    ``sent``: sources that have lines in the topic which they do not count yet.
    """
    numbers_away = {source.number for source in away(missing, look)}
    kept: list[Source] = []
    forgotten: list[int] = []
    gone: list[Source] = []
    for source in missing:
        is_away = source.number in numbers_away
        since_ms = min(source.gone_ms, wall_ms) if source.gone_ms is not None else wall_ms
        is_known = bool(source.known.offset) or source.number in sent
        if not is_away and not is_known:
            forgotten.append(source.number)  # it was empty: a copy of it cannot be recognised
        elif wall_ms - since_ms >= (FORGET_AWAY_MS if is_away else FORGET_MS):
            forgotten.append(source.number)
        else:
            (kept if is_away else gone).append(source.as_gone(since_ms))
    gone.sort(key=lambda source: (source.gone_ms or 0, source.number))
    forgotten += [source.number for source in gone[: max(len(gone) - GONE_MAX, 0)]]
    kept += gone[max(len(gone) - GONE_MAX, 0) :]
    return kept, forgotten
