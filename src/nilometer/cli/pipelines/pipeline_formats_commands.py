"""``nilometer pipeline formats``: shows formats, and what they find in files. Needs no Spark.

A check applies the matcher to files: it counts, shows the first lines one by one, and proposes formats for
the rest.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, cast

import click
import msgspec
from rich.table import Table
from rich.text import Text

from nilometer.cli import commands
from nilometer.cli.console import OutputConsole, pipeline_console
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.columns import Line
from nilometer.pipeline.formats.definition import (
    FormatDefinition,
    all_formats,
    builtin_text,
    parse_formats,
    text_of_format,
    texts,
)
from nilometer.pipeline.formats.matcher import LINE_BYTES_MAX, Matcher, text_of
from nilometer.pipeline.formats.proposals import LINES_MAX, Proposal, clusters, propose
from nilometer.pipeline.formats.tally import Tally, shortened

# Applies a matcher to files: counts, the first lines one by one, and proposals for the rest.
#
# Invariant: the memory is bounded by the number of files, whatever their size and the length of their lines.

PROPOSALS_MAX = 8
LEFT_CHARS_MAX = 2_000
"""The part of a line of no format that is kept for proposals."""
SNIFF_BYTES = 1_024


class LineFound(msgspec.Struct, frozen=True):
    number: int
    found: Line
    text: str


@dataclass(slots=True)
class FileLines:
    path: str
    lines: int = 0
    shown: list[LineFound] = field(default_factory=list[LineFound])
    left: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Checked:
    tally: Tally
    files: list[FileLines]
    proposals: list[Proposal]

    @property
    def left(self) -> list[str]:
        return [line for file in self.files for line in file.left]


def check_files(matcher: Matcher, paths: Sequence[str], shown: int) -> Checked:
    """Match all lines of the files; keep the first ``shown`` of each. Raises PipelineError."""
    tally = Tally()
    files = [_check_file(matcher, path, tally, shown) for path in _files_of(paths)]
    if not tally.lines:
        raise PipelineError(f"no line to read in {', '.join(paths)}")
    return Checked(tally, files, _proposals(files, matcher.names))


def _check_file(matcher: Matcher, path: str, tally: Tally, shown: int) -> FileLines:
    file = FileLines(path)
    recorded_us = time.time_ns() // 1_000
    try:
        for raw in _lines_of(path):
            text = text_of(raw)
            found = matcher.match_text(text, path, recorded_us)
            file.lines += 1
            tally.add(path, found.format)
            if len(file.shown) < shown:
                file.shown.append(LineFound(file.lines, found, shortened(text)))
            if found.format == "unparsed":
                tally.add_sample(path, text)
                if len(file.left) < LINES_MAX:
                    file.left.append(text[:LEFT_CHARS_MAX])
    except (OSError, EOFError, zlib.error) as error:
        raise PipelineError(f"{path} cannot be read: {_reason(error)}") from error
    return file


def _reason(error: Exception) -> str:
    """Return the error without the path, if it has one."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _proposals(files: Sequence[FileLines], names: Sequence[str]) -> list[Proposal]:
    """Propose formats file by file, since a header belongs to its file; none for what one already takes."""
    proposals: list[Proposal] = []
    for file in sorted(files, key=lambda one: -len(one.left)):
        left = file.left
        if len(proposals) >= PROPOSALS_MAX:
            break
        if proposals:
            known = Matcher(parse_formats("\n".join(one.toml for one in proposals), "proposals"))
            left = [line for line in left if known.match_text(line).format == "unparsed"]
        proposals += propose(left, [*names, *(one.name for one in proposals)])
    return proposals[:PROPOSALS_MAX]


def _files_of(paths: Sequence[str]) -> Iterator[str]:
    for given in paths:
        path = Path(given)
        if given == "-":
            yield given
        elif path.is_dir():
            found = [one for one in sorted(path.rglob("*")) if one.is_file() and not is_hidden(one, path)]
            yield from (str(one) for one in found if _is_text(one))
        elif path.is_file():
            yield given
        else:
            raise PipelineError(f"{given} is no file and no folder")


def is_hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix == ".gz" or b"\0" not in file.read(SNIFF_BYTES)
    except OSError:
        return False


def _lines_of(path: str) -> Iterator[bytes]:
    """Yield the lines without their endings; of a line that is too long for any format, the beginning."""
    if path == "-":
        yield from _split(sys.stdin.buffer)
        return
    with Path(path).open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield from _split(cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if is_compressed else file)


