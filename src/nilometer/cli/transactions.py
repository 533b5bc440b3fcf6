"""``nilometer transaction``: list, describe and abort transactions, and find hanging ones.

Transactions are printed as tables, or as JSON documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, TypeVar

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import run_with_admin, say_if_hidden
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    yes_option,
)
from nilometer.cli.commands import INT64, OFFSET, PARTITION, Seconds
from nilometer.cli.groups import finish
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.transaction_admin import (
    ActiveProducer,
    OpenTransaction,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import KafkaError

# Transactions as tables, and as JSON documents.


def listing_document(one: TransactionListing) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state,
        "producer_id": one.producer_id,
        "coordinator": one.coordinator_id,
    }


def transaction_document(one: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state,
        "coordinator": one.coordinator_id,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_ms": one.timeout_ms,
        "start_ms": one.start_ms,
        "partitions": [{"topic": topic, "partition": number} for topic, number in one.partitions],
    }


def producer_document(one: ActiveProducer) -> dict[str, Any]:
    return {
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "last_sequence": one.last_sequence,
        "last_timestamp_ms": one.last_timestamp_ms,
        "start_offset": one.start_offset,
    }


def hanging_document(one: OpenTransaction) -> dict[str, Any]:
    topic, number = one.partition
    return {"topic": topic, "partition": number, **producer_document(one.producer)}


def print_descriptions(found: Sequence[TransactionDescription]) -> None:
    columns = ("transactional id", "state", "coordinator", "producer id", "epoch", "time-out", "open since")
    rows = [
        (
            one.transactional_id,
            one.state,
            one.coordinator_id,
            one.producer_id,
            one.producer_epoch,
            f"{one.timeout_ms} ms",
            _time(one.start_ms),
        )
        for one in found
    ]
    print_table(columns, rows)
    for one in found:
        if one.partitions:
            click.echo(f"{one.transactional_id}: {', '.join(map(str, one.partitions))}")


def print_producers(found: Sequence[ActiveProducer]) -> None:
    columns = (
        "producer id",
        "epoch",
        "coordinator epoch",
        "last sequence",
        "last record",
        "transaction begins at",
    )
    rows = [
        (
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.last_sequence,
            _time(one.last_timestamp_ms),
            one.start_offset,
        )
        for one in found
    ]
    print_table(columns, rows)


def print_hanging(found: Sequence[OpenTransaction]) -> None:
    if not found:
        click.echo("No hanging transactions.")
        return
    columns = (
        "topic",
        "partition",
        "start offset",
        "producer id",
        "epoch",
        "coordinator epoch",
        "last record",
    )
    rows = [
        (
            *one.partition,
            one.producer.start_offset,
            one.producer.producer_id,
            one.producer.producer_epoch,
            one.producer.coordinator_epoch,
            _time(one.producer.last_timestamp_ms),
        )
        for one in found
    ]
    print_table(columns, rows)


def _time(milliseconds: int | None) -> str:
    if milliseconds is None or milliseconds < 0:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="seconds")


# The commands.

DEFAULT_OLDER_THAN_S = 15 * 60
"""The default of the brokers' ``transaction.max.timeout.ms``: coordinators abort older transactions."""

T = TypeVar("T")
_older_than_option = click.option(
    "--older-than",
    "older_than_s",
    type=Seconds(),
    default=DEFAULT_OLDER_THAN_S,
    show_default=True,
    metavar="SECONDS",
    help="Only transactions whose last record is older: more than the brokers' transaction.max.timeout.ms.",
)
Hanging = tuple[list[OpenTransaction], dict[TopicPartition, KafkaError]]


@commands.group()
def transaction() -> None:
    """List, describe and abort transactions, and find those that hang: no coordinator will end them."""


@transaction.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only in this state; repeatable.")
@click.option(
    "--producer-id", "producer_ids", type=INT64, multiple=True, help="Only of this producer id; repeatable."
)
@click.option(
    "--longer-than",
    "longer_than_s",
    type=Seconds(),
    metavar="SECONDS",
    help="Only transactions that have been open for longer.",
)
@click.option("--pattern", default="", metavar="REGEX", help="Only ids that match as a whole.")
@json_option
@connection_options
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_s: float | None,
    pattern: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    """List transactional ids with their state, producer id and coordinator."""
    _check_pattern(pattern)
    longer_than_ms = None if longer_than_s is None else round(longer_than_s * 1000)

    async def work(admin: Admin, transactions: TransactionAdmin) -> list[TransactionListing]:
        listed = await transactions.list_transactions(
            states, producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
        )
        if not listed:
            await say_if_hidden(admin, "transactional id")
        return listed

    found = run_with_admin(bootstrap, TransactionAdmin, work)
    if as_json:
        print_json({"transactions": [listing_document(one) for one in found]})
        return
    rows = [(one.transactional_id, one.state, one.producer_id, one.coordinator_id) for one in found]
    print_table(("transactional id", "state", "producer id", "coordinator"), rows)


