"""``nilometer recorder info | replay | save``: what recordings of brokers contain, the brokers again, and
copies without secrets.

Exit codes: 0 it was replayed as it was recorded, to its end or to where it was to stop; 1 the replay differs
from the recording, the recording is of other sources, or what was to stop it did not happen; or a copy is not
possible.
"""

from __future__ import annotations

import logging
import pdb
import re
import sys
from collections import Counter, deque
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, print_json, print_table
from nilometer.cli.commands import parse_time
from nilometer.cli.recorder_save import save_copies
from nilometer.client.admin.replica_survey import ReplicaRow
from nilometer.config import ConfigError
from nilometer.console.views.hold import Hold, why_held
from nilometer.recorder import tape as kinds
from nilometer.recorder.folder import SUFFIX
from nilometer.recorder.replaying import Diverged
from nilometer.recorder.tape import NotARecording, TapeReader
from nilometer.simulation.recorded_cluster import (
    Change,
    Moment,
    OtherSource,
    RecordedCluster,
    RecordingFile,
    console_header,
    recordings_in,
)
from nilometer.simulation.recorded_copies import PAYLOADS
from nilometer.simulation.recording import EVENTS_READ_MAX, Kind, RecordingWriter, applied_fields
from nilometer.wire.own_apis import ReplicaState

TAIL_MAX = 10_000

files_argument = click.argument(
    "paths",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)


def _opened(paths: Sequence[Path]) -> list[RecordingFile]:
    """Open recordings, of a folder all that are in it. Raises UsageError."""
    found: list[RecordingFile] = []
    for path in dict.fromkeys(paths):
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise click.UsageError(f"{path} has no recording (*{SUFFIX})")
        for one in inside:
            try:
                found += recordings_in(one)
            except (NotARecording, OSError) as error:
                if one == path:
                    raise click.UsageError(str(error)) from None
                click.echo(f"{error}: left out", err=True)
    return found


@commands.group()
def recorder() -> None:
    """Show the recordings of brokers with `nilometer.recorder=on`, and replay them."""


@recorder.command()
@files_argument
@click.option(
    "--tail",
    type=click.IntRange(0, TAIL_MAX),
    default=0,
    metavar="N",
    help="Show the last entries, too: what came in, and what the broker asked its disk and its network for.",
)
@json_option
def info(paths: tuple[Path, ...], tail: int, as_json: bool) -> None:
    """Show what recordings contain: FILE is one, or a folder of them."""
    rows, damaged = list[dict[str, Any]](), 0
    for file in _opened(paths):
        try:
            rows.append(_described(file, tail))
        except (NotARecording, ValueError, TypeError, OverflowError) as error:  # anyone may have made it
            click.echo(f"{file.name} cannot be read, and is left out: {error}", err=True)
            damaged += 1
    _show(rows, tail, as_json=as_json)
    if damaged:
        sys.exit(1)


