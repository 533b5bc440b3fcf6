"""What ``nilometer recorder save`` does: it writes the copies, or says why there are none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nilometer.config import ConfigError
from nilometer.recorder.tape import Header, NotARecording
from nilometer.simulation.recorded_cluster import OtherSource, RecordingFile
from nilometer.simulation.recorded_copies import CopyRefused, write_copy

KEY_BYTES = 32


def save_copies(
    files: Sequence[RecordingFile],
    out: Path,
    *,
    with_payloads: bool,
    is_quiet: bool,
) -> list[dict[str, Any]]:
    """Write copies of ``files`` to the new file ``out``; return a row for each. ``is_quiet``: say nothing
    when one is done.

    Raises ClickException; then ``out`` is as it was.
    """
    rows: list[dict[str, Any]] = []

    def on_copied(name: str, header: Header) -> None:
        rows.append(
            {
                "file": name,
                "broker": int(header.settings.get("node.id", -1)),
                "started_ms": header.started_ms,
                "left_out": header.left_out,
            }
        )
        if not is_quiet:
            click.echo(f"{name} is replayed, to its end", err=True)

    try:
        write_copy(
            files,
            out,
            os.urandom(KEY_BYTES),
            with_payloads=with_payloads,
            on_copied=on_copied,
            on_doubt=lambda doubt: click.echo(doubt, err=True),
        )
    except FileExistsError:
        raise click.ClickException(f"{out} exists already: give the name of a new file") from None
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror or error}") from None
    except (CopyRefused, OtherSource, NotARecording, ConfigError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    return rows


def left_out_text(rows: Sequence[dict[str, Any]]) -> str:
    """Say what all of the copies leave out, and which of them leave out less than another."""
    each = [set[str](row["left_out"]) for row in rows]
    in_all = set[str].intersection(*each)
    more = set[str].union(*each) - in_all
    text = f"without {', '.join(sorted(in_all))}"
    for what in sorted(more):
        having = (row["file"] for row in rows if what not in row["left_out"])
        text += f"; with {what}: {', '.join(having)}"
    return text
