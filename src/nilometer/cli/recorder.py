"""``nilometer recorder info | replay | save``: what recordings of brokers contain, the brokers again, and
copies without secrets.

Exit codes: 0 it was replayed as it was recorded, to its end or to where it was to stop; 1 the replay differs
from the recording, the recording is of other sources, or what was to stop it did not happen; or a copy is not
possible.
"""

from __future__ import annotations

import logging
import pdb
import stat
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, print_json, print_table
from nilometer.cli.recorder_reports import (
    change_row,
    produce_row,
    report,
    report_json,
    report_stop,
    say_why,
    time_text,
    unsaid_end,
    why_of,
)
from nilometer.cli.recorder_save import left_out_text, save_copies
from nilometer.cli.recorder_stops import WATCHED, PartitionParam, Stops, UntilParam, Watch, WatchParam
from nilometer.config import ConfigError
from nilometer.recorder import tape as kinds
from nilometer.recorder.folder import SUFFIX
from nilometer.recorder.replaying import Diverged
from nilometer.recorder.tape import NotARecording, TapeReader
from nilometer.simulation.recorded_cluster import (
    Moment,
    OtherCluster,
    OtherSource,
    RecordedCluster,
    RecordingFile,
    console_header,
    recordings_in,
)
from nilometer.simulation.recording import EVENTS_READ_MAX, RecordingWriter

TAIL_MAX = 10_000

files_argument = click.argument(
    "paths",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)


def _opened(paths: Sequence[Path]) -> list[RecordingFile]:
    """Open recordings, of a folder all that are in it, each once. Raises UsageError."""
    found: list[RecordingFile] = []
    seen = set[tuple[int, int]]()
    for path in paths:
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise click.UsageError(f"{path} has no recording (*{SUFFIX})")
        for one in inside:
            try:
                status = one.stat()
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                if not stat.S_ISREG(status.st_mode):
                    raise NotARecording(f"{one} is no file")  # a pipe would hang
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
    help="Show the last N entries, too: what came in, and what the broker asked its disk and its network for "
    "(readings of clocks do not count).",
)
@json_option
def info(paths: tuple[Path, ...], tail: int, as_json: bool) -> None:
    """Show what recordings contain: FILE is one, or a folder of them.

    Of one that is damaged what is before the damage is shown, and the end is where it is; the exit code is 1.
    """
    rows, damaged = list[dict[str, Any]](), 0
    for file in _opened(paths):
        try:
            rows.append(_described(file, tail))
            damaged += rows[-1]["is_damaged"]
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
                time_text(row["started_ms"]),
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
    tape, counts, end, elapsed_ms = TapeReader(file.frames()), Counter[int](), unsaid_end(file), 0
    first_ms, last = None, deque[str](maxlen=tail)
    try:
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
    except NotARecording as damage:  # what is before it can be shown
        end = str(damage)
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
        "is_damaged": tape.damage is not None,
        "tail": list(last),
    }


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


