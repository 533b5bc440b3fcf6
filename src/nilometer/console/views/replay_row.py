"""One event of a recording as a row: its text, and a drawing with a column for each broker. Pure.

A message is an arrow from the sender's column to the receiver's: dashed when it is sent, ended by a cross if
it is dropped. Any other event of a broker is a dot in its column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nilometer.simulation.recording.format import MESSAGE_KINDS, Event, Kind

COLUMN = 24
"""The width of a column."""
ARROW = 5


@dataclass(frozen=True, slots=True)
class Columns:
    """x coordinates, in pixels."""

    width: int
    lines: tuple[float, ...]
    dot: float | None
    source: float | None
    target: float | None
    head: float | None
    """Where the head of the arrow begins, before ``target``."""


@dataclass(frozen=True, slots=True)
class EventRow:
    index: int
    at_us: int
    kind: str
    who: str
    """The broker of the event, or sender and receiver of a message."""
    text: str
    partitions: tuple[str, ...]
    is_current: bool
    columns: Columns


def event_row(
    index: int, event: Event, brokers: Sequence[int], name: Callable[[int], str], *, is_current: bool
) -> EventRow:
    """``brokers``: all of the recording, one column for each; ``name`` returns a broker's name."""
    who = "" if event.broker is None else name(event.broker)
    if event.to is not None:
        who = f"{who} → {name(event.to)}"
    return EventRow(
        index,
        event.at_us,
        str(event.kind),
        who,
        event.text,
        event.partitions,
        is_current,
        _columns(event, brokers),
    )


def _columns(event: Event, brokers: Sequence[int]) -> Columns:
    lines = tuple(COLUMN * (place + 0.5) for place in range(len(brokers)))
    width = COLUMN * len(brokers)
    x = dict(zip(brokers, lines, strict=True))
    source = x.get(event.broker) if event.broker is not None else None
    target = x.get(event.to) if event.to is not None else None
    if event.kind not in MESSAGE_KINDS or source is None or target is None or source == target:
        return Columns(width, lines, source, None, None, None)
    if event.kind is Kind.DROPPED:
        target = (source + target) / 2
    head = target - ARROW if target > source else target + ARROW
    return Columns(width, lines, None, source, target, head)
