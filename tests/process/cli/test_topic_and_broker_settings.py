"""`nilometer topic offsets | delete-records | config` and `broker list | config` on a running broker."""

from __future__ import annotations

from pathlib import Path

from support.command_line import Nilometer


def test_offsets_and_deleted_records(nilometer: Nilometer, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(
        "".join(f'{{"value": "v", "partition": 1, "timestamp": {1000 + number}}}\n' for number in range(5))
    )
    nilometer("topic", "create", "measured", "--partitions", "2")
    assert nilometer("produce", "measured", str(lines), "--json-lines").code == 0
    shown = nilometer("topic", "offsets", "measured", "--json", "--at", "1003").document["partitions"]
    common = {"topic": "measured", "start": 0}
    assert shown == [
        {**common, "partition": 0, "last_stable": 0, "high_watermark": 0, "at": None},
        {**common, "partition": 1, "last_stable": 5, "high_watermark": 5, "at": 3},
    ]
    deleted = nilometer("topic", "delete-records", "measured", "--before", "1:2", "--yes", "--json")
    expected = {"topic": "measured", "partition": 1, "start": 2, "error": None}
    assert deleted.document["partitions"] == [expected]
    (one,) = nilometer("topic", "offsets", "measured", "--partition", "1", "--json").document["partitions"]
    assert (one["start"], one["high_watermark"]) == (2, 5)
    too_far = nilometer("topic", "delete-records", "measured", "--yes", "--before", "1:6", "--before", "0:0")
    assert too_far.code == 1
    assert "Error: measured-1: OFFSET_OUT_OF_RANGE" in too_far.err
    assert "measured-0 begins at offset 0 now." in too_far.out
    emptied = nilometer("topic", "delete-records", "measured", "--all", "--yes")
    assert "measured-1 begins at offset 5 now." in emptied.out
    for options in (
        (),
        ("--all", "--before", "0:1"),
        ("--before", "1"),
        ("--before", "0:1", "--before", "0:2"),
    ):
        assert nilometer("topic", "delete-records", "measured", *options).code == 2, options
    for command in (("offsets", "nosuch"), ("delete-records", "nosuch", "--all")):
        done = nilometer("topic", *command)
        assert done.code == 1 and "UNKNOWN_TOPIC_OR_PARTITION: topic nosuch" in done.err
    missing = nilometer("topic", "delete-records", "measured", "--before", "9:1")
    assert missing.code == 1 and "topic measured has 2 partitions; there is no partition 9" in missing.err


def test_settings_of_a_topic(nilometer: Nilometer) -> None:
    nilometer("topic", "create", "set", "--config", "retention.ms=1000")
    shown = nilometer("topic", "config", "set", "--json").document
    assert shown == {
        "topic": "set",
        "configs": {"retention.ms": {"value": "1000", "source": "DYNAMIC_TOPIC_CONFIG", "read_only": False}},
    }
    changed = nilometer(
        *("topic", "config", "set", "--set", "max.message.bytes=5000", "--delete", "retention.ms", "--json")
    )
    assert list(changed.document["configs"]) == ["max.message.bytes"]
    everything = nilometer("topic", "config", "set", "--all", "--json").document["configs"]
    assert everything["retention.ms"]["source"] == "DEFAULT_CONFIG" and len(everything) > 20
    assert "every setting" in nilometer("topic", "config", "set", "--delete", "max.message.bytes").out.lower()
    wrong = nilometer("topic", "config", "set", "--set", "retention.ms=soon")
    assert wrong.code == 1 and "retention.ms" in wrong.err
    assert nilometer("topic", "config", "set", "--set", "a=1", "--delete", "a").code == 2
    for command in (("config", "nosuch"), ("alter", "nosuch", "--config", "retention.ms=1")):
        absent = nilometer("topic", *command)
        assert absent.code == 1 and "topic nosuch does not exist" in absent.err


def test_brokers_and_their_settings(nilometer: Nilometer, bootstrap: str) -> None:
    nilometer("topic", "create", "led", "--partitions", "2")
    (one,) = nilometer("broker", "list", "--json").document["brokers"]
    assert (one["id"], one["controller"], f"{one['host']}:{one['port']}") == (1, True, bootstrap)
    assert one["leaders"] == one["replicas"] >= 2
    assert "controller" in nilometer("broker", "list").out
    setting = ("--set", "log.retention.ms=123456")
    changed = nilometer("broker", "config", "1", *setting, "--json").document
    assert changed["broker"] == 1
    assert changed["configs"]["log.retention.ms"]["value"] == "123456"
    assert (
        nilometer("broker", "config", "1", "--delete", "log.retention.ms", "--json").document["configs"] == {}
    )
    shared = nilometer("broker", "config", "--all-brokers", *setting, "--json").document
    assert shared["configs"]["log.retention.ms"]["source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    assert nilometer("broker", "config", "1", "--json").document["configs"] == shared["configs"]
    nilometer("broker", "config", "--all-brokers", "--delete", "log.retention.ms")
    everything = nilometer("broker", "config", "1", "--all", "--json").document["configs"]
    assert everything["node.id"]["value"] == "1"
    refused = nilometer("broker", "config", "1", "--set", "node.id=2")
    assert refused.code == 1 and "node.id" in refused.err
    absent = nilometer("broker", "config", "7")
    assert absent.code == 1 and "there is no live broker 7; the live brokers are 1" in absent.err
    assert nilometer("broker", "config").code == 2
    assert nilometer("broker", "config", "1", "--all-brokers").code == 2
    assert nilometer("broker", "--override", "a=b", "list").code == 2