class _RecordedTimes(logging.Formatter):
    """Log lines with the broker, and the time, at which they were written first."""

    def __init__(self, cluster: RecordedCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def format(self, record: logging.LogRecord) -> str:
        broker = self._cluster.playing
        at = "" if broker is None else f"{time_text(broker.now_ms)} [broker {broker.id}] "
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
    "--produces",
    "produced",
    type=PartitionParam(),
    multiple=True,
    metavar="TOPIC-PARTITION",
    help="Show the Produce requests for the partition when they are answered: whose they are, the offsets of "
    "their records, and what the client was told; repeatable.",
)
@click.option(
    "--why",
    "partition",
    type=PartitionParam(),
    metavar="TOPIC-PARTITION",
    help="Say, where it stops, why the partition's high watermark is where it is.",
)
@click.option(
    "--nth",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --break-on: stop where it happens for the Nth time.  [default: 1]",
)
@click.option(
    "--debug",
    is_flag=True,
    help="Enter Python's debugger there, before the broker's next step; `continue` goes on to the next time.",
)
@click.option(
    "--record",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the brokers' replicas and messages to this new file, for `nilometer console --replay`.",
)
@click.option("--any-source", is_flag=True, help="Try it with recordings of other sources, too.")
@click.option("--quiet", is_flag=True, help="Without the brokers' log lines.")
@json_option
def replay(
    paths: tuple[Path, ...],
    until_ms: int | None,
    watches: tuple[Watch, ...],
    followed: tuple[tuple[str, int], ...],
    produced: tuple[tuple[str, int], ...],
    partition: tuple[str, int] | None,
    nth: int | None,
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
    if nth is not None and not watches:
        raise click.UsageError("--nth counts what --break-on names: give it, too")
    files = _opened(paths)
    names = {f"{topic}-{number}" for topic, number in followed}
    changes, produces = list[dict[str, Any]](), list[dict[str, Any]]()
    stops = Stops(until_ms, watches, nth or 1)

    def is_wanted(moment: Moment) -> bool:
        for change in moment.changes:
            if change.partition in names:
                row = {"broker": moment.broker.id, "at_ms": moment.at_ms, **change_row(change)}
                if as_json:
                    changes.append(row)
                else:
                    click.echo(f"{time_text(moment.at_ms)} [broker {moment.broker.id}] {row['text']}")
        for one in moment.produces:
            if as_json:
                produces.append({"broker": moment.broker.id, **produce_row(one)})
            else:
                click.echo(
                    f"{time_text(moment.at_ms)} [broker {moment.broker.id}] {one.partition}: {one.text}, "
                    f"arrived {time_text(one.arrived_ms)}"
                )
        return stops.stops_at(moment)

    with ExitStack() as stack:
        cluster = _cluster(stack, files, any_source, out, produced)
        for doubt in cluster.doubts:
            click.echo(doubt, err=True)
        stack.enter_context(_lines_shown(None if quiet or as_json else cluster))
        found = _played(cluster, lambda: cluster.play(is_wanted))
        stack.callback(cluster.end)  # the debugger may go on
        why = None if partition is None else why_of(cluster, *partition)
        if as_json:
            report_json(cluster, found, why, changes, produces)
        else:
            report(cluster, found)
            if why is not None:
                say_why(why)
        if found is None and (watches or until_ms is not None):
            click.echo("The recordings end before that.", err=True)
            sys.exit(1)
        while debug and found is not None:
            found = _debugged(cluster, is_wanted)


def _played(cluster: RecordedCluster, play: Callable[[], Moment | None]) -> Moment | None:
    """Return what ``play`` returns; end the command where it cannot go on."""
    try:
        return play()
    except Diverged as difference:
        _fail(cluster, f"the replay differs from the recording: {difference}")
    except (NotARecording, OtherCluster) as error:
        _fail(cluster, str(error))


def _debugged(cluster: RecordedCluster, is_wanted: Callable[[Moment], bool]) -> Moment | None:
    """Go on in Python's debugger to the next moment that is wanted; return it, or None at the end."""
    debugger = _Debugger()
    debugger.message("The broker's next step: `step` goes into it, `continue` goes on.")
    found = _played(cluster, lambda: debugger.runcall(cluster.play, is_wanted))
    if found is not None:
        report_stop(found)
    return found


class _Debugger(pdb.Pdb):
    """Quits by an exception that neither the event loop nor the broker takes for an error of its own."""

    def do_quit(self, arg: str) -> bool | None:
        sys.exit()

    do_q = do_exit = do_EOF = do_quit


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
        click.echo(f"{out}: {len(rows)} recordings {left_out_text(rows)}, replayed.")


def _cluster(
    stack: ExitStack,
    files: Sequence[RecordingFile],
    any_source: bool,
    out: Path | None,
    produces_to: Collection[tuple[str, int]],
) -> RecordedCluster:
    try:
        writer = None if out is None else _writer(stack, files, out)
        cluster = RecordedCluster(files, any_source=any_source, writer=writer, produces_to=produces_to)
        return stack.enter_context(closing(cluster))
    except (OtherSource, ConfigError, NotARecording, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _writer(stack: ExitStack, files: Sequence[RecordingFile], out: Path) -> RecordingWriter:
    header = console_header(files)
    sink = stack.enter_context(_new_file(out))
    return RecordingWriter(lambda line: sink.write(f"{line}\n"), header, events_max=EVENTS_READ_MAX)


@contextmanager
def _new_file(out: Path) -> Generator[TextIO]:
    """Write a file that is not there yet; it is removed where a replay is refused before it has begun.

    Raises ClickException.
    """
    try:
        sink = out.open("x", encoding="utf-8")
    except FileExistsError:
        raise click.ClickException(f"{out} exists already: give the name of a new file") from None
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror or error}") from None
    with sink:
        try:
            yield sink
        except click.ClickException:
            out.unlink()
            raise


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


def _fail(cluster: RecordedCluster, message: str) -> NoReturn:
    broker = cluster.playing
    at = "" if broker is None else f"broker {broker.id} at {time_text(broker.now_ms)}: "
    click.echo(f"Error: {at}{message}", err=True)
    sys.exit(1)
