"""``nilometer pipeline formats``: shows formats, and what they find in files. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from nilometer.cli import commands
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.pipeline_formats_check import Checked, FileLines, LineFound, check_files
from nilometer.cli.pipelines.pipeline_state_commands import table_console
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.definition import (
    FormatDefinition,
    all_formats,
    builtin_text,
    parse_formats,
    text_of_format,
    texts,
)
from nilometer.pipeline.formats.matcher import Matcher
from nilometer.pipeline.formats.proposals import Proposal, clusters
from nilometer.pipeline.formats.tally import Tally, shortened

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
            raise click.ClickException(f"--formats: {path} cannot be read: {error}") from None
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
    table_console().print(table)


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
    console = table_console()
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
