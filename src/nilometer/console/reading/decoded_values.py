"""Keys and values of a page by the schemas of a registry. What one page costs the registry is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.console.views.records import NO_SCHEMAS, WHOLE_BYTES, BySchema
from nilometer.schema_registry.client import SchemaRegistry
from nilometer.schema_registry.decoding import Decoding, Limits

LIMITS = Limits(schemas=20, seconds=5.0, value_bytes=WHOLE_BYTES)
PAGES_MAX = 4
"""How many pages are decoded at once, each in a thread."""


class DecodedValues:
    def __init__(self, registry: SchemaRegistry | None) -> None:
        """``registry``: None to decode nothing."""
        self._decoding = None if registry is None else Decoding(registry)
        self._pages = asyncio.Semaphore(PAGES_MAX)

    async def of(self, records: Sequence[ConsumerRecord]) -> Sequence[BySchema]:
        """Return the key and the value of each record as their schemas say."""
        decoding = self._decoding
        if decoding is None:
            return [NO_SCHEMAS] * len(records)
        data = [part for record in records for part in (record.key, record.value)]
        async with self._pages:
            found = await asyncio.to_thread(decoding.decode, data, LIMITS)
        return list(zip(found[::2], found[1::2], strict=True))
