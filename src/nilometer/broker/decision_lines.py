"""Log lines about decisions that an operator would ask about: exactly one for each, with its cause.

A line is a sentence with its cause behind "because"; JSON logs also have its ``event`` and ``fields``. Many
decisions at once (a broker fails that leads 10,000 partitions) are summarised, so that writing lines does not
block the event loop: beyond ``LINES_MAX`` there is one line for each event and cause, with the number of
partitions by topic, and the single lines are written at DEBUG only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

LINES_MAX = 100
"""How many lines of one call are written singly."""
TOPICS_SHOWN = 10


class PartitionDecision(NamedTuple):
    """A decision about one partition; its sentence is made only if it is written."""

    event: str
    """A word for programs, as ``leader-elected``."""
    topic: str
    partition: int
    summary: str
    """What happened, as said of several partitions: "leaders elected"."""
    cause: str
    sentence: Callable[[], str]
    """Makes the sentence, without its cause."""
    fields: Mapping[str, object]
    level: int = logging.INFO


def log_decision(
    logger: logging.Logger,
    event: str,
    sentence: str,
    cause: str,
    fields: Mapping[str, object] | None = None,
    level: int = logging.INFO,
) -> None:
    """Write one line: ``sentence``, and why."""
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "%s, because %s",
            sentence,
            cause,
            extra={"event": event, "fields": {**(fields or {}), "cause": cause}},
        )


def log_partition_decisions(logger: logging.Logger, decisions: Sequence[PartitionDecision]) -> None:
    """Write one line for each of ``decisions``, or summaries if there are more than ``LINES_MAX``."""
    shown = [one for one in decisions if one.level >= logging.INFO]
    if len(shown) > LINES_MAX:
        _log_summaries(logger, shown)
        if not logger.isEnabledFor(logging.DEBUG):
            return
        decisions = [one._replace(level=logging.DEBUG) for one in decisions]
    for one in decisions:
        if logger.isEnabledFor(one.level):
            fields = {"topic": one.topic, "partition": one.partition, **one.fields}
            log_decision(logger, one.event, one.sentence(), one.cause, fields, one.level)


def _log_summaries(logger: logging.Logger, decisions: Sequence[PartitionDecision]) -> None:
    topics: dict[tuple[str, str, str, int], dict[str, int]] = {}
    for one in decisions:
        counts = topics.setdefault((one.event, one.summary, one.cause, one.level), {})
        counts[one.topic] = counts.get(one.topic, 0) + 1
    for (event, summary, cause, level), counts in topics.items():
        named = [f"{topic} ({count})" for topic, count in list(counts.items())[:TOPICS_SHOWN]]
        more = f" and {len(counts) - TOPICS_SHOWN} more topics" if len(counts) > TOPICS_SHOWN else ""
        total = sum(counts.values())
        sentence = f"{total} {summary}: {', '.join(named)}{more}; each is logged at DEBUG"
        log_decision(logger, event, sentence, cause, {"partitions": total, "topics": dict(counts)}, level)
