"""What ``nilometer produce`` reads: the lines of files and of standard input, or whole files."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from nilometer.cli.records.input_records import BadInput
from nilometer.cli.records.standard_input import input_chunks, input_lines
from nilometer.client.ingest.line_splitter import LINE_BYTES_MAX, LineTooLong

STANDARD_INPUT = "-"
FILE_BYTES_MAX = LINE_BYTES_MAX


class Item(NamedTuple):
    """A line or a whole file."""

    data: bytes
    path: str
    line: int = 0
    """The number of the line; 0 for a whole file."""

    @property
    def place(self) -> str:
        name = "the input" if self.path == STANDARD_INPUT else self.path
        return f"line {self.line} of {name}" if self.line else name


Items = AsyncIterator[list[Item]]


async def lines_of(paths: Sequence[str]) -> Items:
    """Yield the lines of files as they arrive. Raises BadInput for a huge line, OSError."""
    for path in paths:
        number = 0
        with _opened(path) as descriptor:
            try:
                async for lines in input_lines(descriptor):
                    yield [Item(line, path, index) for index, line in enumerate(lines, start=number + 1)]
                    number += len(lines)
            except LineTooLong as error:
                raise BadInput(f"{Item(b'', path, number + 1).place}: {error}") from None


async def whole_files(paths: Sequence[str]) -> Items:
    """Yield the contents of each file. Raises BadInput for a huge file, OSError."""
    for path in paths:
        parts: list[bytes] = []
        size = 0
        with _opened(path) as descriptor:
            async for chunk in input_chunks(descriptor):
                size += len(chunk)
                if size > FILE_BYTES_MAX:
                    raise BadInput(f"{Item(b'', path).place} is larger than {FILE_BYTES_MAX} bytes")
                parts.append(chunk)
        yield [Item(b"".join(parts), path)]


async def no_data() -> Items:
    """Yield one empty item: for a record that is given by options alone."""
    yield [Item(b"", STANDARD_INPUT)]


@contextmanager
def _opened(path: str) -> Generator[int, None, None]:
    if path == STANDARD_INPUT:
        yield sys.stdin.fileno()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
