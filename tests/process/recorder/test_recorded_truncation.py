"""A broker is killed while it truncates its log on a disk that hangs: the recordings show what happened.

It is the incident of docs/how-to/last-night.md. Recordings are replayed by the sources that made them: none
can be kept for this test, so it makes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Producer

from nilometer.cli.recorder import recorder
from nilometer.testing import Cluster
from support.eventually import eventually

TOPIC = "orders"
PARTITION = f"{TOPIC}-0"
SAFE, TAIL, LATER = 1_000, 200, 100


def send(servers: str, first: int, count: int, acks: str) -> None:
    failed = list[object]()
    producer = Producer({"bootstrap.servers": servers, "acks": acks})
    for number in range(first, first + count):
        producer.produce(
            TOPIC, f"order {number}", on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(60) == 0
    assert failed == []


def happens(folder: Path) -> int:
    """Have it happen to a cluster whose recordings are in ``folder``; return the broker to which it did."""
    settings = {"nilometer.recorder": "on", "nilometer.recorder.dir": str(folder)}
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

    end = replayed(*everything, "--why", PARTITION)
    assert [start["broker"] for start in end["brokers"]].count(hit) == 3
    assert [start["end"] for start in end["brokers"]].count("the broker has ended") == 3
    assert all(start["is_at_end"] for start in end["brokers"])
    assert {replica["high_watermark"] for replica in end["why"]["replicas"]} == {SAFE + LATER + 1}
