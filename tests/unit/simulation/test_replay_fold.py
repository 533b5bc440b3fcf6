"""The state at any event of a recording: by key frames it is the same as by all events from the start."""

from __future__ import annotations

import random

import pytest

from nilometer.simulation.recording import Change, Event, Header, Kind, Recording, Role, Status
from nilometer.simulation.replay import (
    KEY_FRAME_EVENTS,
    Moment,
    Replay,
    ReplicaState,
    apply,
    before,
    behind,
    difference,
    first_state,
)

SEED = 7


def random_events(count: int) -> list[Event]:
    """Return events of every kind that changes the state, drawn from SEED."""
    chance = random.Random(SEED)
    events: list[Event] = []
    flying: list[int] = []
    for number in range(count):
        broker, partition = chance.randrange(1, 4), f"t-{chance.randrange(12)}"
        match chance.randrange(5):
            case 0:
                event = Event(
                    at_us=number, kind=Kind.SENT, text="m", broker=broker, to=broker % 3 + 1, message=number
                )
                flying.append(number)
            case 1 if flying:
                kind = chance.choice((Kind.DELIVERED, Kind.DROPPED))
                message = flying.pop(chance.randrange(len(flying)))
                event = Event(at_us=number, kind=kind, text="m", broker=1, to=2, message=message)
            case 2:
                status = chance.choice(list(Status))
                event = Event(at_us=number, kind=Kind.BROKER, text="b", broker=broker, status=status)
            case 3:
                event = Event(
                    at_us=number, kind=Kind.REMOVED, text="r", broker=broker, partitions=(partition,)
                )
            case _:
                change = Change(log_end_offset=chance.randrange(100), high_watermark=chance.randrange(9))
                event = Event(
                    at_us=number,
                    kind=Kind.APPEND,
                    text="a",
                    broker=broker,
                    partitions=(partition,),
                    change=change,
                )
        events.append(event)
    return events


def test_a_moment_by_key_frames_is_that_of_all_events_before_it() -> None:
    events = random_events(3 * KEY_FRAME_EVENTS + 10)
    replay = Replay(Recording(Header(title="t"), tuple(events), None))
    expected = Moment()
    for index, event in enumerate(events):
        apply(expected, index, event)
        assert replay.after(index) == expected, f"event {index} of seed {SEED}"
    assert expected.replicas
    assert expected.in_flight


def test_a_moment_does_not_change_the_replay() -> None:
    replay = Replay(Recording(Header(title="t"), tuple(random_events(300)), None))
    first = replay.after(10)
    first.replicas.clear()
    first.in_flight[99] = 99
    assert replay.after(10) != first


def test_partitions_are_in_the_order_of_their_numbers_and_know_their_hosts_and_highest_end() -> None:
    def append(partition: str, broker: int, end: int) -> Event:
        change = Change(log_end_offset=end)
        return Event(
            at_us=0, kind=Kind.APPEND, text="", broker=broker, partitions=(partition,), change=change
        )

    events = (append("t-10", 1, 3), append("t-2", 2, 9), append("t-2", 1, 4), append("a", 1, 1))
    replay = Replay(Recording(Header(title="t"), events, None))
    assert replay.partitions == ("a", "t-2", "t-10")
    assert (replay.hosts_of("t-2"), replay.highest_end_of("t-2")) == ((1, 2), 9)
    assert [replay.partition_at(index) for index in range(4)] == ["t-10", "t-2", "t-2", "a"]


def test_a_chosen_partition_has_its_events_and_those_of_the_cluster() -> None:
    def event(kind: Kind, *partitions: str) -> Event:
        return Event(at_us=0, kind=kind, text="", broker=1, to=2, partitions=partitions)

    events = (
        event(Kind.SENT, "t-0", "t-1"),
        event(Kind.SENT),
        event(Kind.FAULT),
        event(Kind.TRUNCATION, "t-1"),
        event(Kind.APPEND, "t-0"),
        event(Kind.FINDING),
    )
    replay = Replay(Recording(Header(title="t"), events, None))
    assert list(replay.shown("t-0")) == [0, 2, 4, 5]
    assert list(replay.shown(None)) == [0, 1, 2, 3, 4, 5]
    assert list(replay.notable_of("t-0")) == [2, 5]
    assert list(replay.notable_of(None)) == [2, 3, 5]


@pytest.mark.parametrize("index", range(-1, 9))
def test_the_nearest_index_before_and_behind(index: int) -> None:
    indexes = (1, 4, 5)
    assert before(indexes, index) == max((one for one in indexes if one < index), default=None)
    assert behind(indexes, index) == min((one for one in indexes if one > index), default=None)


NEW_EPOCHS = ((0, 0), (4, 8))
NEXT_EPOCHS = ((0, 0), (3, 8), (5, 12))
DEPOSED = {"role": Role.FOLLOWER, "leader_epoch": 4, "isr": (), "followers": {}}
LEADER = ReplicaState(
    role=Role.LEADER,
    leader_epoch=3,
    log_end_offset=12,
    high_watermark=10,
    epochs=((0, 0), (3, 8)),
    isr=(1, 2),
    followers={2: 10},
)


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({"log_end_offset": 14}, Kind.APPEND, "appends 2 records, LEO 12 → 14"),
        ({"log_end_offset": 9}, Kind.TRUNCATION, "truncates its log from 12 to 9"),
        ({"log_end_offset": 13, "epochs": NEW_EPOCHS}, Kind.TRUNCATION, "truncates its log from 12 to 8"),
        ({"log_start_offset": 5, "epochs": ((0, 5), (3, 8))}, Kind.LOG_START, "log start 0 → 5"),
        ({"high_watermark": 12, "followers": {2: 12}}, Kind.HIGH_WATERMARK, "HW 10 → 12; knows that 2 ends"),
        ({"followers": {2: 11}}, Kind.FOLLOWER_POSITION, "knows that 2 ends at 11"),
        ({"isr": (1,)}, Kind.ISR, "ISR 1"),
        (DEPOSED, Kind.ROLE, "follows in epoch 4"),
        ({"leader_epoch": 5, "epochs": NEXT_EPOCHS}, Kind.ROLE, "leads in epoch 5"),
    ],
)
def test_a_difference_has_its_kind_its_text_and_only_what_changed(
    changed: dict[str, object], kind: Kind, text: str
) -> None:
    now = ReplicaState(**{**{name: getattr(LEADER, name) for name in LEADER.__struct_fields__}, **changed})
    found = difference("t-0", LEADER, now)
    assert found is not None
    assert (found.kind, found.text.startswith(f"t-0: {text}")) == (kind, True), found.text
    event = Event(at_us=0, kind=found.kind, text="", broker=1, partitions=("t-0",), change=found.change)
    moment = Moment(replicas={("t-0", 1): LEADER})
    apply(moment, 0, event)
    assert moment.replicas["t-0", 1] == now


def test_the_first_state_of_a_replica_needs_no_other() -> None:
    found = first_state("t-0", LEADER)
    event = Event(at_us=0, kind=found.kind, text="", broker=1, partitions=("t-0",), change=found.change)
    moment = Moment(replicas={("t-0", 1): ReplicaState(log_start_offset=3, epochs=((9, 9),))})
    apply(moment, 0, event)
    assert moment.replicas["t-0", 1] == LEADER
    assert difference("t-0", LEADER, LEADER) is None
