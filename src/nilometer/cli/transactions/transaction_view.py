"""Prints transactions as tables, and converts them to JSON documents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from nilometer.cli.cluster_options import print_table
from nilometer.client.admin.transaction_admin import (
    ActiveProducer,
    OpenTransaction,
    TransactionDescription,
    TransactionListing,
)


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
