"""Reading the part of a fetch that is in remote storage, while what is here has been read already."""

from __future__ import annotations

import asyncio

from nilometer.broker.replicas.fetch_reader import FetchReader
from nilometer.broker.replicas.remote_reading import RemoteReads
from nilometer.wire.errors import KafkaError


async def take_remote(reads: RemoteReads, reader: FetchReader) -> None:
    """Add to what ``reader`` has read what it has to read from remote storage.

    What does not come in time is left out: the client asks for it again.
    """
    begun = [
        (
            outcome,
            remote.partition,
            reads.read(
                remote.partition,
                remote.offset,
                remote.max_bytes,
                read_committed=reader.identity.read_committed,
            ),
        )
        for outcome, remote in reader.take_remote_reads()
    ]
    if not begun:
        return
    await asyncio.wait({task for _, _, task in begun}, timeout=reads.fetch_wait_ms / 1000)
    for outcome, partition, task in begun:
        if not task.done() or task.cancelled():  # as when the broker stops
            reader.pass_over(outcome)
        elif isinstance(error := task.exception(), KafkaError):
            reader.fail(outcome, error)
        else:
            reader.take_remote(partition, outcome, *task.result())
