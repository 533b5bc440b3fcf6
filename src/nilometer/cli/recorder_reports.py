"""What `nilometer recorder replay` has found, as lines and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from nilometer.cli.cluster_options import print_json
from nilometer.client.admin.replica_survey import ReplicaRow
from nilometer.console.views.hold import Hold, why_held
from nilometer.recorder.tape import END
from nilometer.simulation.recorded_cluster import Change, Moment, RecordedCluster, RecordingFile
from nilometer.simulation.recorded_copies import PAYLOADS
from nilometer.simulation.recorded_produces import Produce
from nilometer.wire.own_apis import ReplicaState


def time_text(at_ms: int) -> str:
    """Return a wall time in UTC, with milliseconds; one that no calendar has as it is."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms after 1970"


def unsaid_end(file: RecordingFile) -> str:
    """Say what the end of a recording means that does not say so itself."""
    if file.is_being_written:
        return "it is being written"
    return "it breaks off: the process was killed"


def report(cluster: RecordedCluster, found: Moment | None) -> None:
    """Say how far each start was replayed, and where it has stopped."""
    for broker in cluster.starts:
        tape = broker.replay.tape
        if not broker.has_begun:
            if tape.head is None or tape.head.kind == END:
                click.echo(f"Broker {broker.id}: {time_text(broker.header.started_ms)}: nothing is recorded.")
            continue
        ended = broker.replay.ended
        end = (
            "the recording goes on"
            if tape.head is not None and ended is None
            else unsaid_end(broker.file)
            if ended is None
            else ended
        )
        click.echo(
            f"Broker {broker.id}: {time_text(broker.header.started_ms)} to {time_text(broker.now_ms)}, "
            f"{tape.entries:,} entries, as recorded; {end}."
        )
    without = [broker for broker in cluster.starts if PAYLOADS in broker.header.left_out]
    if without:
        where = "" if len(without) == len(cluster.starts) else f" in {', '.join(one.name for one in without)}"
        click.echo(
            f"Records' keys and values have stand-ins{where}: what the brokers decide is as recorded, the "
            "bytes of their responses are those of the stand-ins."
        )
    if found is not None:
        report_stop(found)


def report_stop(found: Moment) -> None:
    """Say where it has stopped, and what has changed there."""
    click.echo(f"Stopped at {time_text(found.at_ms)}, after: {found.event}, on broker {found.broker.id}.")
    for change in found.changes:
        click.echo(f"  {change_row(change)['text']}")


def change_row(change: Change) -> dict[str, Any]:
    """Return a change as JSON."""
    text = f"{change.partition} is gone" if change.difference is None else change.difference.text
    return {"partition": change.partition, "text": text}


def produce_row(produce: Produce) -> dict[str, Any]:
    """Return a Produce request as JSON; times in milliseconds."""
    answer, offsets = produce.answer, produce.offsets
    row = produce._asdict()
    del row["answer"]
    return row | {
        "base_offset": None if offsets is None else offsets.start,
        "last_offset": None if offsets is None else offsets.stop - 1,
        "answered_ms": None if answer is None else answer.at_ms,
        "error_code": None if answer is None else answer.error.value,
        "error": None if answer is None else answer.error.name.upper(),
        "message": None if answer is None else answer.message,
    }


class Why(NamedTuple):
    """Why a partition's high watermark is where it is, and the replicas of which there are recordings."""

    name: str
    held: Hold
    states: Sequence[ReplicaState]
    down: Collection[int]
    """Brokers of which this is the last state: they had ended."""


def why_of(cluster: RecordedCluster, topic: str, partition: int) -> Why:
    """Return why the high watermark is where it is; exit with 1 if no broker has a replica there."""
    known = [state for broker in cluster.brokers if (state := broker.replica(topic, partition)) is not None]
    states = {state.broker_id: state for state in known}
    if not known:
        click.echo(f"No recorded broker has a replica of {topic}-{partition} there.", err=True)
        sys.exit(1)
    newest = max(known, key=lambda state: (state.leader_epoch, state.partition_epoch))
    led = next((state.leader for state in known if state.leader is not None), None)
    seen = {} if led is None else {one.broker_id: one for one in led.followers}
    rows = [
        ReplicaRow(
            topic=topic,
            partition=partition,
            broker_id=broker_id,
            state=states.get(broker_id),
            failure=None if states.get(broker_id) is not None else "its recording does not have it",
            in_sync=broker_id in newest.isr,
            seen_by_leader=seen.get(broker_id),
        )
        for broker_id in newest.replicas
    ]
    return Why(f"{topic}-{partition}", why_held(rows, newest.leader_id), known, cluster.down)


def say_why(why: Why) -> None:
    """Say it, with the replicas below."""
    click.echo(f"{why.name}: {why.held.summary}")
    for detail in why.held.details:
        click.echo(f"  {detail}")
    for state in why.states:
        click.echo(
            f"  Broker {state.broker_id}: {state.role} in epoch {state.leader_epoch}, "
            f"LEO {state.log_end_offset}, HW {state.high_watermark}"
            f"{' when it ended' if state.broker_id in why.down else ''}"
        )


def report_json(
    cluster: RecordedCluster,
    found: Moment | None,
    why: Why | None,
    changes: Sequence[Mapping[str, Any]],
    produces: Sequence[Mapping[str, Any]],
) -> None:
    """Print all that was found as one JSON object."""
    document: dict[str, Any] = {
        "brokers": [
            {
                "broker": broker.id,
                "started_ms": broker.header.started_ms,
                "reached_ms": broker.now_ms,
                "entries": broker.replay.tape.entries,
                "is_at_end": broker.replay.tape.head is None or broker.replay.ended is not None,
                "end": broker.replay.ended,
            }
            for broker in cluster.starts
            if broker.has_begun
        ],
        "doubts": cluster.doubts,
        "changes": changes,
        "produces": produces,
        "stopped": None,
        "why": None,
    }
    if found is not None:
        document["stopped"] = {
            "broker": found.broker.id,
            "at_ms": found.at_ms,
            "event": found.event,
            "changes": [change_row(change) for change in found.changes],
        }
    if why is not None:
        replicas = [
            {
                "broker": state.broker_id,
                "role": state.role,
                "is_down": state.broker_id in why.down,
                "leader_epoch": state.leader_epoch,
                "log_end_offset": state.log_end_offset,
                "high_watermark": state.high_watermark,
            }
            for state in why.states
        ]
        held = {"summary": why.held.summary, "details": list(why.held.details), "is_held": why.held.is_held}
        document["why"] = {"partition": why.name, **held, "replicas": replicas}
    print_json(document)
