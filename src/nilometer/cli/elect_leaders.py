"""``nilometer elect-leaders``: elects the preferred replicas; or uncleanly, any live one, losing records.

The exit code is 1 if the election of a requested partition failed. A partition that needs no election is not
an error.
"""

from __future__ import annotations

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    print_json,
    run_async,
    yes_option,
)
from nilometer.cli.commands import PARTITION
from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.replicas.reassignments import ElectionType, PartitionOutcomes
from nilometer.client.replicas.reassignments import elect_leaders as ask_to_elect
from nilometer.wire.errors import ErrorCode, KafkaError


@commands.command("elect-leaders")
@click.option(
    "--preferred",
    "kind",
    flag_value="PREFERRED",
    default="PREFERRED",
    help="Elect the preferred replica, the first one of the assignment (default).",
)
@click.option(
    "--unclean",
    "kind",
    flag_value="UNCLEAN",
    help="Elect any live replica where no eligible one is left. Records can be lost.",
)
@click.option("--topic", "topics", multiple=True, help="All partitions of this topic; repeatable.")
@click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    help="Only this partition of the one --topic; repeatable.",
)
@click.option("--all", "elect_all", is_flag=True, help="Every partition of the cluster.")
@yes_option
@json_option
@connection_options
def elect_leaders(
    kind: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    elect_all: bool,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Elect partition leaders."""
    if bool(topics) == elect_all:
        raise click.UsageError("give either --topic or --all")
    if partitions and len(topics) != 1:
        raise click.UsageError("--partition goes with one --topic")

    async def look() -> list[TopicPartition] | None:
        async with admin_of(bootstrap) as admin:
            return None if elect_all else await _partitions(admin, topics, partitions)

    async def work() -> PartitionOutcomes:
        async with admin_of(bootstrap) as admin:
            return await ask_to_elect(admin, ElectionType[kind], wanted)

    wanted = run_async(look())
    if ElectionType[kind] is ElectionType.UNCLEAN:
        lost = ["every partition without a leader"] if wanted is None else wanted
        confirm(
            "Elect replicas that may lack records?",
            [f"records of {one} can be lost" for one in lost],
            yes=yes,
        )
    outcomes = run_async(work())
    if as_json:
        print_json({"partitions": [_document(key, outcomes[key]) for key in sorted(outcomes)]})
    else:
        _tell(outcomes)
    if any(error is not None and not _is_needless(error) for error in outcomes.values()):
        raise click.exceptions.Exit(1)


async def _partitions(
    admin: Admin, topics: tuple[str, ...], partitions: tuple[int, ...]
) -> list[TopicPartition]:
    """Return the chosen partitions (empty: all) of ``topics``. Raises KafkaError for a missing topic."""
    found: list[TopicPartition] = []
    for name, topic in (await admin.describe_topics(topics)).items():
        if isinstance(topic, KafkaError):
            raise topic
        numbers = partitions or tuple(part.partition for part in topic.partitions)
        found.extend(TopicPartition(name, number) for number in numbers)
    return found


def _is_needless(error: KafkaError) -> bool:
    return error.code == ErrorCode.election_not_needed


def _tell(outcomes: PartitionOutcomes) -> None:
    elected = [key for key, error in outcomes.items() if error is None]
    for key in sorted(elected):
        click.echo(f"{key} has a new leader.")
    for key, error in sorted(outcomes.items()):
        if error is not None and not _is_needless(error):
            click.echo(f"Error: {key}: {error}", err=True)
    if needless := sum(error is not None and _is_needless(error) for error in outcomes.values()):
        click.echo(f"{needless} of {len(outcomes)} partitions needed no election.")
    if not outcomes:
        click.echo("No partition needed an election.")


def _document(key: TopicPartition, error: KafkaError | None) -> dict[str, object]:
    needless = error is not None and _is_needless(error)
    return {
        "topic": key.topic,
        "partition": key.partition,
        "elected": error is None,
        "error": None if error is None or needless else str(error),
    }
