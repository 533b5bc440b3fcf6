"""Small requests with large responses that are never read: what is made for them is bounded."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer, make

TOPIC = "t"
OFFSETS, GROUPS = 500, 60
CONNECTIONS = 120
"""Each asks for 0.8 MB, in 500 bytes: all together for 90 MB, which take four times as much before they are
encoded."""
PEAK_KB = 280_000
PATIENCE_S = 240
"""All are from one address, so the one that reads is served after them: half a minute of processor time."""


def commit(peer: WirePeer, group: str) -> Any:
    key = ApiKey.OFFSET_COMMIT
    partitions = tuple(
        make(
            key,
            7,
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=1,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for index in range(OFFSETS)
    )
    topic = make(key, 7, "OffsetCommitRequestTopic", name=TOPIC, partitions=partitions)
    fields = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return peer.ask(key, 7, group_id=group, topics=(topic,), **fields)


def peak_kb(broker: NilometerBroker) -> int:
    """The most memory that the broker has had so far."""
    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_all_offsets_of_many_groups_that_are_not_read(tmp_path: Path) -> None:
    groups = [f"g{number}" for number in range(GROUPS)]
    with (
        NilometerBroker(tmp_path / "data", {"offsets.topic.num.partitions": "1"}) as broker,
        ExitStack() as stack,
    ):
        peer = stack.enter_context(WirePeer(broker.bootstrap, timeout_s=PATIENCE_S))
        peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(new_topic(TOPIC, OFFSETS),), timeout_ms=60_000)
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="g0", key_type=0)

        def is_committed(group: str) -> bool:
            (topic,) = commit(peer, group).topics
            return {each.error_code for each in topic.partitions} == {ErrorCode.none}

        for group in groups:
            eventually(lambda group=group: is_committed(group), f"the offsets of {group} are committed")
        key = ApiKey.OFFSET_FETCH
        asked = tuple(
            make(key, 8, "OffsetFetchRequestGroup", group_id=group, topics=None) for group in groups
        )
        silent = [
            stack.enter_context(WirePeer(broker.bootstrap, timeout_s=PATIENCE_S)) for _ in range(CONNECTIONS)
        ]
        for one in silent:
            one.tell(key, 8, groups=asked, require_stable=False)
        assert len(peer.ask(key, 8, groups=asked, require_stable=False).groups) == GROUPS, (
            "who reads is served"
        )
        assert peak_kb(broker) < PEAK_KB
