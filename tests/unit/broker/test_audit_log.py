"""The audit log: equal denials are one line, files rotate, memory is bounded, a failed disk is reported."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from nilometer.broker import audit_log
from nilometer.broker.audit_log import AuditFiles, AuditLog
from nilometer.broker.request_context import RequestContext
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.runtime import Runtime

ALICE = RequestContext(client_address="10.0.0.1", listener="PLAINTEXT")


def log_in(folder: Path, *, bytes_max: int = 10_000, files_max: int = 3) -> AuditLog:
    files = AuditFiles(directory=str(folder), bytes_max=bytes_max, files_max=files_max)
    return AuditLog(Runtime.system(), files)


def deny(log: AuditLog, topic: str) -> None:
    log.denied(ALICE, "FETCH", Operation.READ, ResourceType.TOPIC, topic)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_equal_denials_of_one_interval_are_one_line(tmp_path: Path) -> None:
    log = log_in(tmp_path / "audit")
    for topic in ("a", "b", "a"):
        deny(log, topic)
    log.changed(ALICE, "CREATE_TOPICS", ({"name": str(number)} for number in range(150)))
    asyncio.run(log.flush())
    deny(log, "a")
    asyncio.run(log.flush())
    found = lines(tmp_path / "audit" / "audit.log")
    assert [(line["kind"], line.get("resource", ""), line.get("count", 1)) for line in found] == [
        ("denied", "a", 2),
        ("denied", "b", 1),
        ("changed", "", 150),
        ("denied", "a", 1),
    ]
    assert len(found[2]["changes"]) == audit_log.CHANGES_SHOWN_MAX
    assert found[0]["principal"] == "User:ANONYMOUS"


def test_only_so_many_files_are_kept(tmp_path: Path) -> None:
    log = log_in(tmp_path, bytes_max=1, files_max=3)
    for topic in ("a", "b", "c", "d", "e"):
        deny(log, topic)
        asyncio.run(log.flush())
    names = {path.name: lines(path)[0]["resource"] for path in tmp_path.iterdir()}
    assert names == {"audit.log": "e", "audit.log.1": "d", "audit.log.2": "c"}


def test_what_does_not_fit_into_memory_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "DENIALS_MAX", 2)
    log = log_in(tmp_path)
    for topic in ("a", "b", "c", "d", "a"):
        deny(log, topic)
    asyncio.run(log.flush())
    last = lines(tmp_path / "audit.log")[-1]
    assert (last["kind"], last["count"]) == ("dropped", 2)


def test_lines_are_made_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be ten thousand, of kilobytes each."""
    threads: list[threading.Thread] = []

    def encode(_: object) -> bytes:
        threads.append(threading.current_thread())
        return b"{}"

    monkeypatch.setattr("msgspec.json.encode", encode)
    log = log_in(tmp_path)
    deny(log, "a")
    asyncio.run(log.flush())
    assert lines(tmp_path / "audit.log") == [{}]
    assert threads and threading.main_thread() not in threads


def test_a_failed_disk_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit").write_text("a file, not a folder")
    log = log_in(tmp_path / "audit")
    with caplog.at_level(logging.ERROR):
        for topic in ("a", "b"):
            deny(log, topic)
            asyncio.run(log.flush())
    assert [record.message.startswith("The audit log in") for record in caplog.records] == [True]


def test_denials_leave_room_for_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "DENIALS_MAX", 2)
    log = log_in(tmp_path)
    for topic in ("a", "b", "c"):
        deny(log, topic)
    log.changed(ALICE, "DELETE_TOPICS", [{"name": "a"}])
    asyncio.run(log.flush())
    assert [line["kind"] for line in lines(tmp_path / "audit.log")] == [
        "denied",
        "denied",
        "changed",
        "dropped",
    ]


def test_a_long_name_is_shortened(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    deny(log, "n" * 30_000)
    asyncio.run(log.flush())
    (line,) = lines(tmp_path / "audit.log")
    assert line["resource"] == "n" * audit_log.NAME_SHOWN_MAX + "…"
