"""Apicurio Registry with its KafkaSQL storage: what it knows is in a compacted topic, and nowhere else.

Its database is in memory: a registry that starts again reads its journal from the first record. It gives each
record of the journal a key of its own, so that compaction keeps them all.
"""

from __future__ import annotations

import http.client
import io
import json
import struct
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import fastavro
import pytest

from nilometer.pipeline.tables.avro_values import (
    avro_decoder,
    newest_schema,
    parse_avro_schema,
    read_schemas,
    registry_at,
    schema_ids,
)
from nilometer.pipeline.tables.values import RejectedValue
from support.applications.application import WAIT_S, Application
from support.brokers.nilometer_cluster import NilometerCluster
from support.kafka.apache_kafka import JAVA_PROJECT, JVM_FOR_SECONDS
from support.ports import HOST, free_ports

pytestmark = [pytest.mark.java, pytest.mark.application]

APICURIO = JAVA_PROJECT / "target" / "apicurio"
JOURNAL = "kafkasql-journal"
REQUEST_TIMEOUT_S = 60.0


class Registry:
    """Speaks the interface that Confluent's serializers use, which Apicurio serves too."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        port = free_ports(1)[0]
        self.address = f"http://{HOST}:{port}/apis/ccompat/v7"
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(port),
            "apicurio.storage.kind": "kafkasql",
            "apicurio.storage.snapshot.location": str(folder),
            "apicurio.kafkasql.bootstrap.servers": bootstrap,
            "apicurio.kafkasql.topic": JOURNAL,
            "apicurio.datasource.jdbc.initial-size": "2",
            "apicurio.datasource.jdbc.min-size": "2",
        }
        [jar] = APICURIO.glob("*-runner.jar")
        options = [f"-D{key}={value}" for key, value in settings.items()]
        command = ["java", *JVM_FOR_SECONDS, *options, "-jar", str(jar)]
        self.application = Application(command, folder / "registry.out")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def register(self, subject: str, schema: str) -> int:
        """The schema's id. The same schema gets the same id again, so that a failed call may be repeated."""
        ids: list[int] = []

        def is_registered() -> bool:
            try:
                ids.append(self._ask("POST", f"/subjects/{subject}/versions", {"schema": schema})["id"])
            except urllib.error.HTTPError as refused:
                assert refused.code >= 500, refused.read().decode(errors="replace")
                return False
            except (OSError, http.client.HTTPException):  # not yet listening
                return False
            return True

        self.application.wait_until(is_registered, f"{subject} is registered")
        return ids[-1]

    def schemas(self, subject: str) -> list[str]:
        versions = self._ask("GET", f"/subjects/{subject}/versions")
        return [self._ask("GET", f"/subjects/{subject}/versions/{one}")["schema"] for one in versions]

    def schema(self, schema_id: int) -> str:
        return self._ask("GET", f"/schemas/ids/{schema_id}")["schema"]

    def has(self, schemas: dict[str, list[str]]) -> bool:
        """Return whether it serves each subject of ``schemas`` with these, which it may still be reading."""
        try:
            return all(
                list(map(json.loads, self.schemas(subject))) == list(map(json.loads, texts))
                for subject, texts in schemas.items()
            )
        except (OSError, http.client.HTTPException):  # not yet listening, or a subject is not known yet
            return False


def schema_of(*fields: str) -> str:
    columns = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    return json.dumps({"type": "record", "name": "Row", "fields": columns})


def column_of(subject: str) -> str:
    return subject.replace("-", "_")


def avro_value(schema_id: int, schema: str, row: dict[str, str | None]) -> bytes:
    """Return a value as Confluent's serializers write it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), row)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


def assert_rows_of_a_topic(registry: Registry, topic: str, ids: tuple[int, int]) -> None:
    """The pipeline `table` makes rows of values in both schemas, with the columns of the newest one."""
    client = registry_at(registry.address)
    column = column_of(f"{topic}-value")
    old, new = schema_of(column), schema_of(column, "more")
    first = avro_value(ids[0], old, {column: "a"})
    second = avro_value(ids[1], new, {column: "b", "more": "c"})
    unknown = avro_value(9999, old, {column: "a"})
    written_with = read_schemas(schema_ids([first, second, unknown]), client)
    decode = avro_decoder(parse_avro_schema(newest_schema(topic, client)), written_with)
    assert decode(first) == {column: "a", "more": None}
    assert decode(second) == {column: "b", "more": "c"}
    with pytest.raises(RejectedValue, match="schema 9999 of the registry: the registry does not have it"):
        decode(unknown)


@pytest.mark.long
def test_a_registry_keeps_its_schemas_in_a_compacted_topic(cluster: NilometerCluster, tmp_path: Path) -> None:
    cluster.create_topic(JOURNAL, configs={"cleanup.policy": "compact"})
    subjects = [*(f"subject_{number}" for number in range(4)), "rows-value"]
    registry = Registry(tmp_path, cluster.bootstrap)
    with registry.application as application:
        before = {name: registry.register(name, schema_of(column_of(name))) for name in subjects}
        cluster.kill(cluster.wait_leader(JOURNAL, timeout_s=WAIT_S))
        after = {name: registry.register(name, schema_of(column_of(name), "more")) for name in subjects}
        assert len({*before.values(), *after.values()}) == 2 * len(subjects)

        assert cluster.topic_setting(JOURNAL, "cleanup.policy") == "compact"

        application.kill()
        cluster.start()
        application.start()
        schemas = {
            name: [schema_of(column_of(name)), schema_of(column_of(name), "more")] for name in subjects
        }
        application.wait_until(lambda: registry.has(schemas), "the registry has all its schemas again")
        for name, texts in schemas.items():
            assert [registry.register(name, one) for one in texts] == [before[name], after[name]]
            assert json.loads(registry.schema(after[name])) == json.loads(texts[1])
        assert_rows_of_a_topic(registry, "rows", (before["rows-value"], after["rows-value"]))
