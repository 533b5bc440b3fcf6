"""What `nilometer recorder replay` is asked for: where it stops, what it shows, what it writes down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from nilometer.cli.recorder import recorder
from nilometer.simulation.recorded_produces import ClientConnection
from nilometer.simulation.recording import read_recording
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import KafkaApi, encode_request
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side, batch, produce_fields
from support.brokers.values import produce, side_of

TOPIC = "recorded"
OTHER = "other"
MOVES = ("--break-on", f"high watermark of {TOPIC}-0 moves")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a broker to which four batches were written."""
    folder = tmp_path_factory.mktemp("recorded")
    with NilometerBroker(folder / "logs", {"nilometer.recorder": "on"}) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        for number in range(4):
            assert produce(side, TOPIC, *(b"record",) * (number + 1)) is ErrorCode.none
        side.create(OTHER)
        write_in_many_ways(side)
        broker.stop()
    (path,) = (folder / "logs-recordings").iterdir()
    return path


def write_in_many_ways(side: Side) -> None:
    """Write to the other topic: 3 records, 2 by its id, 1 that is damaged, 1 to which no response comes, and
    4 of an idempotent producer; and to both."""
    assert produce(side, OTHER, *(b"record",) * 3) is ErrorCode.none
    by_id = produce_fields(13, side.topic_ids[OTHER], {0: batch(b"1", b"2")})
    side.message(ApiKey.PRODUCE, 13, **by_id)
    damaged = bytearray(batch(b"record"))
    damaged[-1] ^= 1
    side.message(ApiKey.PRODUCE, 9, **produce_fields(9, OTHER, {0: bytes(damaged)}))
    side.peer.tell(ApiKey.PRODUCE, 9, **produce_fields(9, OTHER, {0: batch(b"0")}, acks=0))
    producer = Producer(
        {
            "bootstrap.servers": side.bootstrap,
            "client.id": "app",
            "enable.idempotence": True,
            "linger.ms": 200,
        }
    )
    for number in range(4):
        producer.produce(OTHER, f"{number}", partition=0)
    assert producer.flush(60) == 0
    both = produce_fields(3, OTHER, {0: batch(b"3")})
    both["topic_data"] += produce_fields(3, TOPIC, {0: batch(b"4")})["topic_data"]  # type: ignore[operator]
    side.message(ApiKey.PRODUCE, 3, **both)


