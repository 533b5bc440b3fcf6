"""Reads lines from a file, a pipe or a terminal without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator

from nilometer.client.ingest.line_splitter import LineSplitter, whole_lines

CHUNK_BYTES = 256 * 1024


async def input_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of lines as they arrive; the last line may lack its newline.

    Raises LineTooLong, OSError.
    """
    splitter = LineSplitter(is_exact=True)
    async for chunk in input_chunks(descriptor):
        if lines := whole_lines(splitter.feed(chunk)):
            yield lines
    last = splitter.finish()
    if last is not None:
        yield whole_lines([last])


async def input_chunks(descriptor: int) -> AsyncIterator[bytes]:
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        while chunk := os.read(descriptor, CHUNK_BYTES):  # reading a regular file does not wait
            yield chunk
        return
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(descriptor), "rb", buffering=0)
    )
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()
        os.set_blocking(descriptor, True)  # shared with the parent process
