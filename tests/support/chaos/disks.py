"""Faults of a broker's disk: unsynced data lost in a power cut, a flipped bit, no space, all data lost."""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nilometer.broker.replicas import log_directories
from nilometer.runtime import Runtime
from nilometer.storage import checkpoints, names
from nilometer.storage.names import TopicPartition

from ..logs.segments import StoredBatch, batches_of, segment_files


def lose_unsynced_tail(data_dir: Path, topic: str, partitions: int, chance: random.Random) -> dict[int, int]:
    """Simulate a power cut for a broker that is down: truncate each log at a random place.

    The place is inside a batch after the recovery point. Also removes the files that mark a clean shutdown.
    Returns the bytes lost of each partition.
    """
    (data_dir / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    (data_dir / log_directories.MARKER_NAME).unlink(missing_ok=True)
    points = _recovery_points(data_dir)
    return {
        partition: _cut(data_dir, topic, partition, points.get(TopicPartition(topic, partition), 0), chance)
        for partition in range(partitions)
    }


def _recovery_points(data_dir: Path) -> dict[TopicPartition, int]:
    path = str(data_dir / names.RECOVERY_POINT_CHECKPOINT)
    return dict(checkpoints.read_offsets(Runtime.system().disk, path))


def _cut(data_dir: Path, topic: str, partition: int, recovery_point: int, chance: random.Random) -> int:
    files = segment_files(data_dir, topic, partition)
    first = max((at for at, path in enumerate(files) if int(path.stem) <= recovery_point), default=0)
    unsynced = [
        (path, batch)
        for path in files[first:]
        for batch in batches_of(path.read_bytes(), path)
        if batch.base_offset >= recovery_point
    ]
    if not unsynced:
        return 0
    path, batch = chance.choice(unsynced)
    cut = batch.position + chance.randrange(batch.size)
    lost = path.stat().st_size - cut
    with path.open("r+b") as file:
        file.truncate(cut)
    for later in segment_files(data_dir, topic, partition):
        if int(later.stem) > int(path.stem):
            lost += later.stat().st_size
            for part in later.parent.glob(f"{later.stem}.*"):
                part.unlink()
    return lost


def flip_bit(data_dir: Path, topic: str, partition: int, below: int, chance: random.Random) -> StoredBatch:
    """Flip one bit in the records of a random batch that ends below offset ``below``; return the batch."""
    batches = [
        batch
        for path in segment_files(data_dir, topic, partition)
        for batch in batches_of(path.read_bytes(), path)
        if batch.last_offset < below
    ]
    batch = chance.choice(batches)
    with batch.path.open("r+b") as file:
        file.seek(batch.position + batch.size - 10)
        old = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([old ^ (1 << chance.randrange(8))]))
    return batch


def lose_everything(data_dir: Path) -> None:
    """Delete everything in ``data_dir``, as if its disk were replaced by a new one."""
    for entry in data_dir.iterdir():  # keep the folder: a file system may be mounted on it
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@dataclass(slots=True)
class SmallDisk:
    """A small tmpfs mounted on a broker's data folder; needs root."""

    folder: Path
    size_bytes: int = 32 << 20

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = f"size={self.size_bytes}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", str(self.folder)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self, leave_bytes: int) -> None:
        """Write a file that leaves about ``leave_bytes`` free; less if the broker writes meanwhile."""
        room = shutil.disk_usage(self.folder).free - leave_bytes
        try:
            with self._filler.open("wb") as file:
                file.write(b"x" * max(0, room))
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise

    def heal(self) -> None:
        self._filler.unlink(missing_ok=True)


class SharedFolder:
    """Remote storage in a folder, which goes away and comes back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @property
    def _hidden(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-hidden")

    def hide(self) -> None:
        if self.folder.exists():
            self.folder.rename(self._hidden)

    def heal(self) -> None:
        if self._hidden.exists():
            self._hidden.rename(self.folder)


def can_mount(folder: Path) -> bool:
    try:
        with SmallDisk(folder / "mount-probe", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
