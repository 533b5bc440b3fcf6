"""``nilometer produce``: sends the lines of standard input as records."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

import click

from nilometer.cli.cluster_options import bootstrap_option, json_option, parse_pairs, print_json, run_async
from nilometer.cli.records.standard_input import input_lines
from nilometer.client.producer.delivery import Delivery
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.producer_keys import COMPRESSION_TYPES
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError


@dataclass(slots=True)
class _Outcome:
    partitions: Counter[int] = field(default_factory=Counter[int])
    failed: int = 0
    first_error: KafkaError | None = None

    def count(self, delivery: Delivery) -> None:
        try:
            self.partitions[delivery.result().partition] += 1
        except KafkaError as error:
            self.failed += 1
            if self.first_error is None:
                self.first_error = error


@click.command()
@click.argument("topic")
@click.option(
    "--key-separator", metavar="TEXT", help="The text before TEXT in a line is the key (\\t is a tab)."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    help="A header for every record; repeatable.",
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Write every record to this partition. Keys do not choose the partition.",
)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option("--compression", type=click.Choice(COMPRESSION_TYPES), default="none", show_default=True)
@click.option(
    "-X",
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A producer setting; repeatable.",
)
@json_option
@bootstrap_option
def produce(
    topic: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    acks: str,
    compression: str,
    properties: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write the lines of standard input to TOPIC, each as a record."""
    separator = key_separator.replace("\\t", "\t").encode() if key_separator is not None else None
    if separator == b"":
        raise click.UsageError("--key-separator must not be empty")
    pairs = [(name, value.encode()) for name, value in parse_pairs(headers, "--header").items()]
    config = {
        "bootstrap.servers": bootstrap,
        "acks": acks,
        "compression.type": compression,
        **parse_pairs(properties, "--property"),
    }
    outcome = run_async(_produce(topic, separator, pairs, partition, config))
    _report(topic, outcome, as_json)


async def _produce(
    topic: str,
    separator: bytes | None,
    headers: list[tuple[str, bytes]],
    partition: int | None,
    config: dict[str, str],
) -> _Outcome:
    outcome = _Outcome()
    number = 0
    async with Producer(Runtime.system(), config) as producer:
        async for lines in input_lines():
            for line in lines:
                number += 1
                key, value = _key_and_value(line, separator, number)
                delivery = await producer.send(topic, value, key=key, headers=headers, partition=partition)
                delivery.add_done_callback(outcome.count)
        await producer.flush()
    return outcome


def _key_and_value(line: bytes, separator: bytes | None, number: int) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise click.ClickException(
            f"line {number} of the input has no key: {separator.decode()!r} is not in it"
        )
    return key, value


def _report(topic: str, outcome: _Outcome, as_json: bool) -> None:
    written = outcome.partitions.total()
    if as_json:
        partitions = {str(number): count for number, count in sorted(outcome.partitions.items())}
        print_json({"topic": topic, "records": written, "failed": outcome.failed, "partitions": partitions})
    elif sys.stderr.isatty():
        click.echo(f"{written:,} records written to {topic}.", err=True)
    if outcome.first_error is not None:
        raise click.ClickException(f"{outcome.failed:,} records were not written: {outcome.first_error}")