def _split(file: IO[bytes]) -> Iterator[bytes]:
    limit = LINE_BYTES_MAX + 2
    while line := file.readline(limit):
        rest = line
        while len(rest) == limit and not rest.endswith(b"\n"):
            rest = file.readline(limit)
        yield line.removesuffix(b"\n")


# The commands.

UNRECOGNISED_EXIT_CODE = 3
PROPOSED_SHARE_MIN = 0.95
"""Proposals that take a smaller share of their own sample are written with a warning."""
LINES_SHOWN = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

formats_option = click.option(
    "--formats",
    "format_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file with your own formats, tried before the built-in ones; repeatable.",
)


@commands.group()
def formats() -> None:
    """Show the formats of lines that pipelines know, and try them on files."""


def read_formats(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Return name and text of each file. Raises ClickException if it cannot be read."""
    found: list[tuple[str, str]] = []
    for path in files:
        try:
            found.append((str(path), path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise click.ClickException(f"--formats: {path} cannot be read: {_reason(error)}") from None
    return found


def definitions_of(files: Sequence[Path]) -> list[FormatDefinition]:
    """Return all formats, those of ``files`` first. Raises ClickException."""
    try:
        return all_formats(read_formats(files))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None


@formats.command("list")
@formats_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def list_formats(format_files: tuple[Path, ...], as_json: bool) -> None:
    """List the formats, in the order in which they are tried."""
    definitions = definitions_of(format_files)
    if as_json:
        listing = [
            {
                "name": one.name,
                "summary": one.summary,
                "columns": one.column_names(),
                "time_format": texts(one.time_format) if one.time else [],
                "files": one.files,
            }
            for one in definitions
        ]
        click.echo(json.dumps({"formats": listing}))
        return
    table = Table("name", "what it is", "columns")
    for one in definitions:
        table.add_row(one.name, one.summary, ", ".join(one.column_names()))
    pipeline_console().print(table)


@formats.command()
@click.argument("name")
@formats_option
def show(name: str, format_files: tuple[Path, ...]) -> None:
    """Print the definition of a format, to copy into your own file and change."""
    definitions = definitions_of(format_files)
    for text in [*(text for _, text in read_formats(format_files)), builtin_text()]:
        blocks = text_of_format(text, name)
        if blocks:
            click.echo("\n".join(blocks))
            return
    raise click.ClickException(
        f"there is no format {name}. There are {', '.join(dict.fromkeys(one.name for one in definitions))}"
    )


@formats.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@formats_option
@click.option(
    "--timezone", default="UTC", show_default=True, help="The time zone of timestamps that name no zone."
)
@click.option(
    "--lines",
    "shown",
    type=click.IntRange(0),
    default=None,
    help=f"How many lines to show one by one.  [default: {LINES_SHOWN}; none with --json]",
)
@click.option(
    "--max-unrecognised",
    "most",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Exit with code 3 if more lines than this are of no format.",
)
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Append the proposed formats to this TOML file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def test(
    paths: tuple[str, ...],
    format_files: tuple[Path, ...],
    timezone: str,
    shown: int | None,
    most: float | None,
    write: Path | None,
    as_json: bool,
) -> None:
    """Show which format takes which line, and propose formats for lines that none takes.

    FILE is a file, also compressed with gzip, a folder, or - for the standard input.
    """
    own = read_formats(format_files)
    try:
        matcher = Matcher(all_formats(own), timezone)
        shown = (0 if as_json else LINES_SHOWN) if shown is None else shown
        result = check_files(matcher, paths, shown)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        listing = _listing(result.tally, result.proposals, result.files)
        click.echo(json.dumps({**listing, "proposed_share": _taken_share(result)}, default=str))
    else:
        _print(OutputConsole(), result)
    if write is not None and result.proposals:
        _append(write, result.proposals)
        if (few := _taken_share(result)) < PROPOSED_SHARE_MIN:
            click.echo(
                f"Warning: together they take {few:.1%} of the lines of no format: change their patterns, or "
                "write formats for the others",
                err=True,
            )
        click.echo(
            f"Written to {write}. Try it: nilometer pipeline formats test --formats {write} ...", err=True
        )
    elif write is not None:
        click.echo(f"Nothing is written to {write}: no format is proposed", err=True)
    if most is not None and result.tally.unrecognised_share * 100 > most:
        click.echo(_too_many(result.tally, most), err=True)
        raise SystemExit(UNRECOGNISED_EXIT_CODE)


def _taken_share(result: Checked) -> float:
    """Return the share of the lines of no format, of those that were looked at, that the proposals take."""
    return sum(one.lines for one in result.proposals) / max(1, len(result.left))


def _too_many(tally: Tally, most: float) -> str:
    return (
        f"{tally.unrecognised:,} lines ({tally.unrecognised_share:.1%}) are of no format; "
        f"--max-unrecognised is {most:g} %"
    )


def _append(path: Path, proposals: Sequence[Proposal]) -> None:
    """Append the proposals; a file that would not be valid any more is left as it was."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = before + ("\n" if before else "") + "\n".join(one.toml for one in proposals)
    try:
        parse_formats(whole, str(path))
    except PipelineError as error:
        raise click.ClickException(f"{path} was not changed: {error}") from None
    path.write_text(whole, encoding="utf-8")


def _listing(tally: Tally, proposals: Sequence[Proposal], files: Sequence[FileLines]) -> dict[str, Any]:
    listing = tally.to_json()
    by_line = [{"path": file.path, **_line_listing(one)} for file in files for one in file.shown]
    listing["proposals"] = [one._asdict() for one in proposals]
    return {**listing, **({"line_by_line": by_line} if by_line else {})}


def _line_listing(one: LineFound) -> dict[str, Any]:
    found = one.found
    return {
        "line": one.number,
        "format": None if found.format == "unparsed" else found.format,
        "time": time_text(found.time_us),
        "level": found.level,
        "key": found.key,
        "fields": dict(found.fields),
        "text": one.text,
    }


def time_text(time_us: int | None) -> str | None:
    return None if time_us is None else (_EPOCH + timedelta(microseconds=time_us)).isoformat()


def _print(console: OutputConsole, result: Checked) -> None:
    tally, proposals, files, left = result.tally, result.proposals, result.files, result.left
    for file in files:
        if file.shown:
            _print_lines(console, file)
    _print_totals(tally)
    if not tally.unrecognised:
        return
    console.print("\nThe most frequent lines of no format:")
    for count, sample in clusters(left):
        console.print(f"{count:>9,}  {shortened(sample)}", soft_wrap=True)
    if proposals:
        console.print(
            f"\nProposed formats, which take {_taken_share(result):.1%} of the lines of no format (change "
            "names and columns; --write my.toml keeps them):"
        )
    for one in proposals:
        console.print(f"\n# takes {one.lines:,} lines, such as: {one.samples[0]}", soft_wrap=True)
        console.print(one.toml, end="", soft_wrap=True)


def _print_lines(console: OutputConsole, file: FileLines) -> None:
    console.print(file.path, style="bold")
    for one in file.shown:
        said = " ".join(
            part for part in (time_text(one.found.time_us), one.found.level, one.found.key) if part
        )
        style = "red" if one.found.format == "unparsed" else None
        name = "no format" if one.found.format == "unparsed" else one.found.format
        console.print(f"{one.number:>7}  {name:<14}", style=style, end="")
        console.print(f" {said}  | {one.text}", soft_wrap=True)
    if file.lines > len(file.shown):
        console.print(f"         ... {file.lines - len(file.shown):,} more lines (--lines)")


def _print_totals(tally: Tally) -> None:
    console = pipeline_console()
    table = Table("file", title="Lines by file and format", title_justify="left")
    for column in ("lines", "recognised", "no format", "share"):
        table.add_column(column, justify="right")
    table.add_column("formats", overflow="fold")
    for file in tally.files():
        counted = file["lines"] - file["blank"]
        lost = file["unrecognised"] / counted if counted else 0.0
        table.add_row(
            Text(file["path"]),
            f"{file['lines']:,}",
            f"{file['recognised']:,}",
            f"{file['unrecognised']:,}",
            f"{lost:.1%}",
            ", ".join(f"{name} {lines:,}" for name, lines in file["by_format"].items()),
        )
    console.print(table)
    console.print(
        f"{tally.lines:,} lines: {tally.recognised:,} recognised, {tally.blank:,} blank, "
        f"{tally.unrecognised:,} of no format ({tally.unrecognised_share:.1%})",
        highlight=False,
    )
