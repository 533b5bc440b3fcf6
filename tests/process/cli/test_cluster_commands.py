"""The commands that talk to a cluster, as a person runs them: processes, pipes, signals, a real broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_shell import PATIENCE_S, CommandShell


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def test_a_topic_from_creation_to_deletion(shell: CommandShell) -> None:
    shell.run("topic", "create", "cycle", "--partitions", "2", "--config", "retention.ms=77777")
    assert b"TOPIC_ALREADY_EXISTS" in shell.run("topic", "create", "cycle", code=1)
    assert b"Nothing to do" in shell.run("topic", "create", "cycle", "--if-not-exists")
    (listed,) = [one for one in shell.json("topic", "list")["topics"] if one["name"] == "cycle"]
    assert (listed["partitions"], listed["replication_factor"], listed["internal"]) == (2, 1, False)
    (described,) = shell.json("topic", "describe", "cycle")["topics"]
    assert described["topic_id"] == listed["topic_id"]
    assert re.fullmatch("[A-Za-z0-9_-]{22}", listed["topic_id"])  # as Kafka writes it
    assert f"(id {listed['topic_id']})" in shell.run("topic", "describe", "cycle").decode()
    assert [part["isr"] for part in described["partitions"]] == [[1], [1]]
    assert described["configs"]["retention.ms"]["value"] == "77777"
    shell.run(
        *("topic", "alter", "cycle", "--partitions", "3"),
        *("--config", "max.message.bytes=5000", "--delete-config", "retention.ms"),
    )
    (described,) = shell.json("topic", "describe", "cycle")["topics"]
    assert len(described["partitions"]) == 3
    assert described["configs"]["max.message.bytes"]["value"] == "5000"
    assert described["configs"]["retention.ms"]["source"] == "DEFAULT_CONFIG"
    assert b"INVALID_PARTITIONS" in shell.run("topic", "alter", "cycle", "--partitions", "1", code=1)
    assert b"no.such" in shell.run("topic", "alter", "cycle", "--config", "no.such=1", code=1)
    assert "cycle" in shell.run("topic", "list").decode()
    shell.run("topic", "delete", "cycle", "--yes")
    assert b"UNKNOWN_TOPIC_OR_PARTITION" in shell.run("topic", "delete", "cycle", code=1)
    shell.run("topic", "delete", "cycle", "--if-exists")
    assert b"UNKNOWN_TOPIC_OR_PARTITION" in shell.run("topic", "describe", "cycle", code=1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(shell: CommandShell, codec: str) -> None:
    topic = f"there-and-back-{codec}"
    lines = [b"line %d \xff\xfe" % number for number in range(2000)] + [b"", b"no newline behind"]
    outcome = shell.json("produce", topic, "--compression", codec, input=b"\n".join(lines))
    assert (outcome["records"], outcome["failed"]) == (2002, 0)
    assert shell.values(topic) == lines


def test_keys_headers_and_partitions(shell: CommandShell) -> None:
    shell.run("topic", "create", "keyed", "--partitions", "4")
    shell.run(
        *("produce", "keyed", "--key-separator", "\\t", "--header", "from=test", "--header", "from=you"),
        input=b"k\t1\nk\t2\nk\t3\n",
    )
    shell.run("produce", "keyed", "--partition", "3", input=b"by number\n")
    show = ("--format", "{partition} {offset} {key}={value} {headers}\\n")
    shown = shell.run("consume", "keyed", "--from-beginning", "--exit-at-end", *show).decode().splitlines()
    keyed = [line.split(" ", 1) for line in shown if "k=" in line]
    assert len({partition for partition, _ in keyed}) == 1
    assert [rest.split(" ", 1)[1] for _, rest in keyed] == [
        f"k={number} from=test,from=you" for number in (1, 2, 3)
    ]
    assert (
        shell.run("consume", "keyed", "--partition", "3", "--offset", "-1", "--count", "1") == b"by number\n"
    )
    assert b"line 2 of the input: no key: ':' is not in it (1 record before it written)" in shell.run(
        "produce", "keyed", "--key-separator", ":", input=b"a:b\nc\n", code=1
    )
    assert b"there is no partition 9" in shell.run(
        "produce", "keyed", "--partition", "9", input=b"x\n", code=1
    )


def test_where_consuming_begins_and_ends(shell: CommandShell) -> None:
    shell.run("topic", "create", "places", "--partitions", "1")
    shell.run("produce", "places", input=b"".join(b"%d\n" % number for number in range(10)))
    at_end = ("consume", "places", "--exit-at-end")
    assert shell.run(*at_end) == b""
    assert shell.run(*at_end, "--offset", "7") == b"7\n8\n9\n"
    assert shell.run(*at_end, "--offset", "-2") == b"8\n9\n"
    assert shell.run(*at_end, "--offset", "earliest", "--count", "2") == b"0\n1\n"
    assert shell.run(*at_end, "--from-timestamp", "2000-01-01").count(b"\n") == 10
    assert shell.run(*at_end, "--from-timestamp", "2100-01-01") == b""
    lines = shell.run(*at_end, "--offset", "9", "--json").splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [9]
    missing = ("consume", "missing", "--exit-at-end", "-X", "default.api.timeout.ms=500")
    assert b"UNKNOWN_TOPIC_OR_PARTITION" in shell.run(*missing, code=1)


def test_following_ends_well_when_interrupted(shell: CommandShell, tmp_path: Path) -> None:
    shell.run("topic", "create", "followed")
    for number in (signal.SIGINT, signal.SIGTERM):
        output = tmp_path / f"output-{number}"
        with output.open("wb") as file:
            follower = shell.start(
                "consume", "followed", "--from-beginning", stdout=file, stderr=subprocess.PIPE
            )
        shell.run("produce", "followed", input=b"later\n")
        wait_until(lambda output=output: b"later" in output.read_bytes())
        follower.send_signal(number)
        _, errors = follower.communicate(timeout=PATIENCE_S)
        assert (follower.returncode, errors) == (0, b"")


def test_reader_that_has_had_enough_is_no_error(shell: CommandShell) -> None:
    shell.run("produce", "plenty", input=b"x" * 99 + b"\n" + b"y\n" * 200_000)
    consumer = shell.start(
        "consume", "plenty", "--from-beginning", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    assert consumer.stdout.readline()
    consumer.stdout.close()
    assert consumer.wait(PATIENCE_S) == 0
    assert consumer.stderr.read() == b""
    consumer.stderr.close()


def test_lines_are_sent_as_they_come(shell: CommandShell) -> None:
    shell.run("topic", "create", "live")
    producer = shell.start("produce", "live", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert producer.stdin is not None
    producer.stdin.write(b"first\n")
    producer.stdin.flush()
    wait_until(lambda: shell.values("live") == [b"first"])
    producer.stdin.write(b"second")
    producer.communicate(timeout=PATIENCE_S)
    assert producer.returncode == 0
    assert shell.values("live") == [b"first", b"second"]


def test_interrupted_producing_says_so(shell: CommandShell) -> None:
    shell.run("topic", "create", "cut-short")
    producer = shell.start("produce", "cut-short", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert producer.stdin is not None
    producer.stdin.write(b"first\n")
    producer.stdin.flush()
    wait_until(lambda: shell.values("cut-short") == [b"first"])
    producer.send_signal(signal.SIGINT)
    _, errors = producer.communicate(timeout=PATIENCE_S)
    assert producer.returncode == 130
    assert errors == b"Interrupted.\n"


def test_ingest_goes_on_where_it_ended(shell: CommandShell, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    ingest = ("ingest", str(log), "--topic", "ingested", "--state", str(tmp_path / "state.json"))
    first = shell.json(*ingest, "--partitions", "3")
    assert (first["lines"], first["problems"]) == (1000, [])
    assert first["files"] == [{"path": str(log), "lines": 1000}]
    assert shell.json(*ingest)["lines"] == 0
    log.rename(tmp_path / "app.log.1")
    log.write_bytes(b"after rotation\n")
    assert b"1 lines of 1 file written to ingested." in shell.run(*ingest)
    assert len(shell.values("ingested")) == 1001
    assert b"No such file" in shell.run("ingest", str(tmp_path / "no"), *ingest[2:], code=1)


def test_ingest_killed_at_any_moment_neither_loses_nor_repeats(shell: CommandShell, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    ingest = ("ingest", str(log), "--topic", "killed", "--state", str(tmp_path / "state.json"))
    shell.run("topic", "create", "killed", "--partitions", "3")
    written = 0
    with log.open("ab") as file:
        for turn in range(4):
            follower = shell.start(*ingest, "--follow", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            goal = written
            for _ in range(40):
                file.write(b"".join(b"line %d\n" % number for number in range(written, written + 500)))
                file.flush()
                written += 500
            wait_until(lambda goal=goal: len(shell.values("killed")) > goal)
            follower.send_signal(signal.SIGKILL if turn < 3 else signal.SIGTERM)
            follower.communicate(timeout=PATIENCE_S)
            assert follower.returncode == (-signal.SIGKILL if turn < 3 else 0)
    shell.run(*ingest)
    assert sorted(shell.values("killed")) == sorted(b"line %d" % number for number in range(written))


def test_lines_too_long_for_a_record_are_counted_and_named(shell: CommandShell, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_bytes(b"a1\n" + b"x" * 5_000 + b"\na3\n")
    (folder / "b.log").write_bytes(b"b1\n")
    shell.run("topic", "create", "narrow", "--config", "max.message.bytes=2000")
    ingest = ("ingest", str(folder), "--topic", "narrow", "--state", str(tmp_path / "state.json"))
    refused = shell.run(*ingest, code=1).decode()
    assert f"Error: {folder}/a.log: line 2 does not fit into a record (max.request.size is 1048576" in refused
    assert "topic's max.message.bytes 2000)" in refused and "--oversized skip, truncate or split" in refused
    assert sorted(shell.values("narrow")) == [b"a1", b"b1"]
    follower = shell.start(*ingest, "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follower.stderr is not None
    assert b"a.log: line 2 does not fit" in follower.stderr.readline(), "it is said when it happens"
    follower.send_signal(signal.SIGINT)
    _, errors = follower.communicate(timeout=PATIENCE_S)
    assert (follower.returncode, errors) == (1, b""), "and it is said once"
    told = shell.json(*ingest, "--oversized", "split")
    assert told["oversized"] == {"action": "split", "files": {f"{folder}/a.log": 1}}
    values = shell.values("narrow")
    assert b"".join(value for value in values if value.startswith(b"x")) == b"x" * 5_000
    assert sorted(value for value in values if not value.startswith(b"x")) == [b"a1", b"a3", b"b1"]
    with (folder / "a.log").open("ab") as file:
        file.write(b"y" * 5_000 + b"\n")
    done = subprocess.run(
        shell.command(*ingest, "--oversized", "skip"), env=shell.environment, capture_output=True, check=True
    )
    assert done.stderr.decode() == f"Warning: {folder}/a.log: 1 line too long for a record: skipped\n"


def test_two_ingests_do_not_share_a_state(shell: CommandShell, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("line\n")
    ingest = ("ingest", str(log), "--topic", "shared", "--state", str(tmp_path / "state.json"))
    shell.run("topic", "create", "shared")
    follower = shell.start(*ingest, "--follow", stdout=subprocess.PIPE)
    wait_until(lambda: shell.values("shared") == [b"line"])  # the state exists before the line is sent
    refused = shell.run(*ingest, code=1).decode()
    assert (
        f"another ingest is running with the state {tmp_path}/state.json (process {follower.pid})" in refused
    )
    follower.send_signal(signal.SIGINT)
    output, _ = follower.communicate(timeout=PATIENCE_S)
    assert (follower.returncode, output) == (0, b"1 lines of 1 file written to shared.\n")


@pytest.mark.parametrize("more", [(), ("-X", "group.instance.id=one")], ids=["dynamic", "static"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_member_that_is_ended_while_it_joins_does_not_join_again(
    shell: CommandShell, number: signal.Signals, more: tuple[str, ...]
) -> None:
    group = f"ended-{number.name}-{len(more)}"
    shell.run("topic", "create", group)
    member = shell.start("consume", group, "--group", group, *more, stderr=subprocess.PIPE)
    joining = ("group", "list", "--state", "PreparingRebalance")
    wait_until(lambda: group in {one["group"] for one in shell.json(*joining)["groups"]})
    member.send_signal(number)
    _, errors = member.communicate(timeout=PATIENCE_S)
    assert (member.returncode, errors) == (0, b"")
