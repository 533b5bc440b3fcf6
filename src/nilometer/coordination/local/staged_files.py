"""Staged files: written in a folder that no reader uses, then linked with their final names."""

from __future__ import annotations

import errno
import logging
import posixpath

from nilometer.coordination.store import StoreUnavailable
from nilometer.runtime import Disk

logger = logging.getLogger(__name__)


class StagedFiles:
    """Writes staged files, each with a unique name (``token`` and a number)."""

    def __init__(self, disk: Disk, folder: str, token: str) -> None:
        self._disk = disk
        self._prefix = posixpath.join(folder, token)
        self._count = 0

    def new_path(self) -> str:
        self._count += 1
        return f"{self._prefix}.{self._count}"

    def write(self, path: str, content: bytes, *, sync: bool = True, private: bool = False) -> None:
        """Write a staged file. May block. Raises OSError; then the file is removed.

        ``private``: only the owner may read it.
        """
        file = self._disk.open(path, create=True, private=private)
        try:
            try:
                file.append([content])
                if sync:
                    file.sync()
            finally:
                file.close()
        except OSError:
            self.discard(path)
            raise

    def discard(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass  # another process removed it as stale
        except OSError as error:
            logger.warning("Could not remove %s: %s. The next start of a broker removes it", path, error)


def unavailable(doing: str, error: OSError) -> StoreUnavailable:
    """Return the error to raise for an OSError after which nothing was changed.

    ``doing`` describes the failed action.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(
            f"the disk is full: {doing} failed ({error}); free some space, nothing was changed"
        )
    return StoreUnavailable(f"{doing} failed: {error}; nothing was changed")
