"""What a run says about its records: the account, and lines read, recognised and skipped by file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from nilometer.cli.console import OutputConsole
from nilometer.pipeline.account import Accounts, accounts_json, accounts_since
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.tally import Tally, share
from nilometer.pipeline.recognition import Formats
from nilometer.pipeline.run.catalogue import PipelineModule, Shipped

if TYPE_CHECKING:
    from nilometer.pipeline.batches import Done
    from nilometer.pipeline.run.runner import Job

FILES_SHOWN = 10
REASONS_SHOWN = 3
WIDTH = 140


def check_any_recognised(tally: Tally | None, shipped: Shipped, job: Job) -> None:
    """Raise PipelineError, with what was tried, if there are lines and none was recognised."""
    if tally is None or tally.recognised or not tally.unrecognised:
        return
    tried = dict.fromkeys(one.name for one in (job.formats or Formats()).definitions())
    samples = "".join(f"\n  {line}" for line in tally.samples())
    raise PipelineError(
        f"none of the {tally.unrecognised:,} lines of {job.topic} is of a format that {shipped.name} reads. "
        f"Tried: {', '.join(tried)}. The lines are such as:{samples}\n"
        "`nilometer pipeline formats test FILE` shows which format takes which line, and proposes formats "
        "for --formats"
    )


def check_finish(
    finish: bool, shipped: Shipped, module: PipelineModule, output: str, *, available_now: bool
) -> None:
    """Raise UsageError if ``--finish`` cannot be done."""
    if not finish:
        return
    if not hasattr(module, "finish"):
        raise click.UsageError(f"--finish: {shipped.name} leaves nothing open that could be closed")
    if not available_now:
        raise click.UsageError("--finish needs --available-now: input without an end leaves something open")
    if "://" in output:
        raise click.UsageError("--finish needs an --output on this machine")


def too_many_text(tally: Tally, most: float) -> str:
    return (
        f"WARNING: {tally.unrecognised:,} of {tally.lines - tally.blank:,} lines "
        f"({tally.unrecognised_share:.1%}) are of no known format and were skipped; --max-unrecognised is "
        f"{most:g} %. `nilometer pipeline formats test FILE` proposes formats for them"
    )


def print_tally(tally: Tally) -> None:
    """Print lines read, recognised and skipped, by file, with samples of the skipped ones."""
    console = OutputConsole(WIDTH)
    console.print(
        f"{tally.lines:,} lines: {tally.recognised:,} recognised, {tally.blank:,} blank, "
        f"{tally.unrecognised:,} of no known format ({tally.unrecognised_share:.1%})"
    )
    files = tally.files()
    if any(file["path"] for file in files):
        table = Table(title="Lines by file", title_justify="left")
        table.add_column("file", overflow="fold")
        for column in ("lines", "recognised", "no format", "share"):
            table.add_column(column, justify="right")
        for file in files[:FILES_SHOWN]:
            lost = share(file["unrecognised"], file["lines"] - file["blank"])
            numbers = (f"{file[key]:,}" for key in ("lines", "recognised", "unrecognised"))
            table.add_row(Text(file["path"] or "(not from ingest)"), *numbers, f"{lost:.1%}")
        console.print(table)
        if len(files) > FILES_SHOWN:
            console.print(f"... and {len(files) - FILES_SHOWN:,} more files (--json lists them)")
    if tally.unrecognised:
        console.print("Lines of no known format are such as:")
        for line in tally.samples():
            console.print(Text(f"  {line}"), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class RunAccount:
    """What became of the records of a run, and of all runs of its checkpoint."""

    run: Accounts
    totals: Accounts
    notes: Mapping[str, int]
    watermark: datetime | None
    letters: str
    """The topic of dead letters."""

    def to_json(self) -> dict[str, Any]:
        return {
            "run": accounts_json(self.run),
            "all_runs": accounts_json(self.totals),
            "notes": dict(self.notes),
            "dead_letters": self.letters,
        }


def account_of_run(began: Done | None, last: Done | None, letters: str) -> RunAccount | None:
    """Return the account of what came after ``began``; None if the pipeline keeps none."""
    if last is None:
        return None
    run = accounts_since(began.totals if began is not None else {}, last.totals)
    return RunAccount(run, last.totals, last.notes, last.watermark, letters)


def print_account(account: RunAccount) -> None:
    """Print what became of every record: of this run, and of all runs if there were others."""
    console = OutputConsole(WIDTH)
    parts = [("Account of all runs", account.totals)]
    if accounts_json(account.run) != accounts_json(account.totals):
        parts.insert(0, ("Account of this run", account.run))
    for title, accounts in parts:
        console.print(title)
        for name, one in accounts.items():
            for line in one.lines(name or "records"):
                console.print(Text(f"  {line}"), soft_wrap=True)
    if any(one.of("rejected") for one in account.totals.values()):
        console.print(Text(f"  Rejected records are in topic {account.letters}, each with the reason"))
    for note, rows in account.notes.items():
        console.print(Text(f"  {rows:,} {note}"), soft_wrap=True)


def rejected_text(account_of_run: RunAccount, most: float) -> str | None:
    """Return a warning if more than ``most`` percent of an input's records were rejected; else None."""
    for name, account in account_of_run.run.items():
        if account.rejected_share * 100 > most:
            reasons = sorted(account.became["rejected"].items(), key=lambda one: -one[1])
            said = "; ".join(f"{records:,} {reason}" for reason, records in reasons[:REASONS_SHOWN])
            return (
                f"WARNING: {account.of('rejected'):,} of {account.read:,} {name or 'records'} "
                f"({account.rejected_share:.1%}) were rejected; --max-rejected is {most:g} %. They are in "
                f"topic {account_of_run.letters}: {said}"
            )
    return None


def open_note(account: RunAccount, *, finished: bool) -> list[str]:
    """Return what is said of records whose results are not written yet."""
    still_open = sum(one.open for one in account.totals.values())
    if not still_open:
        return []
    if finished:
        return [
            f"--finish has written the results of {still_open:,} open records too. They stay open for later "
            "input, and are written again when they end"
        ]
    at = f" ({account.watermark:%Y-%m-%d %H:%M:%S})" if account.watermark is not None else ""
    return [
        f"The results of {still_open:,} records are still open: they are written when the event-time "
        f"watermark{at} has passed their end"
    ]
