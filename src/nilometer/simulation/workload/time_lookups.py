"""Look-ups of offsets by time by a consumer: the result must be consistent with the records that it has read.

A record that was read remains unless records are deleted. So the first record that is not older than one that
was read must not be after it.
"""

from __future__ import annotations

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Entropy

KNOWN_MAX = 64


class TimeLookups:
    """Checks look-ups by time, with the timestamps of a few records of each partition."""

    def __init__(self, *, deleted: bool) -> None:
        """``deleted``: whether records of the partitions may be deleted."""
        self._deleted = deleted
        self._known: dict[TopicPartition, dict[int, int]] = {}
        self.done = 0

    def note(self, record: ConsumerRecord, entropy: Entropy) -> None:
        known = self._known.setdefault(TopicPartition(record.topic, record.partition), {})
        if len(known) >= KNOWN_MAX:
            del known[list(known)[entropy.below(KNOWN_MAX)]]
        known[record.offset] = record.timestamp

    async def look(self, consumer: Consumer, entropy: Entropy) -> str | None:
        """Look up the timestamp of a record that was read; return the error in the result, None if correct.

        Raises KafkaError.
        """
        if not self._known:
            return None
        partition = entropy.choice(sorted(self._known))
        known = self._known[partition]
        offset = entropy.choice(sorted(known))
        wanted = known[offset]
        found = (await consumer.offsets_for_times({partition: wanted}))[partition]
        self.done += 1
        where = f"look-up by time: {partition} has a record of {wanted} ms at {offset}"
        if found is None:
            return None if self._deleted else f"{where}, and none was found"
        if found.timestamp < wanted:
            return f"{where}, and one of {found.timestamp} ms was found"
        if self._deleted:
            return None
        first = min(at for at, timestamp in known.items() if timestamp >= wanted)
        if found.offset > first:
            return f"{where}, one as recent at {first}, and {found.offset} was found"
        return None
