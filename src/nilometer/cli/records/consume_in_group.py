"""``nilometer consume --group``: prints the records of a topic as a member of a consumer group.

Invariant: an offset is committed only once the records before it were written to the output.
"""

from __future__ import annotations

import asyncio
import sys

import click

from nilometer.cli.cluster_options import stop_on_signals
from nilometer.cli.records.record_format import Formatter
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.group.committer import CommitFailed
from nilometer.client.network.topic_lookup import no_such_topic, topic_exists
from nilometer.client.settings.client_settings import GivenConfig
from nilometer.runtime import Runtime

POLL_MS = 60_000
LOOK_MS = 200
RECORDS_PER_POLL = 2_000


async def consume_in_group(
    topic: str, count: int | None, exit_at_end: bool, render: Formatter, config: GivenConfig
) -> None:
    output = sys.stdout.buffer
    left = count
    async with Consumer(Runtime.system(), {**config, "enable.auto.commit": False}) as consumer:
        closing: list[asyncio.Task[None]] = []
        stop_on_signals(lambda: closing.append(asyncio.ensure_future(consumer.close())))
        if not await topic_exists(consumer.client, topic, consumer.config.api_timeout_ms):
            if exit_at_end:
                raise no_such_topic(topic)
            click.echo(f"Topic {topic} does not exist yet: waiting for it.", err=True)
        await consumer.subscribe([topic])
        while left is None or left > 0:
            limit = RECORDS_PER_POLL if left is None else min(left, RECORDS_PER_POLL)
            records = await consumer.poll(limit, timeout_ms=LOOK_MS if exit_at_end else POLL_MS)
            if consumer.closed:
                break
            output.write(b"".join(map(render, records)))
            output.flush()
            if records:
                if left is not None:
                    left -= len(records)
                await _commit(consumer)
            elif exit_at_end and await _is_at_end(consumer):
                await _commit(consumer)
                break
        await asyncio.gather(*closing)


async def _commit(consumer: Consumer) -> None:
    try:
        await consumer.commit()
    except CommitFailed as error:  # another member has the partitions, and will print these records again
        sys.stderr.write(f"Not committed: {error}\n")


async def _is_at_end(consumer: Consumer) -> bool:
    """Whether this member has partitions and has read all of them to their end.

    Without partitions, as during a rebalance, it is not.
    """
    assigned = consumer.assignment()
    if not assigned:
        return False
    ends = await consumer.end_offsets(assigned)
    return all([await consumer.position(one) >= ends[one] for one in assigned])
