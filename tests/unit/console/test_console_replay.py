"""The replay pages: what they show of each moment, which steps they offer, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nilometer.console.reading.cluster_access import Feeds
from nilometer.console.reading.recordings import Recordings
from nilometer.console.views.replay import ReplayView, replay_view
from nilometer.console.web.application import application
from nilometer.console.web.guard import allowed_hosts
from nilometer.runtime.runtime import SystemClock
from nilometer.simulation.recording import (
    BadRecording,
    Change,
    End,
    Event,
    Header,
    Kind,
    Recording,
    Role,
    Status,
    recording_lines,
)
from nilometer.simulation.replay import Replay
from support.console.asgi_client import Answer, ask
from support.console.page_elements import Elements

OLD_RULE = "data-loss-truncate-to-high-watermark"
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
JSON = ("accept", "application/json")


def get(target: str, recordings: Recordings | None = None, **more: Any) -> Answer:
    feeds = Feeds(SystemClock(), interval_s=60, linger_s=0)
    hosts = allowed_hosts("127.0.0.1", 8080)
    unused: Any = None
    app = application(unused, unused, feeds, unused, hosts, recordings=recordings or Recordings())
    return ask(app, target, **more)


def replica(broker: int, *, end: int = 0, high_watermark: int = 0, leads: bool = False, **more: Any) -> Event:
    """A replica of t-0 in leader epoch 2."""
    change = Change(
        role=Role.LEADER if leads else Role.FOLLOWER,
        leader_epoch=2,
        log_start_offset=0,
        log_end_offset=end,
        high_watermark=high_watermark,
        epochs=((2, 0),),
        **more,
    )
    return event(Kind.REPLICA, broker, change)


def event(kind: Kind, broker: int | None = None, change: Change | None = None, **more: Any) -> Event:
    partitions = more.pop("partitions", () if change is None else ("t-0",))
    return Event(
        at_us=more.pop("at_us", 0),
        kind=kind,
        text=more.pop("text", kind.value),
        broker=broker,
        change=change,
        partitions=partitions,
        **more,
    )


def moment(*events: Event, at: int = -1, chosen: str | None = None) -> ReplayView:
    replay = Replay(Recording(Header(title="t"), events, End(events=len(events), is_cut=False)))
    return replay_view(replay, at if at >= 0 else len(events) - 1, chosen)


def test_the_replicas_are_as_the_events_before_left_them() -> None:
    leader = replica(1, end=5, high_watermark=3, leads=True, isr=(1, 2), followers={2: 3, 3: 1})
    shown = moment(leader, replica(2, end=4, high_watermark=3), replica(3, end=1))
    one, two, three = shown.replicas
    assert (one.role, one.log_end_offset, one.high_watermark, one.remote_log_end_offset) == (
        "leader",
        5,
        3,
        None,
    )
    assert (two.membership, two.remote_log_end_offset, two.is_waited_for) == ("ISR", 3, True)
    assert (three.membership, three.remote_log_end_offset, three.is_waited_for) == ("OSR", 1, False)
    assert [each.has_changed for each in shown.replicas] == [False, False, True]
    assert [track.broker_id for track in shown.figures[0].tracks] == [1, 2, 3]


def test_a_replica_whose_broker_is_down_stays_with_its_last_log() -> None:
    leader = replica(1, end=5, leads=True, isr=(1, 2), followers={2: 5})
    down = event(Kind.BROKER, 1, status=Status.DOWN)
    one, two = moment(leader, replica(2, end=5), down).replicas
    assert (one.role, one.is_reachable, one.log_end_offset) == ("down", False, 5)
    assert (two.role, two.membership) == ("follower", ""), "no broker leads"


def test_a_replica_that_is_not_there_yet_or_no_more_has_a_row_without_a_log() -> None:
    removed = event(Kind.REMOVED, 2, partitions=("t-0",))
    events = (replica(1, end=3, leads=True), replica(2, end=3), removed)
    for at in (0, 2):
        _, two = moment(*events, at=at).replicas
        assert (two.role, two.is_reachable, two.log_end_offset) == ("no replica", False, None)


def test_a_short_log_has_the_same_axis_in_the_whole_recording() -> None:
    grown = event(Kind.APPEND, 1, Change(log_end_offset=9))
    cut = event(Kind.TRUNCATION, 1, Change(log_end_offset=2))
    events = (replica(1, end=1), grown, cut)
    assert [moment(*events, at=at).figures[0].high for at in range(3)] == [9, 9, 9]


def test_messages_in_flight_are_those_that_were_sent_and_have_not_arrived() -> None:
    sent = [event(Kind.SENT, 1, to=2, message=number, text=f"m{number}") for number in range(3)]
    arrived = event(Kind.DELIVERED, 1, to=2, message=1)
    dropped = event(Kind.DROPPED, 1, to=2, message=0)
    shown = moment(*sent, arrived, dropped)
    assert [row.text for row in shown.in_flight] == ["m2"]
    assert shown.in_flight[0].who == "broker 1 → broker 2"


def test_steps_go_to_the_neighbours_and_to_the_next_event_of_note() -> None:
    events = [event(Kind.APPEND, 1, Change(log_end_offset=number)) for number in range(30)]
    events[4] = event(Kind.FAULT)
    events[20] = event(Kind.TRUNCATION, 1, Change(log_end_offset=1))
    steps = moment(*events, at=10).steps
    assert (steps.previous, steps.next, steps.previous_notable, steps.next_notable) == (9, 11, 4, 20)
    first = moment(*events, at=0).steps
    assert (first.previous, first.previous_notable) == (None, None)
    assert [row.index for row in moment(*events, at=10).rows] == list(range(1, 18))
    assert [row.is_current for row in moment(*events, at=10).rows].index(True) == 9


def test_a_chosen_partition_leaves_out_the_events_of_others() -> None:
    other = [event(Kind.APPEND, 1, Change(log_end_offset=1), partitions=("t-1",)) for _ in range(3)]
    events = (replica(1), *other, event(Kind.FAULT), event(Kind.APPEND, 1, Change(log_end_offset=4)))
    shown = moment(*events, at=0, chosen="t-0")
    assert [row.index for row in shown.rows] == [0, 4, 5]
    assert (shown.steps.next, shown.partition) == (4, "t-0")
    assert moment(*events, at=2).partition == "t-1", "without a choice, that of the event"


def test_the_scenario_of_kip_101_truncates_and_loses_the_record_only_by_the_old_rule() -> None:
    old = get(f"/replay/{OLD_RULE}", headers=[JSON]).document
    assert old["findings"] == ["m2 was acknowledged, and the leader A does not have it."]
    last = get(f"/replay/{OLD_RULE}?at={old['events'] - 1}", headers=[JSON]).document["moment"]
    assert [each["log_end_offset"] for each in last["replicas"]] == [1, 1]
    new = get("/replay/data-loss", headers=[JSON]).document
    assert new["findings"] == []
    last = get(f"/replay/data-loss?at={new['events'] - 1}", headers=[JSON]).document["moment"]
    assert [each["log_end_offset"] for each in last["replicas"]] == [2, 2]


def test_each_shipped_scenario_has_its_page_and_is_in_the_list() -> None:
    listed = get("/replay", headers=[JSON]).document
    names = [one["name"] for one in listed]
    assert {
        OLD_RULE,
        "data-loss",
        "two-replica-sync",
        "three-replica-high-watermark",
        "slow-follower",
    } <= set(names)
    assert [one["name"] for one in listed if one["findings"]] == [OLD_RULE]
    page = get("/replay").text
    for name in names:
        assert f'href="/replay/{name}"' in page
        assert get(f"/replay/{name}").status == 200


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/replay/nosuch", 404, "Not found"),
        ("/replay/nosuch/moment", 404, "no such recording"),
        ("/replay/..%2F..%2Fetc%2Fpasswd", 404, "Not found"),
        ("/replay/data-loss?at=x", 400, "The event must be a whole number"),
        ("/replay/data-loss/moment?at=-1", 400, "The event must be a whole number"),
        ("/replay/data-loss/moment?at=0&partition=t-9", 400, "has no such partition"),
    ],
)
def test_what_it_does_not_have_is_said(target: str, status: int, text: str) -> None:
    answer = get(target)
    assert (answer.status, text in answer.text) == (status, True), answer.text


def test_an_event_behind_the_end_is_the_last_one() -> None:
    found = get("/replay/two-replica-sync?at=999999999", headers=[JSON]).document
    assert found["moment"]["index"] == found["events"] - 1


def write(folder: Path, *events: Event, end: End | None = None, header: Header | None = None) -> Path:
    path = folder / "run.jsonl"
    lines = recording_lines(Recording(header or Header(title="mine"), events, end))
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_what_a_file_holds_never_becomes_markup(tmp_path: Path) -> None:
    header = Header(title=HOSTILE, description=HOSTILE, names={1: HOSTILE})
    change = Change(log_end_offset=3, epochs=((0, 0),))
    hostile = event(Kind.APPEND, 1, change, text=HOSTILE, partitions=(HOSTILE,))
    flying = event(Kind.SENT, 1, to=2, message=1, text=HOSTILE, partitions=(HOSTILE, "t-1"))
    finding = event(Kind.FINDING, text=HOSTILE)
    recordings = Recordings([write(tmp_path, hostile, flying, finding, header=header)])
    for target in ("/replay", "/replay/file-1", "/replay/file-1?at=2", "/replay/file-1/moment?at=1"):
        answer = get(target, recordings)
        found = Elements(answer.text)
        assert answer.status == 200
        assert set(found.scripts) <= {"/static/console.js", "/static/replay.js"}
        assert "img" not in found.tags
        assert not any(name.startswith("on") for name in found.attributes)
        assert "&lt;script&gt;" in answer.text


def test_a_recording_that_is_cut_or_interrupted_says_so(tmp_path: Path) -> None:
    assert "the run was interrupted" in get("/replay/file-1", Recordings([write(tmp_path, replica(1))])).text
    cut = write(tmp_path, replica(1), end=End(events=1, is_cut=True))
    assert "stops at its limit of events" in get("/replay/file-1", Recordings([cut])).text
    empty = write(tmp_path, end=End(events=0, is_cut=False))
    assert "The recording has no events." in get("/replay/file-1", Recordings([empty])).text


def test_a_file_that_is_no_recording_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0.000000 broker-1 starts\n")
    with pytest.raises(BadRecording, match=r"trace\.txt cannot be replayed: line 1 is not the header"):
        Recordings([path])
