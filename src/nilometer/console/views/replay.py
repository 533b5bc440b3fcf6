"""The page of a recording at one of its events: replicas, messages, and the events around it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from nilometer.console.views.partition import CELLS_MAX, IN_SYNC, OUT_OF_SYNC, Figure, ReplicaOffsets, figures
from nilometer.simulation.recording import MESSAGE_KINDS, Event, Header, Kind, Role, Status
from nilometer.simulation.replay import Moment, Replay, ReplicaState, before, behind

# One event of a recording as a row: its text, and a drawing with a column for each broker. Pure.
#
# A message is an arrow from the sender's column to the receiver's: dashed when it is sent, ended by a cross
# if it is dropped. Any other event of a broker is a dot in its column.

COLUMN = 24
"""The width of a column."""
ARROW = 5


class Columns(msgspec.Struct, frozen=True):
    """x coordinates, in pixels."""

    width: int
    lines: tuple[float, ...]
    dot: float | None
    source: float | None
    target: float | None
    head: float | None
    """Where the head of the arrow begins, before ``target``."""


class EventRow(msgspec.Struct, frozen=True):
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


ROWS_BEFORE, ROWS_BEHIND = 9, 7
"""How many events are listed before the current one, and behind it."""
IN_FLIGHT_SHOWN = 8
FINDINGS_SHOWN = 10
MARKS_MAX = 400
"""The overview of a recording has at most so many marks."""
MARKED = {Kind.FAULT: "fault", Kind.BROKER: "fault", Kind.TRUNCATION: "cut", Kind.FINDING: "finding"}
NOT_HOSTED = "no replica"


class ReplayReplica(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: int
    name: str
    role: str
    """``leader``, ``follower``, ``none``, ``no replica``; or why its broker does not act: ``paused`` …"""
    membership: str
    """``ISR`` or ``OSR`` as the leader knows it; empty without a leader."""
    is_reachable: bool
    is_waited_for: bool
    """Whether the leader's high watermark waits for it."""
    has_changed: bool
    """Whether the current event changed it."""
    leader_epoch: int | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    """Not recorded."""
    remote_log_end_offset: int | None = None
    """Its log end offset as the leader knows it; None for the leader."""
    epoch_chain: tuple[tuple[int, int], ...] = ()


class Mark(msgspec.Struct, frozen=True):
    """A fault, a truncation or a finding in the overview of the whole recording."""

    x: float
    """0 to 100."""
    tone: str


class Steps(msgspec.Struct, frozen=True):
    """The indexes of the events to which one may go; None: there is none."""

    previous: int | None
    next: int | None
    previous_notable: int | None
    next_notable: int | None


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows of one moment: after the event ``index``."""

    index: int
    events: int
    at_us: int
    row: EventRow
    partition: str | None
    """The partition that is shown."""
    chosen: str | None
    """The partition that was chosen; None: that of the event is shown."""
    replicas: tuple[ReplayReplica, ...]
    figures: tuple[Figure, ...]
    epochs: tuple[int, ...]
    """The leader epochs in the figures, in the order of their colours."""
    in_flight: tuple[EventRow, ...]
    in_flight_count: int
    rows: tuple[EventRow, ...]
    steps: Steps


class ReplayPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows of the whole recording."""

    name: str
    title: str
    description: str
    note: str | None
    """What is missing from the recording."""
    partitions: tuple[str, ...]
    brokers: tuple[str, ...]
    events: int
    length_us: int
    findings: tuple[str, ...]
    marks: tuple[Mark, ...]
    moment: ReplayView | None
    """None: the recording has no event."""


def replay_page(name: str, replay: Replay, moment: ReplayView | None) -> ReplayPage:
    recording = replay.recording
    header, end = recording.header, recording.end
    return ReplayPage(
        name=name,
        title=header.title,
        description=header.description,
        note=_note(is_complete=end is not None, is_cut=end is not None and end.is_cut),
        partitions=replay.partitions,
        brokers=tuple(broker_name(header, broker) for broker in replay.brokers),
        events=len(replay.events),
        length_us=replay.events[-1].at_us if replay.events else 0,
        findings=replay.findings[:FINDINGS_SHOWN],
        marks=_marks(replay),
        moment=moment,
    )


def replay_view(replay: Replay, index: int, chosen: str | None) -> ReplayView:
    """Return the moment after event ``index``, which is moved into the recording if it is outside.

    ``chosen``: show this partition, and only the events that concern it. There must be an event.
    """
    index = min(max(0, index), len(replay.events) - 1)
    event, moment = replay.events[index], replay.after(index)
    partition = chosen if chosen is not None else replay.partition_at(index)
    replicas = _replicas(replay, moment, partition, event) if partition is not None else ()
    end = replay.highest_end_of(partition) if partition is not None else 0
    offsets = [_offsets(one) for one in replicas]
    shown, notable = replay.shown(chosen), replay.notable_of(chosen)
    flying = sorted(moment.in_flight.values())
    return ReplayView(
        index=index,
        events=len(replay.events),
        at_us=event.at_us,
        row=_row(replay, index, index),
        partition=partition,
        chosen=chosen,
        replicas=replicas,
        figures=figures(offsets, end if end <= CELLS_MAX else 0),
        epochs=tuple(sorted({epoch for one in replicas for epoch, _ in one.epoch_chain})),
        in_flight=tuple(_row(replay, one, index) for one in flying[:IN_FLIGHT_SHOWN]),
        in_flight_count=len(flying),
        rows=tuple(_row(replay, one, index) for one in _around(shown, index)),
        steps=Steps(
            before(shown, index), behind(shown, index), before(notable, index), behind(notable, index)
        ),
    )