def _show(rows: Sequence[dict[str, Any]], tail: int, *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_table(
        (
            "file",
            "broker",
            "started",
            "seconds",
            "bytes",
            "events",
            "connections",
            "replayable",
            "without",
            "end",
        ),
        [
            (
                row["file"],
                row["broker"],
                _time(row["started_ms"]),
                f"{row['milliseconds'] / 1000:.3f}",
                f"{row['bytes']:,}",
                f"{row['events']:,}",
                row["connections"],
                "yes" if row["is_of_these_sources"] else "other sources",
                ", ".join(row["left_out"]),
                row["end"],
            )
            for row in rows
        ],
    )
    for row in rows if tail else ():
        click.echo(f"The last entries of {row['file']}:")
        for text in row["tail"]:
            click.echo(f"  {text}")


def _described(file: RecordingFile, tail: int) -> dict[str, Any]:
    tape, counts, end, elapsed_ms = TapeReader(file.frames()), Counter[int](), _unsaid_end(file), 0
    first_ms, last = None, deque[str](maxlen=tail)
    while tape.head is not None:
        kind = tape.head.kind
        counts[kind] += 1
        if tail and kind not in _CLOCKS:
            last.append(_entry_text(tape))
        if kind == kinds.END:
            end = tape.content().decode(errors="replace")
            tape.back()
        elif tape.head.is_event:
            elapsed_ms += tape.event_head()[1]
            first_ms = elapsed_ms if first_ms is None else first_ms
            tape.back()
        tape.skip()
    return {
        "file": file.name,
        "broker": int(file.header.settings.get("node.id", file.header.settings.get("broker.id", -1))),
        "started_ms": file.header.started_ms,
        "milliseconds": elapsed_ms - (first_ms or 0),
        "bytes": file.bytes,
        "events": sum(count for kind, count in counts.items() if kinds.EVENT <= kind < kinds.END),
        "connections": counts[kinds.CONNECTION],
        "entries": {kinds.NAMES[kind]: count for kind, count in sorted(counts.items())},
        "version": file.header.version,
        "python": file.header.python,
        "is_of_these_sources": file.is_of_these_sources,
        "left_out": file.header.left_out,
        "end": end,
        "tail": list(last),
    }


def _unsaid_end(file: RecordingFile) -> str:
    """Say what the end of a recording means that does not say so itself."""
    if file.is_being_written:
        return "it is being written"
    return "it breaks off: the process was killed"


_CLOCKS = {kinds.WALL, kinds.MONOTONIC, kinds.MONOTONIC_US, kinds.CPU}
_OF_A_CONNECTION = {
    kinds.WRITE,
    kinds.TRANSPORT,
    *(kinds.MADE, kinds.DATA, kinds.BUFFER, kinds.EOF, kinds.LOST, kinds.PAUSE, kinds.RESUME),
}


def _entry_text(tape: TapeReader) -> str:
    """Say what the next entry is, in a line; the tape stays there."""
    head = tape.head
    assert head is not None
    text = kinds.NAMES[head.kind]
    if head.kind == kinds.END:
        return text
    if head.is_event:
        tape.event_head()
    match head.kind:
        case kinds.ASK:
            name, args, is_done, _ = tape.packed()
            text = f"{name}({', '.join(map(str, args))}){'' if is_done else ' failed'}"
        case kinds.OPEN:
            text = f"open({tape.packed()[0]})"
        case kinds.WAIT:
            number, (name, args) = tape.number(), tape.packed()
            text = f"call {number}: {name}({', '.join(map(str, args))})"
        case kinds.OFFLOAD | kinds.JOB_DONE:
            text = f"{text} {tape.number()}"
        case kinds.DONE:
            text = f"call {tape.number()} is done"
        case kind if kind in _OF_A_CONNECTION:
            text = f"{text}, connection {tape.number()}"
            if kind in (kinds.WRITE, kinds.DATA, kinds.BUFFER):
                text += f", {tape.number():,} bytes"
            elif kind == kinds.TRANSPORT:
                text += f", {tape.packed()}"
        case _:
            pass
    tape.back()
    return f"job {head.job}: {text}" if head.job else text


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


WATCHED = {
    "high watermark": "high_watermark",
    "log end offset": "log_end_offset",
    "log start offset": "log_start_offset",
    "leader epoch": "leader_epoch",
    "role": "role",
    "ISR": "isr",
    "epochs": "epochs",
}
"""What ``--break-on`` may name → the field of a replica's state."""
_BREAK = re.compile(rf"({'|'.join(WATCHED)}) of (.+-\d+) (?:moves|changes)")


class Watch(NamedTuple):
    """What stops a replay."""

    field: str
    partition: str

    def happens_in(self, moment: Moment) -> bool:
        """Whether a replica of the partition, known before, has another value of the field."""
        return any(
            change.partition == self.partition
            and change.difference is not None
            and change.difference.kind is not Kind.REPLICA
            and self.field in applied_fields(change.difference.change)
            for change in moment.changes
        )


class WatchParam(click.ParamType[Watch]):
    name = "what"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Watch:
        found = _BREAK.fullmatch(value)
        if found is None:
            self.fail(
                f"{value!r} is not WHAT of TOPIC-PARTITION moves, with one of: {', '.join(WATCHED)}",
                param,
                ctx,
            )
        return Watch(WATCHED[found[1]], found[2])


class PartitionParam(click.ParamType[tuple[str, int]]):
    name = "topic-partition"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        topic, dash, number = value.rpartition("-")
        if not dash or not topic or not number.isdecimal():
            self.fail(f"{value!r} is not TOPIC-PARTITION, such as orders-0", param, ctx)
        return topic, int(number)


class UntilParam(click.ParamType[int]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_time(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _RecordedTimes(logging.Formatter):
    """Log lines with the broker, and the time, at which they were written first."""

    def __init__(self, cluster: RecordedCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def format(self, record: logging.LogRecord) -> str:
        broker = self._cluster.playing
        at = "" if broker is None else f"{_time(broker.now_ms)} [broker {broker.id}] "
        return f"{at}{record.levelname} {record.getMessage()}"


@recorder.command()
@files_argument
@click.option("--until", "until_ms", type=UntilParam(), help="Stop at this time: an ISO time in UTC.")
@click.option(
    "--break-on",
    "watches",
    type=WatchParam(),
    multiple=True,
    metavar="WHAT",
    help="Stop where this happens, such as 'high watermark of orders-0 moves' (moves or changes; "
    f"{', '.join(WATCHED)}); repeatable.",
)
@click.option(
    "--changes",
    "followed",
    type=PartitionParam(),
    multiple=True,
    metavar="TOPIC-PARTITION",
    help="Show each change of the partition's replicas on its way; repeatable.",
)
@click.option(
    "--why",
    "partition",
    type=PartitionParam(),
    metavar="TOPIC-PARTITION",
    help="Say, where it stops, why the partition's high watermark is where it is.",
)
@click.option("--debug", is_flag=True, help="Enter Python's debugger there, before the broker's next step.")
@click.option(
    "--record",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the brokers' replicas and messages to this file, for `nilometer console --replay`.",
)
@click.option("--any-source", is_flag=True, help="Try it with recordings of other sources, too.")
@click.option("--quiet", is_flag=True, help="Without the brokers' log lines.")
@json_option
def replay(
    paths: tuple[Path, ...],
    until_ms: int | None,
    watches: tuple[Watch, ...],
    followed: tuple[tuple[str, int], ...],
    partition: tuple[str, int] | None,
    debug: bool,
    out: Path | None,
    any_source: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Let the recorded brokers run again: FILE is a recording. Those of several starts of a broker follow
    each other.

    The recordings of several brokers are aligned by the messages between them, not by their clocks.
    """
    if debug and as_json:
        raise click.UsageError("--debug asks and answers on the terminal: leave out --json")
    files = _opened(paths)
    names = {f"{topic}-{number}" for topic, number in followed}
    changes = list[dict[str, Any]]()

    def is_wanted(moment: Moment) -> bool:
        for change in moment.changes:
            if change.partition in names:
                row = {"broker": moment.broker.id, "at_ms": moment.at_ms, **_change_row(change)}
                if as_json:
                    changes.append(row)
                else:
                    click.echo(f"{_time(moment.at_ms)} [broker {moment.broker.id}] {row['text']}")
        return (until_ms is not None and moment.at_ms >= until_ms) or any(
            watch.happens_in(moment) for watch in watches
        )

    with ExitStack() as stack:
        cluster = stack.enter_context(closing(_cluster(files, any_source, _writer(stack, files, out))))
        stack.enter_context(_lines_shown(None if quiet or as_json else cluster))
        try:
            found = cluster.play(is_wanted)
        except Diverged as difference:
            _fail(cluster, f"the replay differs from the recording: {difference}")
        except NotARecording as error:
            _fail(cluster, str(error))
        cluster.end()
        why = None if partition is None else _why(cluster, *partition)
        if as_json:
            _report_json(cluster, found, why, changes)
        else:
            _report(cluster, found)
            if why is not None:
                _say(why)
        if found is None and (watches or until_ms is not None):
            click.echo("The recordings end before that.", err=True)
            sys.exit(1)
        if debug and found is not None:
            debugger = pdb.Pdb()
            debugger.message("The broker's next step: `step` goes into it, `continue` goes on to the end.")
            try:
                debugger.runcall(cluster.play, lambda _: False)
            except Diverged as difference:
                _fail(cluster, f"the replay differs from the recording: {difference}")


@recorder.command()
@files_argument
@click.option(
    "--output",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="OUT",
    help="The new file: a ZIP archive, for `nilometer recorder info` and `replay`.",
)
@click.option(
    "--without-payloads",
    is_flag=True,
    help="Without the keys and values of records, too: what brokers decide is as recorded then, and the "
    "bytes of their responses are not.",
)
@json_option
def save(paths: tuple[Path, ...], out: Path, without_payloads: bool, as_json: bool) -> None:
    """Copy recordings into one file, without secrets, to replay it on another machine.

    FILE is a recording, or a folder of them: of one broker or several, and of all starts. The copy is
    replayed before it is done. Records' keys and values are in it, unless --without-payloads is given.
    """
    files = _opened(paths)
    with _lines_shown(None):
        rows = save_copies(files, out, with_payloads=not without_payloads, is_quiet=as_json)
    if as_json:
        print_json({"file": str(out), "bytes": out.stat().st_size, "recordings": rows})
    else:
        click.echo(f"{out}: {len(rows)} recordings without {', '.join(rows[0]['left_out'])}, replayed.")


def _cluster(
    files: Sequence[RecordingFile], any_source: bool, writer: RecordingWriter | None
) -> RecordedCluster:
    try:
        return RecordedCluster(files, any_source=any_source, writer=writer)
    except (OtherSource, ConfigError, NotARecording, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _writer(stack: ExitStack, files: Sequence[RecordingFile], out: Path | None) -> RecordingWriter | None:
    if out is None:
        return None
    sink = stack.enter_context(out.open("w", encoding="utf-8"))
    return RecordingWriter(
        lambda line: sink.write(f"{line}\n"), console_header(files), events_max=EVENTS_READ_MAX
    )


@contextmanager
def _lines_shown(cluster: RecordedCluster | None) -> Generator[None]:
    """Show the replayed brokers' log lines within it, or none at all; logging is then as it was."""
    root = logging.getLogger()
    disabled, level = root.manager.disable, root.level
    if cluster is None:
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_RecordedTimes(cluster))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def _report(cluster: RecordedCluster, found: Moment | None) -> None:
    for broker in cluster.starts:
        tape = broker.replay.tape
        if not broker.has_begun:
            continue
        ended = broker.replay.ended
        end = (
            "the recording goes on"
            if tape.head is not None and ended is None
            else _unsaid_end(broker.file)
            if ended is None
            else ended
        )
        click.echo(
            f"Broker {broker.id}: {_time(broker.header.started_ms)} to {_time(broker.now_ms)}, "
            f"{tape.entries:,} entries, as recorded; {end}."
        )
    if any(PAYLOADS in broker.header.left_out for broker in cluster.starts):
        click.echo(
            "Records' keys and values have stand-ins: what the brokers decide is as recorded, the bytes of "
            "their responses are those of the stand-ins."
        )
    if found is not None:
        click.echo(f"Stopped at {_time(found.at_ms)}, after: {found.event}, on broker {found.broker.id}.")
        for change in found.changes:
            click.echo(f"  {_change_row(change)['text']}")


def _change_row(change: Change) -> dict[str, Any]:
    text = f"{change.partition} is gone" if change.difference is None else change.difference.text
    return {"partition": change.partition, "text": text}


def _fail(cluster: RecordedCluster, message: str) -> NoReturn:
    broker = cluster.playing
    at = "" if broker is None else f"broker {broker.id} at {_time(broker.now_ms)}: "
    click.echo(f"Error: {at}{message}", err=True)
    sys.exit(1)


class _Why(NamedTuple):
    """Why a partition's high watermark is where it is, and the replicas of which there are recordings."""

    name: str
    held: Hold
    states: Sequence[ReplicaState]
    down: Collection[int]
    """Brokers of which this is the last state: they had ended."""


def _why(cluster: RecordedCluster, topic: str, partition: int) -> _Why:
    states = {broker.id: broker.replica(topic, partition) for broker in cluster.brokers}
    known = [state for state in states.values() if state is not None]
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
    return _Why(f"{topic}-{partition}", why_held(rows, newest.leader_id), known, cluster.down)


def _say(why: _Why) -> None:
    click.echo(f"{why.name}: {why.held.summary}")
    for detail in why.held.details:
        click.echo(f"  {detail}")
    for state in why.states:
        click.echo(
            f"  Broker {state.broker_id}: {state.role} in epoch {state.leader_epoch}, "
            f"LEO {state.log_end_offset}, HW {state.high_watermark}"
            f"{' when it ended' if state.broker_id in why.down else ''}"
        )


def _report_json(
    cluster: RecordedCluster, found: Moment | None, why: _Why | None, changes: Sequence[Mapping[str, Any]]
) -> None:
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
        "changes": changes,
        "stopped": None,
        "why": None,
    }
    if found is not None:
        document["stopped"] = {
            "broker": found.broker.id,
            "at_ms": found.at_ms,
            "event": found.event,
            "changes": [_change_row(change) for change in found.changes],
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
