"""The settings that Apache Kafka defines, as a committed file, and as Kafka itself lists them.

`PYTHONPATH=tests python -m support.documentation.kafka_settings` writes the file; it needs `make java`.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import TypedDict

FILE = Path(__file__).with_name("kafka_settings.json")
_JARS = Path(__file__).resolve().parents[2] / "java" / "target" / "kafka"
_PROGRAM = Path(__file__).with_name("KafkaSettings.java")


class KafkaKey(TypedDict):
    default: str | None
    """As text; None if there is none."""
    dynamic: bool


class KafkaSettings(TypedDict):
    version: str
    broker: dict[str, KafkaKey]
    topic: dict[str, KafkaKey]
    group: dict[str, KafkaKey]
    producer: dict[str, KafkaKey]
    consumer: dict[str, KafkaKey]
    admin: dict[str, KafkaKey]


@cache
def kafka_settings() -> KafkaSettings:
    return json.loads(FILE.read_text(encoding="utf-8"))


def settings_of_installed_kafka() -> KafkaSettings:
    """Ask the installed Kafka's classes: one JVM, about two seconds."""
    done = subprocess.run(
        ["java", "-cp", f"{_JARS}/*", str(_PROGRAM)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_text(settings: KafkaSettings) -> str:
    """Return the text of the file: a line for each key, so that another version of Kafka is a short diff."""
    subjects: list[str] = [f'"version": {json.dumps(settings["version"])}']
    for subject, keys in settings.items():
        if isinstance(keys, dict):
            lines = [f"  {json.dumps(name)}: {json.dumps(key)}" for name, key in sorted(keys.items())]
            subjects.append(f"{json.dumps(subject)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(subjects) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(as_text(settings_of_installed_kafka()), encoding="utf-8")
