"""The folders above a new one are synced, as far as their file systems do that."""

from __future__ import annotations

import errno

import pytest

from nilometer.runtime.disk import sync_ancestors
from support.logs.memory_disk import MemoryDisk


@pytest.mark.parametrize(("refuses", "raises"), [("/a", False), ("/a/b", True)])
def test_a_file_system_that_syncs_no_folders_is_borne_above_the_parent(refuses, raises, monkeypatch) -> None:
    synced: list[str] = []

    def sync_directory(_disk, path: str) -> None:
        if path == refuses:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        synced.append(path)

    monkeypatch.setattr(MemoryDisk, "sync_directory", sync_directory)
    if raises:
        with pytest.raises(OSError, match="Invalid argument"):
            sync_ancestors(MemoryDisk(), "/a/b/c")
    else:
        sync_ancestors(MemoryDisk(), "/a/b/c")
        assert synced == ["/a/b"]