def document(*arguments: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(recorder, ["replay", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def debugged(*arguments: str | Path, lines: Sequence[str]) -> str:
    """What it says whose debugger gets these lines."""
    ended = ended_in_debugger(*arguments, lines=lines)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def ended_in_debugger(*arguments: str | Path, lines: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nilometer.cli", "recorder", "replay", *map(str, arguments), "--debug"]
    typed = "".join(f"{line}\n" for line in lines)
    return subprocess.run(command, input=typed, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("nth", "text"), [(1, "HW 0 → 1"), (3, "HW 3 → 6"), (4, "HW 6 → 10")])
def test_it_stops_where_something_happens_for_the_nth_time(path: Path, nth: int, text: str) -> None:
    stopped = document(path, *MOVES, "--nth", str(nth))["stopped"]
    assert text in stopped["changes"][0]["text"]


def test_what_does_not_happen_so_often_stops_nothing(path: Path) -> None:
    result = CliRunner().invoke(recorder, ["replay", str(path), *MOVES, "--nth", "6", "--quiet"])
    assert (result.exit_code, "end before that" in result.output) == (1, True)
    result = CliRunner().invoke(recorder, ["replay", str(path), "--nth", "5"])
    assert result.exit_code == 2


def test_the_debugger_goes_on_to_the_next_time(path: Path) -> None:
    said = debugged(path, *MOVES, "--nth", "2", "--quiet", lines=["continue"] * 3)
    assert [line.rpartition("HW ")[2] for line in said.splitlines() if f"  {TOPIC}-0: " in line] == [
        "1 → 3",
        "3 → 6",
        "6 → 10",
        "10 → 11",
    ]


def test_a_file_for_the_console_ends_once_and_behind_what_the_debugger_has_seen(
    path: Path, tmp_path: Path
) -> None:
    for name, lines in (("continued", ["continue"] * 4), ("quit", ["continue", "q"])):
        night = tmp_path / name
        debugged(path, *MOVES, "--quiet", "--record", night, lines=lines)
        with night.open("rb") as file:
            recording = read_recording(file)
        assert recording.end is not None and recording.end.events == len(recording.events)
        assert recording.events[-1].text == "The recordings end here."
        texts = [event.text for event in recording.events]
        assert any("HW 1 → 3" in text for text in texts)
        assert any("HW 6 → 10" in text for text in texts) == (name == "continued")


def test_a_file_for_the_console_takes_the_place_of_no_other(path: Path, tmp_path: Path) -> None:
    before, night = path.read_bytes(), tmp_path / "night"
    night.write_text("mine")
    for taken in (path, night):
        refused = CliRunner().invoke(recorder, ["replay", str(path), "--quiet", "--record", str(taken)])
        assert refused.exit_code == 1
        assert refused.stderr == f"Error: {taken} exists already: give the name of a new file\n"
    assert (path.read_bytes(), night.read_text()) == (before, "mine")
    missing = tmp_path / "no folder" / "night"
    refused = CliRunner().invoke(recorder, ["replay", str(path), "--quiet", "--record", str(missing)])
    assert refused.stderr == f"Error: {missing} cannot be written: No such file or directory\n"


def test_a_file_that_is_given_twice_is_replayed_once(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.recording"
    link.hardlink_to(path)
    (broker,) = document(path, path.parent, path.parent / "." / path.name, link)["brokers"]
    assert broker["is_at_end"]


def test_it_is_shown_whose_produce_requests_wrote_which_offsets(path: Path, tmp_path: Path) -> None:
    rows = document(path, "--produces", f"{OTHER}-0")["produces"]
    assert {(row["partition"], row["principal"], row["broker"]) for row in rows} == {
        (f"{OTHER}-0", "User:ANONYMOUS", 1)
    }
    assert [
        (row["client_id"], row["version"], row["acks"], row["base_offset"], row["last_offset"], row["error"])
        for row in rows
        if row["client_id"] != "app"
    ] == [
        ("test", 9, -1, 0, 2, "NONE"),
        ("test", 13, -1, 3, 4, "NONE"),
        ("test", 9, -1, None, None, "CORRUPT_MESSAGE"),
        ("test", 9, 0, None, None, None),
        ("test", 3, -1, 10, 10, "NONE"),
    ]
    (of_app,) = (row for row in rows if row["client_id"] == "app")
    assert (of_app["base_offset"], of_app["last_offset"], of_app["records"]) == (6, 9, 4)
    assert of_app["producer_id"] >= 0
    assert (of_app["producer_epoch"], of_app["base_sequence"], of_app["acks"]) == (0, 0, -1)
    assert all(row["answered_ms"] is None or row["arrived_ms"] <= row["answered_ms"] for row in rows)

    night = tmp_path / "night"
    said = CliRunner().invoke(
        recorder, ["replay", str(path), "--quiet", "--produces", f"{OTHER}-0", "--record", str(night)]
    )
    assert said.exit_code == 0, said.output
    assert "Produce of 2 records by client 'test' (User:ANONYMOUS at 127.0.0.1:" in said.output
    assert "acks=-1: offsets 3 to 4, answered after " in said.output
    assert "acks=0: nothing is answered with acks=0" in said.output
    assert "epoch 0 sequence 0: offsets 6 to 9" in said.output
    assert "answered CORRUPT_MESSAGE" in said.output
    with night.open("rb") as file:
        events = [one for one in read_recording(file).events if one.partitions == (f"{OTHER}-0",)]
    assert len([one for one in events if one.text.startswith("Produce of ")]) == len(rows)


def test_a_produce_request_without_a_response_is_shown_when_its_connection_ends() -> None:
    seen = ClientConnection({(TOPIC, 0)}, {}, "127.0.0.1:1", lambda: "User:app")
    request = KafkaApi(ApiKey.PRODUCE, 9).make_request(
        "ProduceRequest", **produce_fields(9, TOPIC, {0: batch(b"1"), 1: batch(b"2")})
    )
    frame = encode_request(7, None, request)
    assert [list(seen.on_arrived(frame[at : at + 5], 3)) for at in range(0, len(frame), 5)].count([]) > 1
    assert list(seen.on_sent(b"\0\0\0\4\0\0\0\1", 4)) == []  # to another request
    (found,) = seen.on_lost()
    assert (found.partition, found.client_id, found.arrived_ms, found.answer) == (f"{TOPIC}-0", None, 3, None)
    assert found.text.endswith("acks=-1: no response is recorded")
    assert list(seen.on_lost()) == []


def test_what_is_no_request_is_not_shown() -> None:
    seen = ClientConnection({(TOPIC, 0)}, {}, "127.0.0.1:1", lambda: "User:app")
    assert list(seen.on_arrived(b"\0\0\0\2\0\0" + b"\0\0\0\x0c\0\0\0\x09" + bytes(8), 1)) == []
    assert list(seen.on_sent(bytes(4) + b"\0\0\0\2\0\0", 1)) == [], "as to a login's first token"
    assert list(seen.on_arrived(b"\xff\xff\xff\xff", 1)) == []
    assert list(seen.on_arrived(b"\0", 1)) == []


def test_recordings_of_two_clusters_are_refused(path: Path, tmp_path: Path) -> None:
    """Their brokers have the same id, and would be two starts of one."""
    with NilometerBroker(tmp_path / "logs", {"nilometer.recorder": "on"}) as broker:
        broker.stop()
    (other,) = (tmp_path / "logs-recordings").iterdir()
    refused = CliRunner().invoke(recorder, ["replay", str(path), str(other), "--quiet"])
    assert refused.exit_code == 1
    assert f"{other} is of the cluster " in refused.stderr
    assert f", and {path} of " in refused.stderr
    saved = CliRunner().invoke(
        recorder, ["save", str(path), str(other), "--output", str(tmp_path / "both.zip")]
    )
    assert (saved.exit_code, f"{other} is of the cluster " in saved.stderr) == (1, True)
    assert not (tmp_path / "both.zip").exists()
    found = ended_in_debugger(path, other, *MOVES, "--quiet", lines=["continue"] * 6)
    assert (found.returncode, f"{other} is of the cluster " in found.stderr) == (1, True), found.stderr
