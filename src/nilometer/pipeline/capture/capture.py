"""Runs a capture: prepares the database, has a worker run the connector, and watches it.

Invariants: what the worker has stored in the cluster is the only position of a capture; a capture continues
there or not at all. It begins with all rows of the table.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nilometer.pipeline.capture.jars import downloaded_jars
from nilometer.pipeline.capture.mysql import CONNECTORS, MysqlSource
from nilometer.pipeline.capture.postgres import PostgresSource
from nilometer.pipeline.capture.source import PASSWORD, Position, Source
from nilometer.pipeline.capture.worker import TOPIC_ID, Worker, causes, state_topic
from nilometer.pipeline.errors import PipelineError

WATCH_S = 1.0
RESTARTS_MAX, RESTARTS_S = 3, 600.0
"""So many losses of a transaction within so long are repaired; one more ends the capture."""
RESTART_TIMEOUT_S = 60.0
LOST_TRANSACTION = (
    "ProducerFencedException",
    "InvalidProducerEpochException",
    "InvalidTxnStateException",
    "InvalidPidMappingException",
    "TransactionAbortedException",
)
"""Exceptions of Kafka's producer after the cluster has ended its transaction: the capture, or the machine,
stood still for longer than transaction.timeout.ms. Nothing of such a transaction is committed."""
_NAME = re.compile(r"[a-z0-9_]{1,63}")


def source_of(dsn: str, table: str, name: str | None) -> Source:
    """Return the table of the database that a connection string names. Raises PipelineError."""
    if name is not None and not _NAME.fullmatch(name):
        raise PipelineError(f"--slot {name}: a name is at most 63 characters of a-z, 0-9 and _")
    made = MysqlSource if dsn.partition("://")[0] in CONNECTORS else PostgresSource
    return made(dsn, table, name)


def state_prefix(source: Source) -> str:
    """Return what the names of the topics begin with in which a cluster keeps the capture's state."""
    return state_topic(source.name, "")


def connector_settings(source: Source, topic: str, topic_id: str) -> dict[str, str]:
    """Return the settings of the connector that writes the table's changes to ``topic``."""
    own = source.connector()
    prefix = re.sub(r"\W", r"\\\g<0>", own["topic.prefix"])
    return {
        **own,
        "tasks.max": "1",
        "tombstones.on.delete": "true",
        "skipped.operations": "none",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        "topic.creation.default.replication.factor": "-1",
        "topic.creation.default.partitions": "-1",
        "poll.interval.ms": "100",
        "max.queue.size.in.bytes": str(64 * 1024 * 1024),
        "heartbeat.interval.ms": "2000",
        "topic.heartbeat.prefix": state_topic(source.name, "heartbeat"),
        "transforms": "topic",
        "transforms.topic.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.topic.regex": rf"{prefix}\..*",
        "transforms.topic.replacement": topic,
        TOPIC_ID: topic_id,
    }


def run(
    source: Source,
    topic: str,
    topic_id: str,
    client: Mapping[str, str],
    log: Path,
    jars: Path | None,
    *,
    available_now: bool,
    on_running: Callable[[], None],
    on_restart: Callable[[str], None],
) -> None:
    """Capture until interrupted, or until all changes that exist now are in ``topic``.

    ``on_running`` is called when the connector runs, ``on_restart`` with the reason when it runs again from
    its stored position. Raises PipelineError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    jars = jars or downloaded_jars(source.coordinate)
    with Worker(source.name, jars, client, {PASSWORD: source.password}, log) as worker:
        worker.run({**connector_settings(source, topic, topic_id), **worker.history()})
        until, is_running = None, False
        restarts: list[float] = []
        while True:
            if (failure := worker.failure()) is not None:
                now = time.monotonic()
                restarts = [at for at in restarts if now - at < RESTARTS_S]
                if len(restarts) == RESTARTS_MAX or not any(one in failure for one in LOST_TRANSACTION):
                    raise PipelineError(_explained(source, topic, failure, log))
                restarts.append(now)
                on_restart(causes(failure)[-1])
                worker.restart_failed()
                _wait_restarted(worker, failure)
            if not is_running and worker.runs():
                is_running = True
                on_running()
                until = source.now() if available_now else None
            if until is not None and _has_reached(source, worker.offset(), until):
                return
            time.sleep(WATCH_S)


def _wait_restarted(worker: Worker, failure: str) -> None:
    """Wait until the worker no longer shows ``failure``. Raises PipelineError."""
    deadline = time.monotonic() + RESTART_TIMEOUT_S
    while worker.failure() == failure:
        if time.monotonic() > deadline:
            raise PipelineError(f"Kafka Connect does not restart the capture after: {causes(failure)[-1]}")
        time.sleep(WATCH_S)


def _has_reached(source: Source, offset: Mapping[str, Any] | None, until: Position) -> bool:
    """Return whether a stored offset is behind the table's first rows and not before ``until``."""
    return offset is not None and not offset.get("snapshot") and source.position(offset) >= until


def _explained(source: Source, topic: str, failure: str, log: Path) -> str:
    """Return a failure of the connector in words for who can mend it."""
    if "RecordTooLargeException" in failure:
        return (
            f"a row of {source.table} is larger than max.message.bytes of topic {topic}. Raise it and "
            f"start again: nilometer topic alter {topic} --config max.message.bytes=BYTES"
        )
    if (known := source.explain(failure)) is not None:
        return known
    return f"Debezium ended: {': '.join(causes(failure)[-2:])} (log: {log})"
