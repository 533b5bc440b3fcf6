"""Which of the files that are there now are those that were being read. Pure.

The cases, in the order they are tried:

1. Same device and inode, and what was read of it is still there: the same file, under whatever name.
2. A source whose file is gone, or is not the same any more, is looked for among the files that nobody
   claimed and whose name is that of a rotated sibling: a copy or a compressed copy of it. What was not yet
   read of it is there.
3. A copy of a file that is still there is left alone: its lines are the other's. (It becomes case 2 when the
   original is truncated.)
4. Whatever is left is new and read from its beginning.

Invariant: no file has two sources, no source two files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nilometer.client.ingest.source import Source

GZIP_SUFFIX = ".gz"


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: str
    device: int
    inode: int
    size: int
    asked_for: bool = True
    """Whether the user named it, or its folder. A sibling of such a file is only looked at for case 2."""

    @property
    def is_compressed(self) -> bool:
        return self.path.endswith(GZIP_SUFFIX)


BeginsWith = Callable[[FoundFile, Source], bool]
"""Whether the content of a file begins with what is known of a source."""


@dataclass(frozen=True, slots=True)
class Matches:
    resumed: tuple[tuple[Source, FoundFile], ...]
    new: tuple[FoundFile, ...]
    copies: tuple[FoundFile, ...]
    lost: tuple[Source, ...]
    """Sources that were not finished and whose file is nowhere."""


def is_rotation_name(path: str, original: str) -> bool:
    """Whether a file called ``path`` can be what rotation made of ``original``, in the same folder."""
    folder, name = posixpath.split(path)
    original_folder, original_name = posixpath.split(original)
    stem, _ = posixpath.splitext(original_name)
    return folder == original_folder and (
        name.startswith(original_name)
        or (bool(stem) and name.startswith((f"{stem}.", f"{stem}-", f"{stem}_")))
    )


def match(sources: Sequence[Source], files: Sequence[FoundFile], begins_with: BeginsWith) -> Matches:
    resumed: list[tuple[Source, FoundFile]] = []
    unclaimed = list(files)
    homeless: list[Source] = []
    for source in sources:
        file = _same_inode(source, unclaimed)
        if file is not None and _is_intact(source, file, begins_with):
            resumed.append((source, file))
            unclaimed.remove(file)
        else:
            homeless.append(source)
    for source in list(homeless):
        file = _copy_of(source, unclaimed, begins_with)
        if file is not None:
            resumed.append((source.found_as(file.device, file.inode), file))
            unclaimed.remove(file)
            homeless.remove(source)
    present = [source for source, _ in resumed]
    new: list[FoundFile] = []
    copies: list[FoundFile] = []
    for file in unclaimed:
        if file.asked_for:
            is_copy = any(_copy_of(source, [file], begins_with) is not None for source in present)
            (copies if is_copy else new).append(file)
    lost = tuple(source for source in homeless if not source.finished)
    return Matches(tuple(resumed), tuple(new), tuple(copies), lost)


def _same_inode(source: Source, files: Sequence[FoundFile]) -> FoundFile | None:
    for file in files:
        if (file.device, file.inode) == (source.device, source.inode):
            return file
    return None


def _is_intact(source: Source, file: FoundFile, begins_with: BeginsWith) -> bool:
    if not file.is_compressed and file.size < source.known.offset:
        return False
    return begins_with(file, source)


def _copy_of(source: Source, files: Sequence[FoundFile], begins_with: BeginsWith) -> FoundFile | None:
    """The file among ``files`` that holds what is known of ``source``; of an empty file there is no copy."""
    if not source.known.offset:
        return None
    for file in files:
        if is_rotation_name(file.path, source.path) and _is_intact(source, file, begins_with):
            return file
    return None