def _check_pattern(pattern: str) -> None:
    """Raise UsageError for a regular expression that brokers cannot compile."""
    re2: Any = import_module("re2")
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise click.UsageError(f"--pattern: {pattern!r} is not a regular expression: {error}") from None


@transaction.command()
@click.argument("ids", nargs=-1, required=True, metavar="TRANSACTIONAL_ID…")
@json_option
@connection_options
def describe(ids: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """Show the state, producer, timeout, start and partitions of transactional ids."""
    outcomes = run_with_admin(bootstrap, TransactionAdmin, lambda _, admin: admin.describe(ids))
    found = [one for one in outcomes.values() if not isinstance(one, KafkaError)]
    if as_json:
        print_json({"transactions": [transaction_document(one) for one in found]})
    else:
        print_descriptions(found)
    finish({f"transactional id {name}": one for name, one in outcomes.items() if isinstance(one, KafkaError)})


@transaction.command()
@click.argument("topic")
@click.argument("partition", type=PARTITION)
@json_option
@connection_options
def producers(topic: str, partition: int, as_json: bool, bootstrap: str) -> None:
    """Show the producers that the leader of a partition knows, and where their transactions begin."""
    place = TopicPartition(topic, partition)
    found = run_with_admin(bootstrap, TransactionAdmin, lambda _, admin: _producers(admin, place))
    if as_json:
        print_json({"producers": [producer_document(one) for one in found]})
    else:
        print_producers(found)


async def _producers(admin: TransactionAdmin, partition: TopicPartition) -> list[ActiveProducer]:
    outcome = (await admin.producers([partition]))[partition]
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


@transaction.command()
@click.argument("transactional_id", required=False)
@click.option("--topic", help="The topic of a hanging transaction.")
@click.option("--partition", type=PARTITION, help="The partition of a hanging transaction.")
@click.option("--start-offset", type=OFFSET, help="Its first offset, as find-hanging shows it.")
@_older_than_option
@click.option(
    "--force",
    is_flag=True,
    help="Abort although the producer may still be there: what it wrote is lost, and it is told so too late "
    "or never.",
)
@yes_option
@json_option
@connection_options
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    older_than_s: float,
    force: bool,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Abort a hanging transaction by its first offset; with --force any other one, too.

    With --topic, --partition and --start-offset an abort marker is written to that partition alone, if
    `find-hanging` shows the transaction. A live one is refused without --force. With TRANSACTIONAL_ID and
    --force its coordinator aborts it everywhere, and its producer is fenced.
    """
    place = (topic, partition, start_offset)
    if transactional_id is not None:
        if any(one is not None for one in place):
            raise click.UsageError(
                "give TRANSACTIONAL_ID alone, or --topic, --partition and --start-offset without it"
            )
        _fence(bootstrap, transactional_id, force=force, yes=yes)
        text = f"The producer of {transactional_id} is fenced, and its open transaction aborted."
        _print_aborted(transactional_id, None, None, text, as_json)
        return
    if topic is None or partition is None or start_offset is None:
        raise click.UsageError("give TRANSACTIONAL_ID, or all of --topic, --partition and --start-offset")
    where = TopicPartition(topic, partition)
    producer = run_with_admin(
        bootstrap, TransactionAdmin, lambda _, admin: _open_at(admin, where, start_offset)
    )
    if not force and not run_with_admin(
        bootstrap, TransactionAdmin, lambda _, admin: _hangs(admin, where, producer, older_than_s)
    ):
        raise click.ClickException(
            f"The transaction at offset {start_offset} of {where} does not hang: its coordinator has it and "
            f"will end it, or its last record is younger than {older_than_s:g} s. Nothing was aborted. "
            "--force aborts it all the same: its producer may then commit, and what it wrote here is lost."
        )
    lost = f"the records of producer {producer.producer_id} in {where} from offset {start_offset} on"
    confirm("Abort this transaction?", [lost], yes=yes)
    run_with_admin(bootstrap, TransactionAdmin, lambda _, admin: _abort_at(admin, where, producer))
    text = f"Aborted the transaction that begins at offset {start_offset} of {where}."
    _print_aborted(None, where, start_offset, text, as_json)


def _fence(bootstrap: str, transactional_id: str, *, force: bool, yes: bool) -> None:
    """Fence a producer, if ``force`` says so. Raises KafkaError, ClickException."""
    found = run_with_admin(bootstrap, TransactionAdmin, lambda _, admin: admin.describe([transactional_id]))[
        transactional_id
    ]
    if isinstance(found, KafkaError):
        raise found
    is_open = found.start_ms is not None
    if not force:
        state = (
            f"is {found.state}, and its producer or its coordinator will end it"
            if is_open
            else f"has no open transaction (it is {found.state})"
        )
        raise click.ClickException(
            f"{transactional_id} {state}. Nothing was aborted. --force fences its producer and aborts what "
            "is open; `nilometer transaction find-hanging` shows transactions that no coordinator will end."
        )
    lost = [f"the records of its open transaction in {one}" for one in found.partitions]
    fenced = f"the producer of {transactional_id} is fenced: if it runs, it fails"
    confirm("Fence this producer?", [fenced, *lost], yes=yes)
    run_with_admin(bootstrap, TransactionAdmin, lambda _, admin: admin.fence(transactional_id))


def _print_aborted(
    transactional_id: str | None,
    place: TopicPartition | None,
    start_offset: int | None,
    text: str,
    as_json: bool,
) -> None:
    if not as_json:
        click.echo(text)
        return
    print_json(
        {
            "transactional_id": transactional_id,
            "topic": None if place is None else place.topic,
            "partition": None if place is None else place.partition,
            "start_offset": start_offset,
        }
    )


async def _open_at(admin: TransactionAdmin, partition: TopicPartition, start_offset: int) -> ActiveProducer:
    """Return the producer whose open transaction begins at ``start_offset``. Raises ClickException if none
    does."""
    found = await _producers(admin, partition)
    producer = next((one for one in found if one.start_offset == start_offset), None)
    if producer is None:
        begin = sorted(one.start_offset for one in found if one.start_offset is not None)
        open_ones = f"open ones begin at {', '.join(map(str, begin))}" if begin else "none is open there"
        raise click.ClickException(
            f"No open transaction begins at offset {start_offset} of {partition}: {open_ones}"
        )
    return producer


async def _abort_at(admin: TransactionAdmin, partition: TopicPartition, producer: ActiveProducer) -> None:
    """Abort the transaction if it is still there. Raises KafkaError, ClickException."""
    assert producer.start_offset is not None, "it was open"
    found = await _open_at(admin, partition, producer.start_offset)
    await admin.abort(partition, found)


async def _hangs(
    admin: TransactionAdmin, partition: TopicPartition, producer: ActiveProducer, older_than_s: float
) -> bool:
    found, problems = await admin.find_hanging([partition], round(older_than_s * 1000))
    for error in problems.values():
        raise error
    return OpenTransaction(partition, producer).key in {one.key for one in found}


@transaction.command("find-hanging")
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable. [default: all topics]")
@click.option("--partition", type=PARTITION, help="Only this partition of the one --topic.")
@_older_than_option
@json_option
@connection_options
def find_hanging(
    topics: tuple[str, ...], partition: int | None, older_than_s: float, as_json: bool, bootstrap: str
) -> None:
    """Find transactions that are open in a partition but unknown to their coordinator.

    They never end, and readers with isolation.level=read_committed stop before them. Abort one with
    `nilometer transaction abort --topic … --partition … --start-offset …`. The exit code is 1 if
    requests for some partitions failed.
    """
    if partition is not None and len(topics) != 1:
        raise click.UsageError("--partition needs exactly one --topic")

    async def work(admin: Admin, transactions: TransactionAdmin) -> Hanging:
        places = await _places(admin, topics, partition)
        if not places:
            await say_if_hidden(admin, "topic")
        return await transactions.find_hanging(places, round(older_than_s * 1000))

    found, problems = run_with_admin(bootstrap, TransactionAdmin, work)
    if as_json:
        print_json({"hanging": [hanging_document(one) for one in found]})
    else:
        print_hanging(found)
    finish({str(place): error for place, error in problems.items()})


async def _places(admin: Admin, topics: tuple[str, ...], partition: int | None) -> list[TopicPartition]:
    """Return the partition, or all partitions of ``topics`` (of every topic if there are none). Raises
    KafkaError if listing the topics failed, ClickException if a topic does not exist."""
    if partition is not None:
        return [TopicPartition(topics[0], partition)]
    known = await admin.list_topics()
    missing = [name for name in topics if name not in known]
    if missing:
        raise click.ClickException(f"There is no topic {', '.join(missing)}")
    return [
        TopicPartition(name, part.partition) for name in topics or known for part in known[name].partitions
    ]
