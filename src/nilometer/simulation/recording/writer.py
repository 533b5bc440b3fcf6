"""Writing a recording while a run takes place: the header, events up to a limit, and the last line."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nilometer.simulation.recording.format import (
    EVENTS_MAX,
    End,
    Event,
    Header,
    Kind,
    end_line,
    event_line,
    header_line,
)


class RecordingWriter:
    """Invariants: nothing is written after :meth:`end`; after ``events_max`` events only what :meth:`end`
    gets."""

    def __init__(self, sink: Callable[[str], object], header: Header, events_max: int = EVENTS_MAX) -> None:
        """``sink`` gets each line, without its line end."""
        self._sink = sink
        self._events_max = events_max
        self.events = 0
        self.is_cut = False
        """Whether an event was left out because of the limit."""
        sink(header_line(header))

    def add(self, event: Event) -> None:
        """Add an event, unless the limit is reached."""
        if self.is_cut:
            return
        if self.events >= self._events_max:
            self.is_cut = True
            limit = f"its limit of {self._events_max:,} events"
            text = f"The recording stops here, at {limit}. The run continued."
            event = Event(at_us=event.at_us, kind=Kind.NOTE, text=text)
        self._write(event)

    def end(self, last: Iterable[Event]) -> None:
        """Add the ``last`` events, also beyond the limit, and the last line."""
        for event in last:
            self._write(event)
        self._sink(end_line(End(events=self.events, is_cut=self.is_cut)))

    def _write(self, event: Event) -> None:
        self.events += 1
        self._sink(event_line(event))
