"""Traces of several lines in one record each: which lines belong together; none is lost or doubled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.ingest import ingest, source_run
from nilometer.client.ingest import ledger as ledger_module
from nilometer.client.ingest.source_run import EventJoiner
from support.ingest.runs import Crash, CrashingDisk, following, ingest_of, lines_in, write_lines
from support.scripted.log_cluster import LogCluster

JAVA = """2024-05-01 10:00:01 ERROR [main] shop.Cart - failed
java.lang.IllegalStateException: the cart is closed
\tat shop.Cart.add(Cart.java:42)
Caused by: java.io.IOException: no route
\t... 12 more"""
PYTHON = """2024-05-01 10:00:02,000 ERROR shop: failed
Traceback (most recent call last):
  File "cart.py", line 3, in add
    raise KeyError(1)
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "cart.py", line 5, in add
shop.errors.CartError: closed"""
DOTNET = """fail: Shop.Cart[0]
      System.InvalidOperationException: closed
         at Shop.Cart.Add() in /src/Cart.cs:line 42
      --- End of stack trace ---"""
GO = """panic: runtime error: index out of range [5] with length 3

goroutine 1 [running]:
main.(*cart).add(0xc000010000, {0x1, 0x2})
\t/app/main.go:12 +0x1d
main.main()
\t/app/main.go:20 +0x1d
exit status 2"""
LINES = ["2024-05-01 10:00:00 INFO started", "", "Error budget: 5 %", "user@host.example (mobile)", "{"]
EVENTS = [*LINES, JAVA, LINES[0], PYTHON, LINES[0], DOTNET, LINES[0], GO, "2024/05/01 10:00:03 restarted"]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def joined(lines: list[bytes], size_max: int = 10_000) -> list[list[bytes]]:
    joiner = EventJoiner()
    events = [done for line in lines if (done := joiner.add(line, size_max))]
    return [*events, *([last] if (last := joiner.take()) else [])]


def test_the_lines_of_a_trace_are_one_event() -> None:
    lines = "\n".join(EVENTS).encode().split(b"\n")
    assert [b"\n".join(event).decode() for event in joined(lines)] == EVENTS


@given(st.lists(st.sampled_from("\n".join(EVENTS).encode().split(b"\n"))), st.integers(0, 200))
def test_no_line_is_lost_doubled_or_moved_and_no_event_is_too_large(lines: list[bytes], size: int) -> None:
    events = joined(lines, size)
    assert [line for event in events for line in event] == lines
    assert all(len(event) == 1 or len(b"\n".join(event)) <= size for event in events)


@pytest.mark.parametrize(("size", "events"), [(4, [2]), (3, [1, 1])])
def test_a_newline_between_two_lines_counts(size: int, events: list[int]) -> None:
    assert [len(one) for one in joined([b"a", b" b"], size)] == events


def test_an_event_has_a_limited_number_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_run, "LINES_MAX", 3)
    assert [len(one) for one in joined([b"a", *([b"  b"] * 7)])] == [3, 3, 2]


async def test_events_are_records_with_the_number_of_their_first_line(logs: Path, tmp_path: Path) -> None:
    write_lines(logs / "a.log", EVENTS)
    async with LogCluster(topics={"t": 2}) as cluster:
        totals = await ingest_of(cluster, tmp_path, join_traces=True).run()
        numbers = [1 + sum(one.count("\n") + 1 for one in EVENTS[:n]) for n in range(len(EVENTS))]
        assert lines_in(cluster) == [
            ("a.log", number, event.encode()) for number, event in zip(numbers, EVENTS, strict=True)
        ]
        assert totals.lines == sum(one.count("\n") + 1 for one in EVENTS)
        write_lines(logs / "a.log", ["\tat later(Later.java:1)", "2024/05/01 10:00:04 last"])
        await ingest_of(cluster, tmp_path, join_traces=True).run()
        assert [value for _, _, value in lines_in(cluster)][-2:] == [
            b"\tat later(Later.java:1)",
            b"2024/05/01 10:00:04 last",
        ]


@pytest.mark.parametrize("n", range(2, 6))
async def test_a_crash_doubles_no_line_wherever_the_events_ended_before_it(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(ledger_module, "CHECKPOINT_LINES", 3)
    write_lines(logs / "a.log", EVENTS * 3)
    async with LogCluster(topics={"t": 2}) as cluster:
        with monkeypatch.context() as before, pytest.raises(Crash):
            before.setattr(source_run, "LINES_MAX", 2)
            await ingest_of(cluster, tmp_path, disk=CrashingDisk(n), join_traces=True).run()
        await ingest_of(cluster, tmp_path, join_traces=True).run()
        found = b"\n".join(value for _, _, value in lines_in(cluster))
        assert found.decode() == "\n".join(EVENTS * 3)


async def test_a_followed_event_is_sent_when_no_line_comes_and_kept_open_until_then(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "EVENT_MS", 300)
    work = None
    async with LogCluster(topics={"t": 1}) as cluster:
        work = ingest_of(cluster, tmp_path, follow=True, join_traces=True)
        async with following(work) as sent:
            write_lines(logs / "a.log", [JAVA])
            await sent(5)
            shutil.copy(logs / "a.log", logs / "a.log.1")
            os.truncate(logs / "a.log", 0)
            write_lines(logs / "a.log", [PYTHON, "2024-05-01 next"])
            await sent(17)
        assert sorted(value for _, _, value in lines_in(cluster)) == sorted(
            one.encode() for one in (JAVA, PYTHON, "2024-05-01 next")
        )
