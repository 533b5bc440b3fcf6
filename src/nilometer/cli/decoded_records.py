"""Records with keys and values by the schemas of a registry, for ``nilometer consume --registry``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from nilometer.cli.process import printable
from nilometer.cli.record_format import Formatter, Render
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.schema_registry.client import SchemaRegistry
from nilometer.schema_registry.decoding import Decoded, Decoding, NotDecoded


def by_registry(formatter: Formatter, registry: SchemaRegistry) -> Render:
    """Return what formats records whose keys and values are JSON, if they name a schema.

    What cannot be decoded stays as it is, and standard error has the reason. Raises ClickException if
    the registry does not answer.
    """
    decoding = Decoding(registry)

    def decoded(records: Sequence[ConsumerRecord]) -> bytes:
        found = decoding.decode([part for record in records for part in (record.key, record.value)])
        return b"".join(
            formatter(
                record._replace(
                    key=_shown(record, "key", record.key, key),
                    value=_shown(record, "value", record.value, value),
                )
            )
            for record, key, value in zip(records, found[::2], found[1::2], strict=True)
        )

    async def render(records: Sequence[ConsumerRecord]) -> bytes:
        return await asyncio.to_thread(decoded, records)

    return render


def _shown(
    record: ConsumerRecord, field: str, data: bytes | None, found: Decoded | NotDecoded | None
) -> bytes | None:
    if isinstance(found, Decoded):
        return found.content
    if found is not None:
        if found.error is not None:
            raise click.ClickException(f"--registry: {found.reason}")
        place = f"{record.topic}-{record.partition} at offset {record.offset}"
        click.echo(printable(f"The {field} of {place} is not decoded: {found.reason}"), err=True)
    return data
