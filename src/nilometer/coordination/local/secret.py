"""The cluster's secret, in a folder that only the owner of the store may read.

A new secret is linked with its number as name: of several writers one succeeds. Then the files with lower
numbers are emptied. They are not removed, so that a slow writer cannot get a number that was used before.
"""

from __future__ import annotations

import logging
import posixpath

from nilometer.coordination.local import layout
from nilometer.coordination.local.staged_files import StagedFiles
from nilometer.coordination.store import StoreDamaged, StoredSecret
from nilometer.runtime import Disk

logger = logging.getLogger(__name__)


class SecretFolder:
    """Reads and writes the secrets. Every method may block, and raises OSError if the disk fails."""

    def __init__(self, disk: Disk, root: str, staged: StagedFiles) -> None:
        self._disk = disk
        self._root = root
        self._path = posixpath.join(root, layout.MEMBERS)
        self._staged = staged
        self._warned = False

    def open(self) -> None:
        self._disk.make_directories(self._path, private=True)
        self._disk.sync_directory(self._root)

    def read(self) -> StoredSecret | None:
        """Return the secret with the highest number; None if there is none.

        Before it returns, the folder is synced, so that a power failure cannot remove the secret's file after
        a caller has used it. Raises StoreDamaged if the file is empty or its checksum is wrong.
        """
        numbers = layout.secret_numbers(self._disk.list_directory(self._path))
        while numbers:
            path = self._file(numbers[-1])
            content = self._disk.read_file(path)
            if content:
                self._disk.sync_directory(self._path)
                self._warn_unless_private(path)
                return StoredSecret(numbers[-1], layout.unwrap(path, content)[1])
            after = layout.secret_numbers(self._disk.list_directory(self._path))
            if after == numbers:
                raise StoreDamaged(f"{path} is empty; restore the store's folder from a copy")
            numbers = after  # a newer secret was written meanwhile
        return None

    def put(self, number: int, data: bytes) -> bool:
        newest = self.read()
        if number != (0 if newest is None else newest.number + 1):
            return False
        staged_path = self._staged.new_path()
        self._staged.write(staged_path, layout.wrap(layout.KIND_SECRET, data), private=True)
        try:
            self._disk.link(staged_path, self._file(number))
        except FileExistsError:
            return False
        finally:
            self._staged.discard(staged_path)
        self._disk.sync_directory(self._path)
        self._empty_below(number)
        return True

    def _empty_below(self, number: int) -> None:
        for older in layout.secret_numbers(self._disk.list_directory(self._path)):
            if older < number and self._disk.file_size(self._file(older)):
                empty = self._staged.new_path()
                self._staged.write(empty, b"", private=True)
                self._disk.rename(empty, self._file(older))
        self._disk.sync_directory(self._path)

    def _file(self, number: int) -> str:
        return posixpath.join(self._path, layout.secret_name(number))

    def _warn_unless_private(self, path: str) -> None:
        if self._warned or (self._disk.is_private(self._path) and self._disk.is_private(path)):
            return
        self._warned = True
        logger.warning(
            "Other users of this machine may read the cluster's secret %s, and act as a broker with it: "
            "run chmod 700 %s && chmod 600 %s, then rotate the secret",
            path,
            self._path,
            path,
        )
