"""Writes log files and rotates them in the three ways of logrotate; records all lines written.

Writing and rotating alternate, so that no line is lost by a copytruncate itself.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path
from typing import BinaryIO

RENAMED, COPIED, PACKED = "renamed.log", "copied.log", "packed.log"
"""Named by their rotation: renamed and created; copied and truncated; renamed, created and compressed."""
NAMES = (RENAMED, COPIED, PACKED)


class RotatedLogs:
    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.written: list[bytes] = []
        self.rotations = dict.fromkeys(NAMES, 0)
        self._chance = chance
        self._away = folder.with_name(folder.name + ".away")
        self._late: BinaryIO | None = None
        folder.mkdir()
        for name in NAMES:
            (folder / name).touch()

    @property
    def paths(self) -> list[Path]:
        return [self.folder / name for name in NAMES]

    def write(self, lines: int) -> None:
        """Append ``lines`` lines to each file; none while the folder is away."""
        if self.is_away:
            return
        for name in NAMES:
            added = [self._line(name) for _ in range(lines)]
            with (self.folder / name).open("ab") as file:
                file.write(b"".join(line + b"\n" for line in added))

    def _line(self, name: str) -> bytes:
        padding = "x" * self._chance.choice([0, 10, 100, 1_000])
        line = f"{name} line {len(self.written)} {padding}".encode()
        self.written.append(line)
        return line

    def rotate(self, name: str) -> None:
        if self.is_away:
            return
        self.rotations[name] += 1
        count, path = self.rotations[name], self.folder / name
        if name == RENAMED:
            for number in range(count - 1, 0, -1):
                (self.folder / f"{name}.{number}").rename(self.folder / f"{name}.{number + 1}")
            self._rename(path, self.folder / f"{name}.1")
        elif name == COPIED:
            shutil.copy2(path, self.folder / f"{name}-{count:05}")
            os.truncate(path, 0)
        else:
            self._rename(path, plain := self.folder / f"{name}-{count:05}")
            with plain.open("rb") as source, gzip.open(f"{plain}.gz", "wb") as packed:
                shutil.copyfileobj(source, packed)
            plain.unlink()

    def _rename(self, path: Path, rotated: Path) -> None:
        """Rename the file and create a new one; sometimes a writer still appends a line to the old one."""
        with path.open("ab") as writer:
            path.rename(rotated)
            path.touch()
            if self._chance.random() < 0.5:
                writer.write(self._line(path.name) + b"\n")

    # --- the folder

    @property
    def is_away(self) -> bool:
        return self._away.exists()

    def take_away(self) -> None:
        """Make the folder vanish, as if unmounted; sometimes an empty mount point stays."""
        if not self.is_away:
            self.folder.rename(self._away)
            if self._chance.random() < 0.5:
                self.folder.mkdir()

    def bring_back(self) -> None:
        if self.is_away:
            if self.folder.exists():
                self.folder.rmdir()
            self._away.rename(self.folder)
