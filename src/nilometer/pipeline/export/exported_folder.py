"""The folder of an export: which files belong to it, and up to which offsets topics are in it.

A run is committed by its manifest, ``_commits/0000000012.json``, which names its files and the offsets that
the next run begins at. Then the folder of its files is renamed from ``_staged`` to ``data``: a reader of all
files below ``data`` sees each run whole or not at all, and never twice. What a killed run has left is
completed or removed by the next one.

Invariant: one run at a time. A second one finds the lock, which the system releases when a process ends.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.export.slice_files import SliceFile
from nilometer.pipeline.tables.staged_files import flush_folder, write_whole
from nilometer.storage.names import TopicPartition

COMMITS: Final = "_commits"
DATA: Final = "data"
STAGED: Final = "_staged"
_LOCK: Final = ".lock"
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How an address begins, once it is a path: ``//`` is ``/`` then."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the next run begins."""

    offsets: Mapping[TopicPartition, int]
    """Of each partition that was ever selected."""
    topic_ids: Mapping[str, str]
    """By the topic's name; a topic that is deleted and created again gets another id."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed run."""

    number: int
    columns: tuple[str, ...]
    position: Position
    files: tuple[SliceFile, ...]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files)


class ExportedFolder:
    """An export in a folder of this machine. Use the methods that write within ``locked``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other runs out. Raises PipelineError if one is under way, or if the folder cannot be used."""
        try:
            lock = self._opened_lock()
        except OSError as error:
            raise PipelineError(f"{self.folder} cannot be used: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"another export to {self.folder} is under way") from None
            (self.folder / DATA).mkdir(exist_ok=True)
            yield

    def _opened_lock(self) -> IO[str]:
        existing = sorted(one.name for one in self.folder.iterdir()) if self.folder.is_dir() else []
        if existing and COMMITS not in existing:
            raise PipelineError(
                f"{self.folder} has other files, such as {existing[0]}: give a folder of its own"
            )
        (self.folder / COMMITS).mkdir(parents=True, exist_ok=True)
        return (self.folder / _LOCK).open("w")

    def manifests(self) -> list[Manifest]:
        """Return the committed runs, oldest first."""
        return [_manifest(path) for path in self._paths()]

    def last(self) -> Manifest | None:
        """Return the last committed run, whose files are then all in ``data``; remove what others left."""
        paths = self._paths()
        last = _manifest(paths[-1]) if paths else None
        if last is not None:
            self._publish(last.number)
        shutil.rmtree(self.folder / STAGED, ignore_errors=True)
        return last

    def stage(self, number: int) -> Path:
        """Return a new folder for the files of a run."""
        staged = self._staged(number)
        staged.mkdir(parents=True)
        return staged

    def commit(self, manifest: Manifest) -> None:
        """Add a run whose files are complete: all of them or, if this process is killed, perhaps none."""
        staged = self._staged(manifest.number)
        kept = {one.name for one in manifest.files}
        if not kept:
            shutil.rmtree(staged, ignore_errors=True)
        else:
            for path in staged.iterdir():
                if path.name not in kept:
                    path.unlink()  # of an attempt of a task that does not count
            for folder in (staged, staged.parent, self.folder):
                flush_folder(folder)
        said = {
            "number": manifest.number,
            "at": datetime.now(UTC).isoformat(),
            "columns": manifest.columns,
            "offsets": [
                [part.topic, part.partition, at] for part, at in sorted(manifest.position.offsets.items())
            ],
            "topic_ids": dict(manifest.position.topic_ids),
            "files": [asdict(one) for one in manifest.files],
        }
        write_whole(self.folder / COMMITS / f"{manifest.number:010d}.json", said)
        self._publish(manifest.number)

    def _paths(self) -> list[Path]:
        return sorted((self.folder / COMMITS).glob("[0-9]*.json"))

    def _staged(self, number: int) -> Path:
        return self.folder / STAGED / f"{number:010d}"

    def _publish(self, number: int) -> None:
        staged = self._staged(number)
        if staged.exists():
            staged.rename(self.folder / DATA / staged.name)
            flush_folder(self.folder / DATA)


def check_place(folder: Path) -> None:
    """Raise PipelineError for an address such as ``s3://bucket``, which would be made as a folder here."""
    if _ADDRESS.match(str(folder)):
        raise PipelineError(
            f"{folder} is no folder of this machine: export to one, or to one that is mounted on it"
        )


def check_columns(last: Manifest | None, columns: Sequence[str], folder: Path) -> None:
    """Raise PipelineError if the folder has files of other columns."""
    if last is not None and last.columns != tuple(columns):
        raise PipelineError(
            f"{folder} has the columns {', '.join(last.columns)}: give the same ones, or another folder"
        )


def _manifest(path: Path) -> Manifest:
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Manifest(
        said["number"],
        tuple(said["columns"]),
        Position(
            {TopicPartition(topic, number): at for topic, number, at in said["offsets"]}, said["topic_ids"]
        ),
        tuple(SliceFile(**one) for one in said["files"]),
    )
