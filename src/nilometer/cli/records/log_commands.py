"""``nilometer log``: prints and checks files of a log; lists and deletes stray logs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import confirm, json_option, print_json, yes_option
from nilometer.cli.records.log_dump import dump_file, is_known
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage import names
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.names import FolderKind

_PATH = click.Path(exists=True)


@commands.group()
def log() -> None:
    """Print the contents of log files; list and delete stray logs."""


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


@log.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER…", type=_PATH)
@json_option
def strays(folders: tuple[str, ...], as_json: bool) -> None:
    """List the stray logs in log directories, with their sizes.

    A broker renames a log that its cluster does not assign to it to …-stray: the topic was deleted or moved
    while the broker was down, or never existed in this cluster. It keeps the records and never uses them. A
    FOLDER is a log directory, or one stray folder.
    """
    found = [(path, _size(path)) for path in _stray_folders(folders)]
    if as_json:
        print_json([{"folder": path, "bytes": size} for path, size in found])
        return
    for path, size in found:
        click.echo(f"{path}  {size} bytes")
    click.echo(f"{len(found)} stray logs, {sum(size for _, size in found)} bytes", err=True)


@log.command("delete-strays")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER…", type=_PATH)
@yes_option
@json_option
def delete_strays(folders: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete the stray logs in log directories, with all their records.

    The brokers may run meanwhile. A FOLDER is a log directory, or one stray folder. Without a terminal it
    deletes nothing unless --yes is given.
    """
    found = _stray_folders(folders)
    if found:
        lost = [f"{path}  {_size(path)} bytes" for path in found]
        confirm(f"Delete {len(found)} stray logs with their records?", lost, yes=yes)
    for path in found:
        shutil.rmtree(path)
        if not as_json:
            click.echo(f"Deleted {path}.")
    if as_json:
        print_json({"deleted": found})
    elif not found:
        click.echo("There are no stray logs.")


def _stray_folders(folders: Iterable[str]) -> list[str]:
    """Return the stray folders among ``folders`` and in those that are log directories.

    Raises UsageError for a folder that is neither.
    """
    found: dict[str, None] = {}
    for folder in folders:
        parsed = names.parse_folder_name(os.path.basename(os.path.abspath(folder)))
        if parsed is not None and parsed.kind is FolderKind.STRAY and os.path.isdir(folder):
            found[folder] = None
        elif os.path.exists(os.path.join(folder, names.META_PROPERTIES)):
            found.update(dict.fromkeys(LogDirectory(SystemDisk(), folder).find_strays()))
        else:
            raise click.UsageError(
                f"{folder} is no log directory, since it has no {names.META_PROPERTIES}, and no stray folder"
            )
    return list(found)


def _size(folder: str) -> int:
    return sum(
        os.path.getsize(os.path.join(parent, name)) for parent, _, files in os.walk(folder) for name in files
    )


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            if not is_known(path):
                raise click.UsageError(f"{path} is not a log, index, checkpoint or snapshot file")
            yield path
            continue
        found = False
        for parent, folders, files in os.walk(path):
            folders.sort()
            for name in filter(is_known, sorted(files)):
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
