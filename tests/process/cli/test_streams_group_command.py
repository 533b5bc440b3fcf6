"""``nilometer group`` with a streams group of one member that reads two topics."""

from __future__ import annotations

from pathlib import Path

from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.command_line import Nilometer
from support.groups.streams_member import StreamsMember

GROUP = "counters"
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.streams.initial.rebalance.delay.ms": "0",
}


def test_a_streams_group_is_listed_described_reset_and_deleted(tmp_path: Path, nilometer: Nilometer) -> None:
    with NilometerBroker(tmp_path / "data", SETTINGS) as broker:
        where = ("--bootstrap-server", broker.bootstrap)
        side = Side("admin", broker.bootstrap)
        side.create("words", 3)
        side.create("rules", 2)
        side.append("words", b"a")
        side.append("words", b"b")
        side.hang_up()
        member = StreamsMember(broker.bootstrap, GROUP)
        epoch = member.join(["words", "rules"])
        member.commit("words", 1, epoch)

        listed = nilometer("group", "list", "--type", "streams", "--json", *where)
        [group] = listed.document["groups"]
        assert (group["group"], group["type"]) == (GROUP, "streams")
        (described,) = nilometer("group", "describe", GROUP, "--json", *where).document["groups"]
        [one] = described["members"]
        assert (described["type"], one["epoch"], one["topics"]) == ("streams", epoch, ["rules", "words"])
        assert [(part["topic"], part["partition"]) for part in one["target"]] == [
            ("rules", 0),
            ("rules", 1),
            ("words", 0),
            ("words", 1),
            ("words", 2),
        ], "task 2 reads no partition of rules"
        offsets = {(part["topic"], part["partition"]): part["lag"] for part in described["offsets"]}
        assert offsets[("words", 0)] == 1
        shown = nilometer("group", "describe", GROUP, "--members", *where)
        assert shown.lines[0].startswith(f"Group {GROUP}: {described['state']}, 1 member (streams protocol")

        reset = ("group", "reset-offsets", GROUP, "--topic", "words", "--to-earliest", "--execute")
        refused = nilometer(*reset, *where)
        assert refused.code == 1 and "member" in refused.err
        member.leave()
        assert nilometer(*reset, *where).code == 0
        (described,) = nilometer("group", "describe", GROUP, "--json", *where).document["groups"]
        committed = {
            part["partition"]: part["committed"] for part in described["offsets"] if part["topic"] == "words"
        }
        assert (described["state"], committed) == ("Empty", {0: 0, 1: 0, 2: 0})
        assert nilometer("group", "delete", GROUP, "--yes", *where).code == 0
        assert nilometer("group", "list", "--json", *where).document["groups"] == []
    assert "Traceback" not in broker.output
