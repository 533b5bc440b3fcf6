"""Kafka's command-line tools against a broker, option by option; and the table of them in the documentation.

``docs/compatibility.md`` has a row for each case. With ``WRITE_TABLE=1`` the test of the documentation writes
the rows again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nilometer.identifiers import uuid_to_text
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.authorization.prepared import AUTHORIZER
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side, produce_fields
from support.eventually import eventually
from support.groups.streams_member import StreamsMember
from support.kafka.apache_kafka import kafka_version
from support.kafka.cluster_tool_cases import TRANSACTIONS
from support.kafka.data_tool_cases import STREAMS, STREAMS_WITHOUT_MEMBERS
from support.kafka.java_driver import JavaDriver
from support.kafka.tool_case import CLASSES, ToolCase
from support.kafka.tool_cases import CASES

pytestmark = pytest.mark.java

DOCUMENT = Path(__file__).parents[3] / "docs" / "compatibility.md"
BEGIN, END = "<!-- tools: begin -->\n", "<!-- tools: end -->\n"
LONG_AGO_MS = 1_000_000
SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}
"""Without verification a batch of no transaction is taken: a transaction that hangs."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NilometerBroker]:
    folders = {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"}
    with NilometerBroker(tmp_path / "data", {**SETTINGS, **folders}) as running:
        yield running
        assert "Traceback" not in running.output


def test_tools_option_by_option(broker: NilometerBroker, tmp_path: Path) -> None:
    _write_files(tmp_path)
    places = {"broker": broker.bootstrap, "folder": str(tmp_path)}
    streams_member = StreamsMember(broker.bootstrap, "counters")
    wrong: list[str] = []
    with JavaDriver() as java:
        for case in CASES:
            if "{topic_id}" in case.arguments:
                places.update(_topic_id(broker))
            if case is STREAMS[0]:
                streams_member.commit("tools", 1, streams_member.join(["tools"]))
            if case is STREAMS_WITHOUT_MEMBERS[0]:
                streams_member.leave()
            if case is TRANSACTIONS[0]:
                places.update(_open_hanging_transactions(broker))
            wrong.extend(_wrong(java, case, places))
    assert not wrong, "\n\n".join(wrong)


def _wrong(java: JavaDriver, case: ToolCase, places: dict[str, str]) -> list[str]:
    arguments = [re.sub(r"\{(\w+)\}", lambda found: places[found[1]], each) for each in case.arguments]
    told: dict[str, Any] = java.run(
        "tool", **{"class": CLASSES[case.tool]}, arguments=arguments, input=case.input
    )
    as_wanted = case.status is None or told["status"] == case.status
    if as_wanted and re.search(case.shows, told["output"]):
        return []
    command = f"{case.tool} {' '.join(arguments)}"
    return [f"{command}\nexit {told['status']}, not {case.shows!r} but:\n{told['output'][:1500]}"]


def test_the_documentation_has_every_tool_and_option() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = _table()
    if os.environ.get("WRITE_TABLE"):
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOCUMENT.write_text(before + BEGIN + table + END + after, encoding="utf-8")
        return
    assert text.split(BEGIN)[1].split(END)[0] == table, "write it again: WRITE_TABLE=1"
    assert f"Kafka {kafka_version()}" in text


def _table() -> str:
    rows = ["| tool | asked | outcome |\n", "|---|---|---|\n"]
    for tool in sorted(CLASSES):
        seen: dict[tuple[str, str], None] = {}
        for case in CASES:
            if case.tool == tool:
                seen.setdefault((case.asked, case.refused))
        for asked, refused in seen:
            outcome = f"refused: {refused}" if refused else "works"
            rows.append(f"| `{tool}` | {f'`{asked}`' if asked else '(nothing)'} | {outcome} |\n")
    return "".join(rows)


def _write_files(folder: Path) -> None:
    (folder / "topic.properties").write_text("max.message.bytes=2000000\n")
    (folder / "client.properties").write_text("client.id=tools\n")
    (folder / "offsets.csv").write_text("tools,2,1\n")
    files: dict[str, object] = {
        "delete": {"partitions": [{"topic": "tools", "partition": 0, "offset": 1}], "version": 1},
        "elect": {"partitions": [{"topic": "tools", "partition": 0}]},
        "move": {"topics": [{"topic": "tools"}], "version": 1},
        "reassign": {"partitions": [{"topic": "tools", "partition": 0, "replicas": [1]}], "version": 1},
    }
    for name in ("one", "two"):
        replica = {"topic": "tools", "partition": 0, "replicas": [1], "log_dirs": [str(folder / name)]}
        files[f"to-{name}"] = {"partitions": [replica], "version": 1}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def _topic_id(broker: NilometerBroker) -> dict[str, str]:
    side = Side("Nilometer", broker.bootstrap)
    try:
        topics = side.message(ApiKey.METADATA, 12, topics=None).topics
        [topic_id] = [topic.topic_id for topic in topics if topic.name == "tools"]
        return {"topic_id": uuid_to_text(topic_id)}
    finally:
        side.hang_up()


def _open_hanging_transactions(broker: NilometerBroker) -> dict[str, str]:
    """In two partitions of ``tools``, of a producer that no transaction coordinator knows."""
    side = Side("Nilometer", broker.bootstrap)
    try:
        producer = side.message(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=1_000
        )
        places = {"hanging_producer": str(producer.producer_id)}
        for partition in (1, 0):
            builder = BatchBuilder()
            builder.append(LONG_AGO_MS, None, b"hanging")
            records = builder.build(0, producer.producer_id, producer.producer_epoch, 0, transactional=True)
            fields = produce_fields(11, "tools", {partition: records}, -1, "no-such-id")

            def is_appended(fields: dict[str, Any] = fields) -> bool:
                answer = side.message(ApiKey.PRODUCE, 11, **fields)
                [outcome] = answer.responses[0].partition_responses
                places["hanging"] = str(outcome.base_offset)
                return outcome.error_code is ErrorCode.none

            eventually(is_appended, "the broker takes the batch")
        return places
    finally:
        side.hang_up()
