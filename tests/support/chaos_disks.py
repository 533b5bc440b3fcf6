"""What happens to a broker's disk: the tail lost in a power cut, one bit turned over, no room, no data."""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nilometer.broker import broker_epoch_marker
from nilometer.runtime import Runtime
from nilometer.storage import TopicPartition, checkpoints, names

from .segments import StoredBatch, batches_of, segment_files


def lose_unsynced_tail(data_dir: Path, topic: str, partitions: int, chance: random.Random) -> dict[int, int]:
    """As a power cut does to a machine whose broker is down: of each log, some of what was written behind the
    recovery point is gone, from the middle of a batch on; and nothing says any more that nothing was lost.

    Returns the bytes lost of each partition.
    """
    (data_dir / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    (data_dir / broker_epoch_marker.NAME).unlink(missing_ok=True)
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
    """One bit in the records of a batch that ends at or below the offset ``below``."""
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
    """A new, empty disk in the old one's place."""
    for entry in data_dir.iterdir():  # the folder itself may be where a file system is mounted
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@dataclass(slots=True)
class SmallDisk:
    """A file system of its own under a broker's data folder. Needs root."""

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
        """Another file takes all but the given room, or all, where a broker is quicker to write."""
        room = shutil.disk_usage(self.folder).free - leave_bytes
        try:
            with self._filler.open("wb") as file:
                file.write(b"x" * max(0, room))
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise

    def heal(self) -> None:
        self._filler.unlink(missing_ok=True)


def can_mount(folder: Path) -> bool:
    try:
        with SmallDisk(folder / "mount-probe", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
