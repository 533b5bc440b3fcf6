"""Applies a matcher to files: counts, the first lines one by one, and proposals for the rest.

Invariant: the memory is bounded by the number of files, whatever their size and the length of their lines.
"""

from __future__ import annotations

import gzip
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.columns import Line
from nilometer.pipeline.formats.definition import parse_formats
from nilometer.pipeline.formats.matcher import LINE_BYTES_MAX, Matcher, text_of
from nilometer.pipeline.formats.proposals import LINES_MAX, Proposal, propose
from nilometer.pipeline.formats.tally import Tally, shortened

PROPOSALS_MAX = 8
LEFT_CHARS_MAX = 2_000
"""The part of a line of no format that is kept for proposals."""
SNIFF_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class LineFound:
    number: int
    found: Line
    text: str


@dataclass(slots=True)
class FileLines:
    path: str
    lines: int = 0
    shown: list[LineFound] = field(default_factory=list[LineFound])
    left: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Checked:
    tally: Tally
    files: list[FileLines]
    proposals: list[Proposal]

    @property
    def left(self) -> list[str]:
        return [line for file in self.files for line in file.left]


def check_files(matcher: Matcher, paths: Sequence[str], shown: int) -> Checked:
    """Match all lines of the files; keep the first ``shown`` of each. Raises PipelineError."""
    tally = Tally()
    files = [_check_file(matcher, path, tally, shown) for path in _files_of(paths)]
    if not tally.lines:
        raise PipelineError(f"no line to read in {', '.join(paths)}")
    return Checked(tally, files, _proposals(files, matcher.names))


def _check_file(matcher: Matcher, path: str, tally: Tally, shown: int) -> FileLines:
    file = FileLines(path)
    recorded_us = time.time_ns() // 1_000
    try:
        for raw in _lines_of(path):
            text = text_of(raw)
            found = matcher.match_text(text, path, recorded_us)
            file.lines += 1
            tally.add(path, found.format)
            if len(file.shown) < shown:
                file.shown.append(LineFound(file.lines, found, shortened(text)))
            if found.format == "unparsed":
                tally.add_sample(path, text)
                if len(file.left) < LINES_MAX:
                    file.left.append(text[:LEFT_CHARS_MAX])
    except (OSError, EOFError, zlib.error) as error:
        raise PipelineError(f"{path} cannot be read: {error}") from error
    return file


def _proposals(files: Sequence[FileLines], names: Sequence[str]) -> list[Proposal]:
    """Propose formats file by file, since a header belongs to its file; none for what one already takes."""
    proposals: list[Proposal] = []
    for file in sorted(files, key=lambda one: -len(one.left)):
        left = file.left
        if len(proposals) >= PROPOSALS_MAX:
            break
        if proposals:
            known = Matcher(parse_formats("\n".join(one.toml for one in proposals), "proposals"))
            left = [line for line in left if known.match_text(line).format == "unparsed"]
        proposals += propose(left, [*names, *(one.name for one in proposals)])
    return proposals[:PROPOSALS_MAX]


def _files_of(paths: Sequence[str]) -> Iterator[str]:
    for given in paths:
        path = Path(given)
        if given == "-":
            yield given
        elif path.is_dir():
            found = [one for one in sorted(path.rglob("*")) if one.is_file() and not _is_hidden(one, path)]
            yield from (str(one) for one in found if _is_text(one))
        elif path.is_file():
            yield given
        else:
            raise PipelineError(f"{given} is no file and no folder")


def _is_hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix == ".gz" or b"\0" not in file.read(SNIFF_BYTES)
    except OSError:
        return False


def _lines_of(path: str) -> Iterator[bytes]:
    """Yield the lines without their endings; of a line that is too long for any format, the beginning."""
    if path == "-":
        yield from _split(sys.stdin.buffer)
        return
    with Path(path).open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield from _split(cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if is_compressed else file)


def _split(file: IO[bytes]) -> Iterator[bytes]:
    limit = LINE_BYTES_MAX + 2
    while line := file.readline(limit):
        rest = line
        while len(rest) == limit and not rest.endswith(b"\n"):
            rest = file.readline(limit)
        yield line.removesuffix(b"\n")
