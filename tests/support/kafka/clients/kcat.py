"""kcat, as Debian packages it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .face import DEFAULTS, TIMEOUT_S, Options, Read, Written, ordered


@dataclass
class KcatClient:
    """Debian's kcat, with Debian's librdkafka. It returns no offsets of written records, and reads text."""

    bootstrap: str
    name: str = "kcat"
    _SEPARATOR = "\x1f"
    _END = "\x1e"

    def run(self, *arguments: str, given: bytes | None = None) -> bytes:
        done = subprocess.run(
            ["kcat", "-b", self.bootstrap, *arguments],
            input=given,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"kcat {' '.join(arguments)}: exit {done.returncode}: {done.stderr.decode()}")
        return done.stdout

    def write(
        self, topic: str, records: Sequence[Written], options: Options = DEFAULTS
    ) -> list[tuple[int, int] | None]:
        settings = {
            "topic.partitioner": "murmur2_random",
            "topic.acks": {"all": "-1"}.get(options.acks, options.acks),
            "enable.idempotence": str(options.idempotent and options.acks == "all").lower(),
            "linger.ms": "20",
        }
        if options.max_request_bytes:
            settings["message.max.bytes"] = str(options.max_request_bytes)
        arguments = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
        if options.codec != "none":
            arguments += ["-z", options.codec]
        given = b""
        for record in records:
            if record.partition is not None or record.timestamp is not None or record.headers:
                raise ValueError(
                    "kcat takes one partition, no timestamps and one set of headers for all records"
                )
            given += (
                (record.key or b"") + self._SEPARATOR.encode() + (record.value or b"") + self._END.encode()
            )
        self.run("-P", "-t", topic, "-Z", "-K", self._SEPARATOR, "-D", self._END, *arguments, given=given)
        return [None] * len(records)

    def read(self, topic: str, partitions: int) -> list[Read]:
        printed = self.run("-C", "-t", topic, "-o", "beginning", "-e", "-J")
        return ordered(self._as_read(json.loads(line)) for line in printed.splitlines())

    @staticmethod
    def _as_read(record: dict[str, Any]) -> Read:
        names = record.get("headers", [])
        return Read(
            record["partition"],
            record["offset"],
            _text(record["key"]),
            _text(record["payload"]),
            record["ts"],
            tuple((name, _text(value)) for name, value in zip(names[::2], names[1::2], strict=True)),
        )

    def close(self) -> None:
        pass


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()
