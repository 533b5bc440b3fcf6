"""A broker is killed while it truncates its log on a disk that hangs: the recordings show what happened.

It is the incident of docs/how-to/last-night.md. Recordings are replayed by the sources that made them: none
can be kept for this test, so it makes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from nilometer.cli.recorder import recorder
from nilometer.recorder.tape_file import SlotFile
from nilometer.simulation.recorded_cluster import RecordingFile
from nilometer.simulation.recording import Kind, read_recording
from nilometer.testing import Cluster
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually

TOPIC = "orders"
PARTITION = f"{TOPIC}-0"
SAFE, TAIL, LATER = 1_000, 200, 100


def send(servers: str, first: int, count: int, acks: str) -> None:
    failed = list[object]()

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": servers, "acks": acks})
    for number in range(first, first + count):
        producer.produce(TOPIC, f"order {number}", on_delivery=on_delivery)
    assert producer.flush(60) == 0
    assert failed == []


def in_sync(servers: str) -> set[int]:
    found = AdminClient({"bootstrap.servers": servers}).list_topics(TOPIC, timeout=30)
    return set(found.topics[TOPIC].partitions[0].isrs)


def happens(folder: Path) -> int:
    """Have it happen to a cluster whose recordings are in ``folder``; return the broker to which it did."""
    settings = {
        "nilometer.recorder": "on",
        "nilometer.recorder.dir": str(folder),
        "replica.fetch.wait.max.ms": "20000",  # followers' fetches wait at the leader when they are cut off
    }
    with Cluster(brokers=3, settings=settings, faults=True) as cluster:
        cluster.create_topic(TOPIC, partitions=1)
        send(cluster.bootstrap_servers, 0, SAFE, "all")
        hit = cluster.leader(TOPIC)
        others = [broker for broker in cluster.broker_ids if broker != hit]
        cuts = [cluster.faults.cut(hit, other) for other in others]
        send(cluster.address(hit), SAFE, TAIL, "1")
        cluster.kill(hit)
        eventually(lambda: cluster.leader(TOPIC) in others, "another broker leads")
        send(cluster.address(others[0]), SAFE + TAIL, LATER, "all")
        cluster.restart(hit)
        with cluster.faults.stall(hit):
            for cut in cuts:
                cut.end()
            eventually(lambda: "runcat" in cluster.log(hit), "it truncates its log")
            cluster.kill(hit)
        cluster.restart(hit)
        eventually(lambda: in_sync(cluster.bootstrap_servers) == {1, 2, 3}, "it is in the ISR")
        send(cluster.address(others[0]), SAFE + TAIL + LATER, 1, "all")
        for broker in cluster.broker_ids:
            cluster.stop(broker)
    return hit


def replayed(*arguments: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(recorder, ["replay", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def killed(path: Path) -> bool:
    (broker,) = replayed(path)["brokers"]
    return broker["is_at_end"] and broker["end"] is None


def test_the_last_entries_say_what_it_asked_its_disk_for(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "logs", {"nilometer.recorder": "on"}) as broker:
        broker.stop()
    result = CliRunner().invoke(
        recorder, ["info", str(tmp_path / "logs-recordings"), "--tail", "40", "--json"]
    )
    (row,) = json.loads(result.stdout)
    assert len(row["tail"]) == 40
    (path,) = (tmp_path / "logs-recordings").iterdir()
    damaged = path.with_name(f"damaged-{path.name}")
    header = msgspec.structs.replace(RecordingFile(path).header, settings={"node.id": "none"})
    SlotFile(str(damaged), header, 1 << 20).close()
    result = CliRunner().invoke(recorder, ["info", str(path.parent), "--json"])
    assert result.exit_code == 1
    assert [one["file"] for one in json.loads(result.stdout)] == [str(path)], "the other one is shown"
    assert f"{damaged} cannot be read, and is left out" in result.stderr
    assert row["tail"][-1] == "end"
    assert any(".kafka_cleanshutdown, " in entry and "replace_file(" in entry for entry in row["tail"])


def test_what_happened_is_in_the_recordings(tmp_path: Path) -> None:
    hit = happens(tmp_path)
    led, truncated, _ = sorted(tmp_path.glob(f"*-broker-{hit}.recording"))

    assert killed(led), "it led, with records that no other broker had"
    (leader,) = replayed(led, "--why", PARTITION)["why"]["replicas"]
    assert (leader["role"], leader["log_end_offset"], leader["high_watermark"]) == (
        "leader",
        SAFE + TAIL,
        SAFE,
    )

    written = [row for row in replayed(led, "--produces", PARTITION)["produces"] if row["acks"] == 1]
    assert sum(row["records"] for row in written) == TAIL
    assert {row["client_id"] for row in written} == {"rdkafka"}
    # It was killed as soon as the last response had left: that turn may not be in the recording.
    assert {row["error"] for row in written} <= {"NONE", None}

    assert killed(truncated), "it followed"
    moment = replayed(truncated, "--break-on", f"log end offset of {PARTITION} moves", "--why", PARTITION)
    texts = [change["text"] for change in moment["stopped"]["changes"]]
    assert texts == [f"{PARTITION}: truncates its log from {SAFE + TAIL} to {SAFE}"]
    assert moment["why"]["replicas"][0]["log_end_offset"] == SAFE

    everything = sorted(tmp_path.glob("*.recording"))
    elected = replayed(*everything, "--break-on", f"leader epoch of {PARTITION} changes", "--why", PARTITION)
    assert elected["stopped"]["broker"] != hit
    assert [replica["broker"] for replica in elected["why"]["replicas"] if replica["is_down"]] == [hit]
    ends = {replica["broker"]: replica["log_end_offset"] for replica in elected["why"]["replicas"]}
    assert ends == {broker: SAFE + TAIL if broker == hit else SAFE for broker in (1, 2, 3)}

    night = tmp_path / "night.jsonl"
    end = replayed(*everything, "--why", PARTITION, "--changes", PARTITION, "--record", night)
    changes = [(change["broker"], change["text"]) for change in end["changes"]]
    assert changes.count((hit, f"{PARTITION}: truncates its log from {SAFE + TAIL} to {SAFE}")) == 1
    assert (hit, f"{PARTITION}: appends {TAIL} records, LEO {SAFE} → {SAFE + TAIL}") in changes
    with night.open("rb") as lines:
        events = read_recording(lines).events
    late = f"Fetch response {PARTITION} offsets {SAFE} to {SAFE + TAIL - 1}, HW {SAFE}"
    heard = {event.to for event in events if event.kind is Kind.DELIVERED and event.text == late}
    assert heard == {1, 2, 3} - {hit}, "it had sent them before it died, and they came too late"
    assert [start["broker"] for start in end["brokers"]].count(hit) == 3
    assert [start["end"] for start in end["brokers"]].count("the broker has ended") == 3
    assert all(start["is_at_end"] for start in end["brokers"])
    assert {replica["log_end_offset"] for replica in end["why"]["replicas"]} == {SAFE + LATER + 1}
