"""Remembers rotated files that may be unread: they are read if they turn out to be no copies. Pure.

A later look cannot find out again that a rotation made them, so they are remembered while their folder is
not mounted, and between runs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from nilometer.client.ingest.found_files import FoundFile, Identity, Look
from nilometer.client.ingest.missing_sources import away
from nilometer.client.ingest.source import Source

UNKNOWN = ""
"""The path of a file that only an earlier run has seen: the state keeps no path."""


class Candidates:
    def __init__(self, identities: Iterable[Identity]) -> None:
        self._paths: dict[Identity, str] = dict.fromkeys(identities, UNKNOWN)

    def on_look(
        self,
        look: Look,
        files: Sequence[FoundFile],
        may_be_unread: AbstractSet[Identity],
        sources: Sequence[Source],
    ) -> set[Identity]:
        """Update from a look and return the identities of all candidates.

        They are ``may_be_unread`` of the found ``files``, and earlier ones in folders where nothing is found.
        """
        folders = {posixpath.dirname(file.path) for file in look.files}
        is_any_away = bool(away(sources, look))
        found = {file.identity: file.path for file in files}
        self._paths = {
            identity: path
            for identity, path in self._paths.items()
            if identity not in found
            and (is_any_away if path == UNKNOWN else posixpath.dirname(path) not in folders)
        } | {identity: path for identity, path in found.items() if identity in may_be_unread}
        return set(self._paths)
