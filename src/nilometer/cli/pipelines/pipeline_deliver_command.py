"""``nilometer pipeline deliver``: the messages of a topic to a webhook."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    client_config,
    connection_options,
    given_client_config,
    json_option,
    parse_pairs,
    print_json,
    run_async,
)
from nilometer.cli.pipelines.pipeline_formats_commands import UNRECOGNISED_EXIT_CODE
from nilometer.cli.pipelines.pipeline_state_commands import home_option
from nilometer.client.consumer.consumer import Consumer
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.runner import Job, check_source
from nilometer.pipeline.run.webhook_delivery import (
    USUALLY_PERMANENT,
    Deliverer,
    DeliveryNotes,
    Refusal,
    Seat,
    Totals,
    Webhook,
    notes_path,
    read_statuses,
)
from nilometer.runtime import Runtime

SESSION_TIMEOUT_MS = "10000"
"""After this a deliverer on another machine takes over the partitions of a killed one."""


class Statuses(click.ParamType[frozenset[int]]):
    """A list of HTTP statuses and ranges of them."""

    name = "statuses"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return read_statuses(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@commands.command()
@click.option("--topic", default="notifications", show_default=True, help="The topic of the messages.")
@click.option("--webhook", "url", help="The URL that each message is posted to.")
@click.option("--group", default="nilometer-deliver", show_default=True, help="The consumer group.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="An HTTP header of each request; repeatable.",
)
@click.option(
    "--permanent",
    metavar="STATUS[,...]",
    type=Statuses(),
    default=USUALLY_PERMANENT,
    show_default=True,
    help="Responses after which a message is not sent again, but recorded as refused; ranges as 500-599.",
)
@click.option(
    "--attempts",
    type=click.IntRange(1),
    help="Also refuse a message after this many other responses with an error.  [default: no limit]",
)
@click.option(
    "--max-refused",
    type=click.FloatRange(0, 100),
    default=20,
    show_default=True,
    metavar="PERCENT",
    help="Exit with code 3 if more messages than this were refused.",
)
@click.option("--until-idle", is_flag=True, help="Stop when all messages have been delivered.")
@click.option(
    "--refused",
    "list_refused",
    is_flag=True,
    help="Deliver nothing; list the messages that were refused, with reason and response.",
)
@home_option
@json_option
@connection_options
def deliver(
    topic: str,
    url: str | None,
    group: str,
    headers: tuple[str, ...],
    permanent: frozenset[int],
    attempts: int | None,
    max_refused: float,
    until_idle: bool,
    list_refused: bool,
    home: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Post the messages of a topic to a webhook, each id once.

    Several deliverers of one group share the partitions. Failed messages are sent again, after what
    Retry-After says. 401, 403, 407, redirects and invalid certificates end the command.
    """
    path = notes_path(home, group)
    if list_refused:
        _list_refused(path, topic, as_json)
        return
    if url is None:
        raise click.UsageError("--webhook is needed: the URL that each message is posted to")
    try:
        webhook = Webhook(url, parse_pairs(headers, "--header"))
        check_source(Job(topic, output="", bootstrap_servers=bootstrap, client=given_client_config()))
        with (
            contextlib.closing(Seat(path)) as seat,
            contextlib.closing(DeliveryNotes(path, topic)) as notes,
        ):
            deliverer = Deliverer(
                webhook,
                notes,
                lambda said: click.echo(said, err=True),
                permanent=permanent,
                attempts=attempts,
            )
            settings = {**client_config(bootstrap), "group.id": group, "group.instance.id": seat.instance_id}
            try:
                run_async(_deliver(deliverer, topic, settings, until_idle))
            finally:
                _print_totals(deliverer.totals, as_json)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    if deliverer.totals.refused_share * 100 > max_refused:
        click.echo(
            f"{deliverer.totals.refused_share:.1%} of the messages were refused; --max-refused is "
            f"{max_refused:g} %. See them: nilometer pipeline deliver --refused --group {group}",
            err=True,
        )
        raise SystemExit(UNRECOGNISED_EXIT_CODE)


def _unusable(path: Path, error: sqlite3.Error) -> click.ClickException:
    return click.ClickException(
        f"{path}, which has what was delivered and refused, cannot be used: {error}. Free space if its disk "
        "is full. If it is damaged, restore it, or remove it: then messages after the group's committed "
        "offsets are sent again, with their ids as Idempotency-Key"
    )


def _print_totals(totals: Totals, as_json: bool) -> None:
    counts = {"delivered": totals.delivered, "repeats": totals.repeats, "refused": totals.refused}
    text = f"{totals.delivered:,} delivered, {totals.repeats:,} repeats dropped, {totals.refused:,} refused"
    click.echo(json.dumps(counts) if as_json else text)


def _list_refused(path: Path, topic: str, as_json: bool) -> None:
    refusals: list[Refusal] = []
    if path.exists():
        try:
            with contextlib.closing(DeliveryNotes(path, topic)) as notes:
                refusals = [one for one in notes.refusals() if one.topic == topic]
        except sqlite3.Error as error:
            raise _unusable(path, error) from None
    if as_json:
        print_json({"refused": [one.as_json() for one in refusals]})
        return
    for one in refusals:
        click.echo(f"{one.topic}-{one.partition} at offset {one.offset}: {one.reason}")
        for part in (one.response, (one.value or b"").decode(errors="backslashreplace")):
            if part:
                click.echo(f"    {part}")


async def _deliver(deliverer: Deliverer, topic: str, client: Mapping[str, str], until_idle: bool) -> None:
    settings = {
        **client,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
    }
    async with Consumer(Runtime.system(), settings) as consumer:
        await consumer.subscribe([topic], deliverer)

        async def is_at_end() -> bool:
            """Whether this member has partitions and has read all of them to their end."""
            ends = await consumer.end_offsets(consumer.assignment())
            return bool(ends) and all([await consumer.position(one) >= end for one, end in ends.items()])

        try:
            await deliverer.run(consumer, until=is_at_end if until_idle else None)
        finally:
            await consumer.close(leave_group=True)
