"""Retries of a record whose processing fails, and the dead letter that it becomes when every attempt failed.

A dead letter is the record as it was, key, value and headers, in the topic ``<topic>.dlq``, with headers that
say where it was and why it failed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nilometer.client.consumer.fetch_exchange import ConsumerRecord

SUFFIX = ".dlq"
PAUSE_MS_MAX = 60_000
REASON_CHARACTERS_MAX = 1_000

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    attempts: int
    """How often a record is processed at most."""
    pause_ms: int
    """The pause after the first failure; each further one is twice as long, up to a minute."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.pause_ms < 0:
            raise ValueError("there is at least one attempt, and pauses are not negative")

    def pauses_ms(self) -> Iterator[int]:
        """Return the pauses between the attempts."""
        return (min(self.pause_ms << n, PAUSE_MS_MAX) for n in range(self.attempts - 1))


def dead_letter_headers(
    record: ConsumerRecord, group: str | None, attempts: int, error: Exception
) -> list[Header]:
    """Return the headers of the record, and after them what became of it."""
    about = {
        "dlq.topic": record.topic,
        "dlq.partition": str(record.partition),
        "dlq.offset": str(record.offset),
        "dlq.timestamp": str(record.timestamp),
        "dlq.group": group or "",
        "dlq.attempts": str(attempts),
        "dlq.error": type(error).__qualname__,
        "dlq.reason": str(error)[:REASON_CHARACTERS_MAX],
    }
    return [*record.headers, *((name, text.encode()) for name, text in about.items())]
