"""Apache Kafka's own clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..java_driver import JavaDriver, decoded, encoded
from .face import DEFAULTS, Options, Read, Refused, Written, ordered


@dataclass
class JavaClient:
    """Apache Kafka's own clients, through the driver."""

    bootstrap: str
    driver: JavaDriver
    name: str = "java"

    def write(
        self, topic: str, records: Sequence[Written], options: Options = DEFAULTS
    ) -> list[tuple[int, int] | None]:
        config = {
            "bootstrap.servers": self.bootstrap,
            "compression.type": options.codec,
            "acks": options.acks,
            "enable.idempotence": str(options.idempotent and options.acks == "all").lower(),
            "linger.ms": "20",
        }
        if options.max_request_bytes:
            config["max.request.size"] = str(options.max_request_bytes)
        outcomes = self.driver.run(
            "produce",
            config=config,
            records=[
                {
                    "topic": topic,
                    "partition": record.partition,
                    "timestamp": record.timestamp,
                    "key": encoded(record.key),
                    "value": encoded(record.value),
                    "headers": [[name, encoded(value)] for name, value in record.headers],
                }
                for record in records
            ],
        )
        for outcome in outcomes:
            if "error" in outcome:
                raise Refused(outcome["error"])
        return [(each["partition"], each["offset"]) if options.acks != "0" else None for each in outcomes]

    def read(self, topic: str, partitions: int) -> list[Read]:
        found = self.driver.run("consume", config={"bootstrap.servers": self.bootstrap}, topic=topic)
        return ordered(self.as_read(record) for record in found)

    @staticmethod
    def as_read(record: dict[str, Any]) -> Read:
        return Read(
            record["partition"],
            record["offset"],
            decoded(record["key"]),
            decoded(record["value"]),
            record["timestamp"],
            tuple((name, decoded(value)) for name, value in record["headers"]),
        )

    def close(self) -> None:
        pass
