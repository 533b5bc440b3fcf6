"""Reading the part of a fetch that is in remote storage, while what is here has been read already."""

from __future__ import annotations

import asyncio

from nilometer.broker.connection import Origin
from nilometer.broker.replicas.fetch_reader import FetchOutcome, FetchReader, RemoteRead
from nilometer.broker.replicas.remote_reading import RemoteReads, RemoteRecords
from nilometer.wire.errors import KafkaError


async def take_remote(reads: RemoteReads, origin: Origin, reader: FetchReader) -> None:
    """Add to what ``reader`` has read for a request of ``origin`` what it has to read from remote storage.

    What does not come in time is left out: the client asks for it again.
    """
    begun: list[tuple[FetchOutcome, RemoteRead, asyncio.Task[RemoteRecords]]] = []
    wanted = reader.take_remote_reads()
    for outcome, remote in wanted:
        task = reads.read(
            origin,
            remote.partition,
            remote.offset,
            remote.max_bytes,
            read_committed=reader.identity.read_committed,
        )
        if task is None:
            reader.pass_over(outcome)
        else:
            begun.append((outcome, remote, task))
    if begun:
        await asyncio.wait({task for _, _, task in begun}, timeout=reads.fetch_wait_ms / 1000)
    elif wanted and not reader.bytes_read:
        await reads.wait_for_any()  # or the client would ask again at once
    for outcome, remote, task in begun:
        if not task.done() or task.cancelled():  # as when the broker stops
            reader.pass_over(outcome)
        elif isinstance(error := task.exception(), KafkaError):
            reader.fail(outcome, error)
        elif isinstance(error, OSError):  # of the disk: the aborted transactions that end here
            reader.fail(outcome, remote.partition.on_read_error(error))
        else:
            reader.take_remote(outcome, remote, *task.result())
