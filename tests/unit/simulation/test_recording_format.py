"""A recording is written and read back; what is not a recording is refused by line."""

from __future__ import annotations

import pytest

from nilometer.simulation.recording import (
    BadRecording,
    Change,
    End,
    Event,
    Header,
    Kind,
    Recording,
    RecordingWriter,
    Role,
    Status,
    event_line,
    read_recording,
    recording_lines,
)

HEADER = Header(title="t", description="d", names={1: "A"})
FIRST = Event(
    at_us=5,
    kind=Kind.REPLICA,
    text="has t-0",
    broker=1,
    partitions=("t-0",),
    change=Change(role=Role.LEADER, leader_epoch=0, epochs=((0, 0),), isr=(1, 2), followers={2: 3}),
)
SENT = Event(at_us=6, kind=Kind.SENT, text="Fetch", broker=1, to=2, message=1)
DOWN = Event(at_us=7, kind=Kind.BROKER, text="crashes", broker=1, status=Status.DOWN)
EVENTS = (FIRST, SENT, DOWN)


def as_bytes(lines: list[str]) -> list[bytes]:
    return [f"{line}\n".encode() for line in lines]


def test_what_is_written_is_read() -> None:
    recording = Recording(HEADER, EVENTS, End(events=3, is_cut=False))
    assert read_recording(as_bytes(recording_lines(recording))) == recording


def test_an_event_has_only_what_has_changed() -> None:
    event = Event(at_us=1, kind=Kind.APPEND, text="x", broker=1, change=Change(log_end_offset=4))
    assert (
        event_line(event) == '{"at_us":1,"kind":"append","text":"x","broker":1,"change":{"log_end_offset":4}}'
    )


def test_an_interrupted_run_is_read_up_to_its_last_whole_line() -> None:
    lines = as_bytes(recording_lines(Recording(HEADER, EVENTS, None)))
    found = read_recording([*lines[:-1], lines[-1][:20]])
    assert (found.events, found.end) == (EVENTS[:2], None)


def test_the_writer_says_that_its_limit_is_reached_and_keeps_the_last_events() -> None:
    lines: list[str] = []
    writer = RecordingWriter(lines.append, HEADER, events_max=2)
    for event in (*EVENTS, DOWN):
        writer.add(event)
    finding = Event(at_us=9, kind=Kind.FINDING, text="lost")
    writer.end([finding])
    found = read_recording(as_bytes(lines))
    assert found.events[:2] == EVENTS[:2]
    assert [event.kind for event in found.events[2:]] == [Kind.NOTE, Kind.FINDING]
    assert "its limit of 2 events" in found.events[2].text
    assert found.end == End(events=4, is_cut=True)


def test_a_recording_within_the_limit_is_not_cut() -> None:
    lines: list[str] = []
    writer = RecordingWriter(lines.append, HEADER, events_max=3)
    for event in EVENTS:
        writer.add(event)
    writer.end([])
    assert read_recording(as_bytes(lines)) == Recording(HEADER, EVENTS, End(events=3, is_cut=False))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "line 1 is not the header of a recording"),
        (["12.0 network 1 a>b 40"], "line 1 is not the header of a recording"),
        (['{"recording": "other", "version": 1}'], 'line 1: "recording" must be "nilometer"'),
        (['{"recording": "nilometer", "version": 2, "shape": 3}'], "this Nilometer reads version 1"),
        (['{"recording": "nilometer", "version": 1}'], "`title`"),
        (["HEADER", '{"at_us": 1}'], "no event of a recording (Object missing required field `kind`"),
        (
            ["HEADER", '{"at_us": -1, "kind": "note", "text": ""}'],
            "no event of a recording (Expected `int` >= 0",
        ),
        (
            ["HEADER", '{"at_us": 1, "kind": "party", "text": ""}'],
            "no event of a recording (Invalid enum value 'party'",
        ),
        (
            ["HEADER", '{"at_us": 1, "kind": "append", "text": "", "change": {"log_end_offset": -1}}'],
            "line 2 is no event of a recording (Expected `int` >= 0 - at `$.change.log_end_offset`",
        ),
        (["HEADER", "\ud800"], "line 2"),
        (["HEADER", "[" * 100_000], "line 2"),
        (["HEADER", '{"end": {"events": 5, "is_cut": false}}'], "line 2: there are 0 events, not 5"),
    ],
)
def test_what_is_not_a_recording_is_refused_by_line(lines: list[str], error: str) -> None:
    header = recording_lines(Recording(HEADER, (), None))[0]
    data = [f"{line}\n".encode("utf-8", "surrogatepass") for line in lines]
    with pytest.raises(BadRecording) as found:
        read_recording([one.replace(b"HEADER", header.encode()) for one in data])
    assert error in str(found.value)
