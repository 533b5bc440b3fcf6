"""`nilometer tier`: what it prints of a store, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from crc32c import crc32c
from msgspec import structs

from nilometer.cli.main import run
from nilometer.runtime.runtime import SystemClock
from nilometer.storage.names import TopicPartition
from nilometer.tier.chain import Chain
from nilometer.tier.format import (
    TopicFacts,
    decode_manifest,
    encode_manifest,
    manifest_name,
    partition_folder,
)
from support.logs.stopped_brokers import EVENTS, broker_folder
from support.tier.former_partition import former
from support.tier.led_log import Store
from support.tier.remote_segments import FOLDER, TOPIC

HOSTILE = "\x1b[31mred"
LAST = max(name for name in former().store.bucket.objects if "manifest-" in name)


def on_disk(store: Store, folder: Path) -> str:
    """Write the objects to files; return the URI of their folder."""
    for name, data in store.bucket.objects.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder.as_uri()


def in_partition(store: Store, partition: int, facts: TopicFacts = TOPIC) -> None:
    """Copy the partition's objects to another one's folder, which has a manifest of its own."""
    facts = structs.replace(facts, partition=partition, partition_count=2)
    folder = partition_folder(facts.cluster_id, facts.topic_id, partition)
    objects = store.bucket.objects
    for name in [one for one in objects if one.startswith(FOLDER)]:
        objects[folder + name.removeprefix(FOLDER)] = objects[name]
    last = structs.replace(decode_manifest(objects[LAST], int(LAST[-20:])), topic=facts)
    objects[folder + manifest_name(last.number)] = encode_manifest(last)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return on_disk(former().store, tmp_path / "tier")


def test_what_a_store_has_is_listed_and_checked(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tier", "list", "--from", uri, "--verify"]) == 0
    shown = capsys.readouterr().out
    assert "events-0" in shown and "topic-id" in shown
    assert "Checked 3 segments with 964 bytes: all as written." in shown
    assert run(["tier", "list", "--from", uri, "--topic", "events", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["partitions"]
    assert (found["cluster_id"], found["topic"], found["partition"]) == ("cluster", "events", 0)
    assert (found["start_offset"], found["end_offset"], len(found["segments"])) == (0, 18, 3)
    assert (found["partition_count"], found["settings"]) == (1, TOPIC.settings)
    assert (found["deleted"], found["gaps"], found["problem"]) == (False, [], None)


def test_a_part_of_a_store_is_not_taken_for_an_empty_one(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("cluster", "cluster/topic-id", "cluster/topic-id/0"):
        assert run(["tier", "list", "--from", f"{uri}/{part}", "--verify"]) == 1
        assert "name the folder that has those of the clusters" in capsys.readouterr().err


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
        ("list --from ftp://x", "ftp://x: Unrecognized filesystem type"),
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
    assert "Keep remote.storage.enable=true: the brokers of a topic that is not tiered give up" in shown
    assert "Lost: what was appended after the end, and the committed offsets of groups" in shown
    assert run([*given, "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["partitions"]
    assert (part["start"], part["end"], part["records"], part["replicas"]) == (0, 18, None, 1)


@pytest.mark.parametrize("to", ["tier", "archive"])
def test_what_another_cluster_may_still_write_to_is_restored_if_it_is_asked_for(
    to: str, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in last_with(written_ms=SystemClock().wall_ms()).items():
        (tmp_path / "tier" / name).write_bytes(data)
    place = broker_folder(tmp_path / "broker")
    given = [to, "restore", "--from", uri, "--topic", "events", "--log-dirs", str(place)]
    assert run(given) == 1
    assert "--allow-recent" in capsys.readouterr().err
    assert run([*given, "--allow-recent"]) == 0


def last_with(
    topic: Mapping[str, object] = {}, segment: Mapping[str, object] = {}, **more: object
) -> dict[str, bytes]:
    """Return the last manifest with other values, or those of its topic or its last segment."""
    last = decode_manifest(former().store.bucket.objects[LAST], int(LAST[-20:]))
    segments = (*last.segments[:-1], structs.replace(last.segments[-1], **segment))
    facts = structs.replace(last.topic, **topic)
    return {LAST: encode_manifest(structs.replace(last, topic=facts, segments=segments, **more))}


def sealed(body: bytes) -> dict[str, bytes]:
    return {LAST: body + b"%08x\n" % crc32c(body)}


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param(sealed(b"{\n"), id="no-json"),
        pytest.param(sealed(b"[]\n"), id="no-object"),
        pytest.param(last_with(segment={"attempt": "x\0"}), id="nul"),
        pytest.param(last_with(segment={"attempt": "x/../../x"}), id="climbing"),
        pytest.param(last_with(segment={"attempt": "x" * 300}), id="long-name"),
        pytest.param(last_with(segment={"last_offset": 2**80}), id="offset-of-80-bits"),
        pytest.param(last_with(segment={"last_offset": 2**63 - 1}), id="offset-of-63-bits"),
        pytest.param(last_with(segment={"max_timestamp": 2**80}), id="timestamp"),
        pytest.param(last_with(log_start_offset=2**80), id="log-start"),
        pytest.param(last_with(log_start_offset=-5), id="negative-log-start"),
        pytest.param(last_with({"partition": 7}), id="other-partition"),
        pytest.param(last_with({"topic_id": "other"}), id="other-topic-id"),
        pytest.param(last_with({"cluster_id": "other"}), id="other-cluster"),
        pytest.param(last_with({"topic": ""}), id="no-topic"),
        pytest.param(last_with({"partition_count": -1}), id="count"),
    ],
)
def test_what_no_broker_has_written_is_unreadable_and_hides_no_other_partition(
    objects: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = former().store
    in_partition(store, 1)
    uri = on_disk(store, tmp_path / "tier")
    for name, data in objects.items():
        (tmp_path / "tier" / name).write_bytes(data)
    for given in ([], ["--topic", "events"], ["--topic", "events", "--verify"]):
        assert run(["tier", "list", "--from", uri, "--json", *given]) == 1
        printed = capsys.readouterr()
        found = json.loads(printed.out)["partitions"]
        assert {one["partition"]: (one["topic"], one["end_offset"]) for one in found} == {
            0: (None, None),
            1: ("events", 18),
        }
        assert f"Error: {FOLDER}: {Path(LAST).name}" in printed.err
    place = broker_folder(tmp_path / "broker", EVENTS, TopicPartition("events", 1))
    given = ["tier", "restore", "--from", uri, "--topic", "events", "--log-dirs", str(place)]
    assert run(given) == 1
    assert f"{FOLDER} cannot be read: {Path(LAST).name}" in capsys.readouterr().err


def test_as_many_partitions_as_a_manifest_names_take_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = former().store
    store.bucket.objects |= last_with({"partition_count": 2**31 - 1})
    place = broker_folder(tmp_path / "broker")
    uri = on_disk(store, tmp_path / "tier")
    given = ["tier", "restore", "--from", uri, "--topic", "events", "--log-dirs", str(place)]
    assert run(given) == 1
    assert "has nothing of 2147483646 of the 2147483647 partitions" in capsys.readouterr().err


@pytest.mark.parametrize("head", [b"1" * 5_000, b"9" * 30, b"-1", b"\xb2"])
def test_a_head_that_is_no_number_is_looked_past(
    head: bytes, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tier" / FOLDER / "head").write_bytes(head)
    assert run(["tier", "list", "--from", uri, "--verify"]) == 0
    assert "Checked 3 segments with 964 bytes: all as written." in capsys.readouterr().out


def test_a_topic_none_of_whose_partitions_can_be_read_is_not_said_to_be_absent(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tier" / LAST).write_bytes(b"{}")
    assert run(["tier", "list", "--from", uri, "--topic", "events"]) == 1
    assert f"nothing of topic events: without --topic all are listed\n{FOLDER}: " in capsys.readouterr().err
    place = broker_folder(tmp_path / "broker")
    given = ["tier", "restore", "--from", uri, "--topic", "events", "--log-dirs", str(place)]
    assert run(given) == 1
    assert f"shows what it has\n{FOLDER} cannot be read: " in capsys.readouterr().err


def test_an_unreadable_partition_of_another_topic_is_not_listed_with_a_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = former().store
    other = structs.replace(TOPIC, topic_id="other-id", topic="other")
    for partition in range(2):
        in_partition(store, partition, other)
    uri = on_disk(store, tmp_path / "tier")
    (tmp_path / "tier" / LAST.replace("/topic-id/0/", "/other-id/1/")).write_bytes(b"{}")
    assert run(["tier", "list", "--from", uri, "--topic", "events", "--verify"]) == 0
    assert run(["tier", "list", "--from", uri, "--topic", "other"]) == 1
    assert "cluster/other-id/1/" in capsys.readouterr().err
