"""What the benchmark says of its numbers: steady, at its limit, saturated, still valid. Measures nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from bench import acl_rows, curve_rows, ingest_rows, java_clients, report, run
from bench.__main__ import ALL_ROWS
from bench.rows import CLIENT, RECORDS_PER_S, Load, Row
from bench.secured import secured_systems
from bench.steady import is_steady, until_steady

ROOT = Path(__file__).resolve().parents[1]
ROW = Row("some-row", "some row", (RECORDS_PER_S, *CLIENT))
LOAD = Load(lambda system, seconds: {}, "records_per_s")
STEADY = (
    "200000 steady state records sent, 285306.704708 records/sec (27.21 MB/sec), 1.02 ms avg latency, "
    "28.00 ms max latency, 0 ms 50th, 4 ms 95th, 15 ms 99th, 24 ms 99.9th."
)
PRODUCED = f"{STEADY.replace('steady state ', '').replace('285306', '114810')}\n\n{STEADY}\n"


def test_each_module_is_imported_as_a_command_does() -> None:
    names = [
        f"bench.{path.stem}" for path in sorted((ROOT / "bench").glob("*.py")) if path.stem != "__main__"
    ]
    program = f"import importlib; [importlib.import_module(each) for each in {names}]"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_steady_means_that_the_last_three_rounds_are_within_a_tenth() -> None:
    assert is_steady([10.0, 100.0, 105.0, 109.0])
    assert not is_steady([100.0, 105.0, 111.0])
    assert not is_steady([100.0, 100.0])


def test_a_warm_up_ends_when_it_is_steady_or_its_time_is_over() -> None:
    rounds = iter([10.0, 50.0, 100.0, 101.0, 102.0, 103.0])
    assert until_steady(lambda: next(rounds), limit_s=60.0) == [10.0, 50.0, 100.0, 101.0, 102.0]
    growing = iter(range(1, 1000))
    assert len(until_steady(lambda: 2.0 ** next(growing), limit_s=0.0)) == 3


def test_the_table_names_a_client_at_its_limit_and_a_system_that_is_not_steady() -> None:
    samples = {
        "Nilometer": {"warm_up": [1.0, 1.0, 1.0], "records_per_s": [200.0], "client_busiest_percent": [95.0]},
        "Apache Kafka": {
            "warm_up": [1.0, 2.0, 3.0],
            "records_per_s": [100.0],
            "client_busiest_percent": [60.0],
        },
    }
    records, busiest = report.table_lines(ROW, samples, run=1)
    assert "some row (not steady: Apache Kafka after 3 rounds)" in records
    assert records.endswith("| **200** | **100** | 2.00 | 1 |")
    assert "**95** %, **at its limit** | **60** % | – |" in busiest


def test_each_row_shows_what_was_measured() -> None:
    measured = [row for row in ALL_ROWS if (report.RESULTS / f"{row.key}.json").exists()]
    assert measured
    for row in measured:
        samples = json.loads((report.RESULTS / f"{row.key}.json").read_text())["samples"]
        assert report.table_lines(row, samples, 1) != [], row.key


def test_a_row_that_compares_programs_has_one_column_if_the_other_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (row,) = ingest_rows.INGEST_ROWS
    ours, theirs = {"lines_per_s": [300.0]}, {"lines_per_s": [100.0]}
    (both,) = report.table_lines(row, {"Nilometer": ours, "rsyslog": theirs}, run=1)
    assert both.endswith("| **300** | **100** | 3.00 | 1 |")
    (alone,) = report.table_lines(row, {"Nilometer": ours}, run=1)
    assert alone.endswith("| **300** | – | – | 1 |")
    assert row.systems is not None
    monkeypatch.setattr(ingest_rows.shutil, "which", lambda name: f"/usr/sbin/{name}")
    assert list(row.systems()) == ["nilometer", "kafka"]
    monkeypatch.setattr(ingest_rows.shutil, "which", lambda name: None)
    assert list(row.systems()) == ["nilometer"]


def test_the_lines_that_are_shipped_differ_and_have_the_size_that_the_row_says(tmp_path: Path) -> None:
    ingest_rows.write_lines(tmp_path / "app.log", 500)
    lines = (tmp_path / "app.log").read_bytes().splitlines(keepends=True)
    assert len(set(lines)) == 500
    assert {len(line) for line in lines} == {ingest_rows.LINE_BYTES}


def test_only_a_result_of_the_same_command_method_and_day_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    now = datetime.now(UTC)

    def is_left_out(**changed: object) -> bool:
        stored = {"command": "c", "method": report.METHOD, "measured_at": now.isoformat()} | changed
        (tmp_path / "some-row.json").write_text(json.dumps(stored))
        return report.has_result(ROW, "c")

    assert is_left_out()
    assert not is_left_out(command="another")
    assert not is_left_out(method=report.METHOD - 1)
    assert not is_left_out(measured_at=(now - timedelta(hours=25)).isoformat())


@pytest.mark.parametrize(
    ("achieved", "p99", "saturated"), [(990, 5, False), (900, 5, True), (999, 1500, True)]
)
def test_a_system_is_saturated_when_it_falls_behind_or_answers_late(
    achieved: float, p99: float, saturated: bool
) -> None:
    found = {"achieved_per_s": [500.0, achieved], "p99_ms": [1.0, p99], "offered_per_s": [500.0, 1000.0]}
    assert curve_rows.is_saturated(1000, found) is saturated
    assert curve_rows.highest_good(found) == (1000.0 if (achieved, p99) == (990, 5) else 500.0)


def test_the_steady_part_of_what_kafka_s_producer_prints_is_read() -> None:
    assert java_clients.read_produced(PRODUCED)["per_s"] == pytest.approx(285306.7, abs=0.1)
    with pytest.raises(RuntimeError, match="printed no steady state"):
        java_clients.read_produced("org.apache.kafka.common.errors.TimeoutException")


def test_rows_of_acls_have_so_many_that_all_differ() -> None:
    for count in acl_rows.COUNTS:
        found = acl_rows.acls(count)
        assert len(set(found)) == len(found) == count
    assert {acl.principal for acl in acl_rows.acls(100)[:2]} == {"User:ANONYMOUS"}, "what the client asks for"


def test_rows_with_other_systems_do_not_share_them() -> None:
    plain, secured = replace(ROW, load=LOAD), replace(ROW, load=LOAD, systems=secured_systems)
    assert run.rows_by_shape([plain, secured, plain, secured]) == [[plain, plain], [secured, secured]]


def test_keys_of_rows_are_unique() -> None:
    keys = [row.key for row in ALL_ROWS]
    assert len(set(keys)) == len(keys)
