"""Decides when a source whose file is missing is forgotten. Pure.

A rotated file that was deleted does not come back; but a folder that is not mounted now may be back tomorrow
with all its files. The difference: in a folder that is *away* no file is found at all.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container, Sequence

from nilometer.client.ingest.found_files import Look
from nilometer.client.ingest.source import Source

FORGET_MS = 60 * 60 * 1_000
"""How long a source is kept whose file is gone from its folder: a copy of the file may appear."""
FORGET_AWAY_MS = 30 * 24 * 60 * 60 * 1_000
"""How long a source is kept in whose folder nothing is found."""
GONE_MAX = 1_000
"""The maximum number of sources kept whose files are gone from their folders."""


def away(sources: Sequence[Source], look: Look) -> list[Source]:
    """Return the sources in whose folder the look found nothing."""
    folders = {posixpath.dirname(file.path) for file in look.files}
    return [source for source in sources if posixpath.dirname(source.path) not in folders]


def decide_missing(
    missing: Sequence[Source], look: Look, wall_ms: int, sent: Container[int] = ()
) -> tuple[list[Source], list[int]]:
    """Return the sources to keep, with ``gone_ms`` set, and the numbers of those to forget.

    ``wall_ms`` is the wall clock; ``sent`` contains the sources with lines in the topic that they do not
    count yet.
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
