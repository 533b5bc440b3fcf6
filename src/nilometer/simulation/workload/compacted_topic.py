"""A client that repeatedly writes values to a few keys of a compacted topic, and deletes some keys.

At the end a reader from the start must find the last acknowledged value of each key, or no value if that was
a deletion: no newest value is lost, and no older one reappears. A write with an unknown outcome may be
executed at any time, so its value is allowed from then on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.workload.admin_programs import AdminProgram
from nilometer.simulation.world import Host
from nilometer.wire.errors import KafkaError

NAME = "compacted"
PARTITION = TopicPartition(NAME, 0)
REPLICAS = 3
KEYS = 8
WRITES_MAX = 40
"""The limit of one step."""
DELETED_OF = 7
POLL_MS = 500
READS_MAX = 60
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1500",
    "segment.ms": "5000",
    "min.cleanable.dirty.ratio": "0.1",
    "min.insync.replicas": "2",
    # Longer than any replica is down: a replica that misses a tombstone would make the key reappear.
    "delete.retention.ms": "120000",
}


class CompactedTopicWriter(AdminProgram):
    gap_s = (0.0, 2.0)

    def __init__(self, host: Host, bootstrap_servers: str, *, flush_each: bool) -> None:
        super().__init__("compactor", host, bootstrap_servers)
        self.violations: list[str] = []
        self.written = 0
        self.producers = 0
        self.is_created = False
        self._configs = CONFIGS | ({"flush.messages": "1"} if flush_each else {})
        self.acknowledged: dict[str, str | None] = {}
        """The last acknowledged value of each key; None: its deletion."""
        self.uncertain: defaultdict[str, set[str | None]] = defaultdict(set)
        """Values of each key with an unknown outcome."""

    def judge(self, table: Mapping[str, str]) -> list[str]:
        """Return the errors in ``table``, the keys and values read from the whole topic."""
        wrong: list[str] = []
        for key, value in sorted(self.acknowledged.items()):
            found = table.get(key)
            if found != value and found not in self.uncertain[key]:
                was = "its deletion" if value is None else value
                wrong.append(f"compaction: key {key} has {found}; acknowledged last was {was}")
        unknown = sorted(key for key in table if key not in self.acknowledged and key not in self.uncertain)
        return wrong + [f"compaction: key {key} was never written" for key in unknown]

    async def _main(self, runtime: Runtime) -> None:
        await super()._main(runtime)
        for _ in range(READS_MAX if self.is_created else 0):
            try:
                self.violations += self.judge(await self._read(runtime))
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(1)
            else:
                return
        if self.is_created:
            self.violations.append("compaction: the topic cannot be read")

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        if not self.is_created:
            await admin.ensure_topic(NewTopic(NAME, 1, REPLICAS, self._configs))
            self.is_created = True
        settings = {
            "bootstrap.servers": self._settings["bootstrap.servers"],
            "client.id": self.name,
            "acks": "all",
            "delivery.timeout.ms": 20_000,
            "request.timeout.ms": 10_000,
            "max.block.ms": 20_000,
            "allow.auto.create.topics": False,
        }
        self.producers += 1
        async with Producer(runtime, settings) as producer:
            for _ in range(1 + runtime.entropy.below(WRITES_MAX)):
                await self._write(runtime, producer)

    async def _write(self, runtime: Runtime, producer: Producer) -> None:
        self.written += 1
        key = f"key{runtime.entropy.below(KEYS)}"
        value = None if runtime.entropy.below(DELETED_OF) == 0 else f"{self.written}"
        payload = None if value is None else value.encode()
        try:
            await (await producer.send(NAME, payload, key=key.encode(), partition=0))
        except BaseException:
            self.uncertain[key].add(value)
            raise
        self.acknowledged[key] = value

    async def _read(self, runtime: Runtime) -> Mapping[str, str]:
        table: dict[str, str] = {}
        settings = {**self._settings, "auto.offset.reset": "earliest", "allow.auto.create.topics": False}
        async with Consumer(runtime, settings) as consumer:
            consumer.assign([PARTITION])
            consumer.seek_to_beginning(PARTITION)
            ends = await consumer.end_offsets([PARTITION])
            while await consumer.position(PARTITION) < ends[PARTITION]:
                for record in await consumer.poll(timeout_ms=POLL_MS):
                    key = (record.key or b"").decode()
                    if record.value is None:
                        table.pop(key, None)
                    else:
                        table[key] = record.value.decode()
        return table
