"""`nilometer tier`: what it prints of a store, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs

from nilometer.cli.main import run
from nilometer.tier.chain import Chain
from support.logs.stopped_brokers import broker_folder
from support.tier.former_partition import former
from support.tier.led_log import Store
from support.tier.remote_segments import FOLDER, TOPIC

HOSTILE = "\x1b[31mred"


def on_disk(store: Store, folder: Path) -> str:
    """Write the objects to files; return the URI of their folder."""
    for name, data in store.bucket.objects.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder.as_uri()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return on_disk(former().store, tmp_path / "tier")


def test_what_a_store_has_is_listed_and_checked(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tier", "list", "--from", uri, "--verify"]) == 0
    shown = capsys.readouterr().out
    assert "events-0" in shown and "topic-id" in shown
    assert "Checked 3 segments: all as written." in shown
    assert run(["tier", "list", "--from", uri, "--topic", "events", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["partitions"]
    assert (found["cluster_id"], found["topic"], found["partition"]) == ("cluster", "events", 0)
    assert (found["start_offset"], found["end_offset"], found["segments"]) == (0, 18, 3)
    assert (found["partition_count"], found["settings"]) == (1, TOPIC.settings)
    assert (found["deleted"], found["gaps"], found["problem"]) == (False, [], None)


def test_damage_is_named(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, index = (next((tmp_path / "tier" / FOLDER).glob(f"{6:020d}-*.{kind}")) for kind in ("log", "index"))
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    index.unlink()
    next((tmp_path / "tier" / FOLDER).glob(f"{12:020d}-*.log")).write_bytes(bytes(data[:-1]))
    assert run(["tier", "list", "--from", uri, "--verify", "--json"]) == 1
    printed = capsys.readouterr()
    problems = json.loads(printed.out)["problems"]
    assert [problem.rpartition("/")[2][:20] for problem in problems] == [f"{6:020d}", f"{12:020d}"]
    assert problems[0].endswith(".index is missing")
    assert printed.err.count("Error: ") == 2
    last = max((tmp_path / "tier" / FOLDER).glob("manifest-*"))
    last.write_bytes(b"{}")
    assert run(["tier", "list", "--from", uri]) == 1
    assert f"{last.name} is not as it was written" in capsys.readouterr().err


def test_a_deleted_topic_is_named_and_hostile_names_are_spelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    led = former()

    async def end() -> None:
        chain = Chain(led.store, FOLDER, "x")
        last = await chain.read()
        assert last is not None
        topic = structs.replace(last.topic, topic=HOSTILE)
        ended = structs.replace(last, segments=(), is_deleted=True, topic=topic)
        assert await chain.append_at_rest(0, ended)

    asyncio.run(end())
    uri = on_disk(led.store, tmp_path / "tier")
    assert run(["tier", "list", "--from", uri]) == 0
    shown = capsys.readouterr().out
    assert "deleted" in shown and "\\x1b[31mred-0" in shown and "\x1b" not in shown
    (tmp_path / "tier" / FOLDER / "head").write_bytes(b"x")
    place = broker_folder(tmp_path / "broker")
    given = ["tier", "restore", "--from", uri, "--topic", HOSTILE, "--log-dirs", str(place)]
    assert run(given) == 1
    assert "the store has no records of topic" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("list --from ftp://x", "the URI of a store begins with file:/// or s3://"),
        ("list --from file:///no/such/folder", "no such folder: create it, or mount it"),
        ("list --from URI --topic other", "the store has nothing of topic other"),
        ("list --from URI --from URI", "--from is given twice"),
        ("restore --from URI --topic a --topic b --as c", "are about one --topic"),
        ("restore --from URI --topic other --log-dirs PLACE", "no records of topic other"),
        ("restore --from URI --topic events --log-dirs file:///x", "no folder of this machine"),
        ("restore --from URI --topic events --as old --log-dirs PLACE", "topic create old"),
    ],
)
def test_wrong_usage_is_an_error_that_says_what_to_do(
    arguments: str, said: str, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(broker_folder(tmp_path / "broker"))
    given = [{"URI": uri, "PLACE": place}.get(one, one) for one in arguments.split()]
    assert run(["tier", *given]) in (1, 2)
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_what_was_restored_and_what_is_lost_is_said(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = broker_folder(tmp_path / "broker")
    given = ["tier", "restore", "--from", uri, "--topic", "events", "--log-dirs", str(place)]
    assert run(given) == 0
    shown = capsys.readouterr().out
    assert "events-0" in shown
    assert "Lost: what was appended after the end, and the committed offsets of groups" in shown
    assert run([*given, "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["partitions"]
    assert (part["start"], part["end"], part["records"], part["replicas"]) == (0, 18, None, 1)
