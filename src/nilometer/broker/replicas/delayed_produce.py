"""Produce requests that wait: for the high watermark (acks=all) or for a group commit.

The response to a request with acks=all is sent when, for each of its partitions, one of these holds:

- A. the append failed: the outcome is its error;
- B. the high watermark has reached the end of the appended records; it is held while there are fewer in-sync
  replicas than ``min.insync.replicas``;
- C. this broker no longer leads: NOT_LEADER_OR_FOLLOWER, and whether the records remain is unknown to the
  producer;

and REQUEST_TIMED_OUT for partitions where none holds when its timeout expires. Partitions release their waits
in offset order; nothing here is polled.
"""

from __future__ import annotations

from nilometer.broker.replicas.delayed_request import DelayedRequest, PartitionWait
from nilometer.wire.errors import ErrorCode
from nilometer.wire.produce import ProducedPartition


class ProduceOutcome(ProducedPartition):
    """The outcome for one partition, as it will be in the response."""

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        """Set ``error``, and remove the offsets: it is not certain that the records were committed."""
        self.error, self.message = error, message
        self.base_offset = self.log_append_time_ms = self.log_start_offset = -1


ProduceWait = PartitionWait
DelayedProduce = DelayedRequest
