"""A small file system that a test can fill: a tmpfs, which only root can mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CannotMount(Exception):
    """This user or container may not mount file systems."""


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs of ``size_bytes`` at ``path`` during the block. Raises CannotMount."""
    path.mkdir(parents=True)
    if os.geteuid() != 0:
        raise CannotMount("only root mounts file systems")
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "nilometer-test", str(path)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise CannotMount(mounted.stderr.strip())
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leaving_bytes: int) -> Path:
        """Fill the file system except ``leaving_bytes``; return the file that takes the space."""
        filler = self.path / "filler"
        with filler.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(1, self.free_bytes - leaving_bytes))
        return filler

    def grow(self, size_bytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(self.path)], check=True)
