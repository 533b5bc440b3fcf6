"""``nilometer log``: prints and checks files of a log: segments, indexes, snapshots, checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option
from nilometer.cli.records.log_dump import dump_file, is_known

_PATH = click.Path(exists=True)


@commands.group()
def log() -> None:
    """Print the contents of log files."""


@log.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=_PATH)
@click.option("--records", is_flag=True, help="Also print the records of each batch.")
@json_option
def dump(paths: tuple[str, ...], records: bool, as_json: bool) -> None:
    """Print the contents of log files: batches, index entries, leader epochs, producers.

    For a folder, all such files in it and its subfolders are printed. The checksum of every batch is
    verified, and every index entry is compared with its log. The exit code is 1 if a file is damaged. With
    --json each line is one object.
    """
    damaged = False
    for path in _files(paths):
        if not as_json:
            click.echo(f"{path}:")
        for entry in dump_file(path, records=records):
            damaged = damaged or "problem" in entry
            click.echo(json.dumps({"file": path, **entry}) if as_json else f"  {_line(entry)}")
    if damaged:
        raise click.exceptions.Exit(1)


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            if not is_known(path):
                raise click.UsageError(f"{path} is not a log, index, checkpoint or snapshot file")
            yield path
            continue
        found = False
        for parent, folders, names in os.walk(path):
            folders.sort()
            for name in filter(is_known, sorted(names)):
                found = True
                yield os.path.join(parent, name)
        if not found:
            raise click.UsageError(f"{path} has no log, index, checkpoint or snapshot file")


def _line(entry: dict[str, Any]) -> str:
    """Format an entry as ``key: value`` pairs, with its records indented below."""
    shown = "  ".join(f"{name}: {value}" for name, value in entry.items() if name not in ("type", "records"))
    text = f"{entry['type']}  {shown}" if "problem" not in entry else f"DAMAGED  {shown}"
    for record in entry.get("records", ()):
        text += "\n    " + "  ".join(f"{name}: {value!r}" for name, value in record.items())
    return text
