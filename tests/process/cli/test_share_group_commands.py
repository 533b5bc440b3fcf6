"""``nilometer group``, ``exporter`` and ``console`` with a share group of one member and three jobs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.command_line import Nilometer, Outcome
from support.console.console_process import console
from support.metrics.exporter_process import exporter
from support.metrics.scrape import Scrape, page
from support.share.share_member import ACCEPT, ShareMember, acquired, part_of, topic_named

TOPIC, GROUP = "jobs", "workers"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {"share.coordinator.state.topic.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    with NilometerBroker(tmp_path_factory.mktemp("share-group-commands") / "data", settings) as running:
        yield running
    assert "Traceback" not in running.output


@pytest.fixture(scope="module")
def member(broker: NilometerBroker) -> ShareMember:
    """It has read the first of three jobs, and holds another one."""
    side = Side("admin", broker.bootstrap)
    side.create(TOPIC)
    one = ShareMember(topic_named(broker.bootstrap, TOPIC), GROUP, "worker-1", broker.bootstrap)
    one.join()
    assert acquired(one.fetch()) == []  # from now on
    side.append(TOPIC, b"a")
    side.append(TOPIC, b"b")
    side.append(TOPIC, b"c")
    assert acquired(one.fetch(wait_ms=30_000, records=1)) == [(0, 0, 1)]
    assert part_of(one.acknowledge((0, 0, ACCEPT))).error_code is ErrorCode.none
    assert acquired(one.fetch(wait_ms=30_000, records=1)) == [(1, 1, 1)]
    side.hang_up()
    return one


def rows(shown: Outcome) -> list[list[str]]:
    """Return the cells of the tables that a command printed."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.lines]


def test_a_share_group_is_listed_described_reset_and_deleted(
    broker: NilometerBroker, member: ShareMember, nilometer: Nilometer
) -> None:
    where = ("--bootstrap-server", broker.bootstrap)
    listed = nilometer("group", "list", "--type", "share", "--json", *where)
    assert listed.document["groups"] == [
        {"group": GROUP, "type": "share", "state": "Stable", "protocol_type": "share"}
    ]
    shown = nilometer("group", "describe", GROUP, "--members", "--offsets", *where)
    assert shown.lines[0].startswith(
        f"Group {GROUP}: Stable, 1 member (share protocol, assignor simple, epoch"
    )
    assert [TOPIC, "0", "0", "2", "worker-1"] in rows(shown), "the start is written with the next change"
    assert "Total lag 2." in shown.out
    (document,) = nilometer("group", "describe", GROUP, "--json", *where).document["groups"]
    assert document["offsets"] == [
        {"topic": TOPIC, "partition": 0, "start_offset": 0, "lag": 2, "members": ["worker-1"]}
    ]
    with exporter(*where) as port:
        scrape = Scrape(port)
        labels = {"sharegroup": GROUP, "topic": TOPIC, "partition": "0"}
        assert scrape("nilometer_sharegroup_lag", **labels) == 2
        assert scrape("nilometer_sharegroup_start_offset", **labels) == 0
        assert scrape("nilometer_exporter_complete", part="groups") == 1

    with console(*where) as url:
        shown = page(urlsplit(url).port or 0, f"/group?id={GROUP}", accept="application/json").document
        assert (shown["lag"], shown["locks"], shown["settings"]["deliveries_max"]) == (2, 1, 5)
        (partition,) = shown["partitions"]
        assert partition["blocked_by"].startswith("Offset 1: locked by worker-1 for another ")
        (delivery,) = shown["deliveries"]
        assert (delivery["first_offset"], delivery["deliveries"], delivery["member_id"]) == (1, 1, "worker-1")
        (row,) = page(urlsplit(url).port or 0, "/groups", accept="application/json").document["page"]["items"]
        assert (row["group_id"], row["lag"], row["topics"]) == (GROUP, 2, [TOPIC])

    reset = ("group", "reset-offsets", GROUP, "--topic", TOPIC, "--to-latest", *where)
    planned = nilometer(*reset)
    assert [GROUP, TOPIC, "0", "0", "3", ""] in rows(planned)
    refused = nilometer(*reset, "--execute")
    assert (refused.code, "can be reset only while the group has no members" in refused.err) == (1, True)
    delete = ("group", "delete-offsets", GROUP, "--yes", *where, "--topic")
    assert "its offsets are deleted for whole topics" in nilometer(*delete, f"{TOPIC}:0").err
    refused = nilometer(*delete, TOPIC)
    assert (refused.code, "NON_EMPTY_GROUP" in refused.err) == (1, True)

    member.fetch(epoch=-1)
    member.leave()
    assert nilometer(*reset, "--execute").code == 0
    (document,) = nilometer("group", "describe", GROUP, "--json", *where).document["groups"]
    assert (document["state"], document["offsets"][0]["start_offset"]) == ("Empty", 3)
    gone = nilometer("group", "reset-offsets", GROUP, "--all-topics", "--shift-by", "-2", "--execute", *where)
    assert gone.code == 0, gone.err
    assert nilometer(*delete, TOPIC).out == f"Deleted the offsets of {TOPIC}.\n"
    assert "The group reads no partition yet." in nilometer("group", "describe", GROUP, *where).out
    assert nilometer("group", "delete", GROUP, "--yes", *where).out == f"Deleted group {GROUP}.\n"
    missing = nilometer("group", "describe", GROUP, *where)
    assert (missing.code, "GROUP_ID_NOT_FOUND" in missing.err) == (1, True), missing.err