def broker_name(header: Header, broker: int) -> str:
    return header.names.get(broker, f"broker {broker}")


def _note(*, is_complete: bool, is_cut: bool) -> str | None:
    if not is_complete:
        return "The recording has no last line: the run was interrupted, or is not over."
    if is_cut:
        return "The recording stops at its limit of events, before the run ended."
    return None


def _marks(replay: Replay) -> tuple[Mark, ...]:
    last = max(1, len(replay.events) - 1)
    marks = {
        (round(index * MARKS_MAX / last), tone): Mark(round(100 * index / last, 2), tone)
        for index in replay.notable
        if (tone := MARKED.get(replay.events[index].kind)) is not None
    }
    return tuple(marks.values())


def _around(shown: Sequence[int], index: int) -> list[int]:
    """Return the indexes of the events to list: some before ``index``, it, and some behind it."""
    rows: list[int] = []
    at: int | None = index
    for _ in range(ROWS_BEFORE):
        at = before(shown, at)
        if at is None:
            break
        rows.insert(0, at)
    rows.append(index)
    at = index
    for _ in range(ROWS_BEHIND):
        at = behind(shown, at)
        if at is None:
            break
        rows.append(at)
    return rows


def _row(replay: Replay, index: int, current: int) -> EventRow:
    header = replay.recording.header
    return event_row(
        index,
        replay.events[index],
        replay.brokers,
        lambda broker: broker_name(header, broker),
        is_current=index == current,
    )


# ── replicas ──────────────────────────────────────────────────────────────────────────────────
def _replicas(replay: Replay, moment: Moment, partition: str, event: Event) -> tuple[ReplayReplica, ...]:
    header, (leader_id, leader) = replay.recording.header, _leader(moment, partition)
    found: list[ReplayReplica] = []
    for broker in replay.hosts_of(partition):
        state = moment.replicas.get((partition, broker))
        status = moment.statuses.get(broker, Status.RUNNING)
        has_changed = event.broker == broker and (event.change is not None or event.status is not None)
        remote = None if leader is None else leader.followers.get(broker)
        found.append(
            ReplayReplica(
                broker_id=broker,
                name=broker_name(header, broker),
                role=_role(state, status),
                membership="" if leader is None else IN_SYNC if broker in leader.isr else OUT_OF_SYNC,
                is_reachable=state is not None and status is not Status.DOWN,
                is_waited_for=broker != leader_id and _is_waited_for(leader, remote, broker),
                has_changed=has_changed,
                leader_epoch=None if state is None or state.leader_epoch < 0 else state.leader_epoch,
                log_start_offset=None if state is None else state.log_start_offset,
                log_end_offset=None if state is None else state.log_end_offset,
                high_watermark=None if state is None else state.high_watermark,
                remote_log_end_offset=remote,
                epoch_chain=() if state is None else state.epochs,
            )
        )
    return tuple(found)


def _role(state: ReplicaState | None, status: Status) -> str:
    if state is None:
        return NOT_HOSTED
    return str(state.role) if status is Status.RUNNING else str(status)


def _leader(moment: Moment, partition: str) -> tuple[int | None, ReplicaState | None]:
    """Return the leader of the highest epoch whose broker is not down."""
    leaders = [
        (state.leader_epoch, broker, state)
        for (of, broker), state in moment.replicas.items()
        if of == partition and state.role is Role.LEADER and moment.statuses.get(broker) is not Status.DOWN
    ]
    if not leaders:
        return None, None
    _, broker, state = max(leaders, key=lambda one: one[:2])
    return broker, state


def _is_waited_for(leader: ReplicaState | None, remote: int | None, follower: int) -> bool:
    """Whether it is in the ISR, and the leader does not know that it has the record at the high watermark."""
    if leader is None or follower not in leader.isr:
        return False
    return leader.high_watermark < leader.log_end_offset and (remote or 0) <= leader.high_watermark


def _offsets(one: ReplayReplica) -> ReplicaOffsets:
    return ReplicaOffsets(
        broker_id=one.broker_id,
        log_start_offset=one.log_start_offset,
        log_end_offset=one.log_end_offset,
        high_watermark=one.high_watermark,
        last_stable_offset=None,
        remote_end_offset=one.remote_log_end_offset,
        epoch_chain=one.epoch_chain,
    )
