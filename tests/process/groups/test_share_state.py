"""The state of share partitions on a real broker: its topic, and that it is there after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from nilometer.identifiers import topic_id_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make

K = ApiKey
TOPIC = "__share_group_state"
PRUNED = {
    "share.coordinator.snapshot.update.records.per.snapshot": "2",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.prune.interval.ms": "100",
}


def topic_of(peer: WirePeer, name: str, *, create: bool = False) -> Any:
    asked = make(K.METADATA, 12, "MetadataRequestTopic", name=name)
    return peer.ask(K.METADATA, 12, topics=(asked,), allow_auto_topic_creation=create).topics[0]


def created(peer: WirePeer) -> UUID:
    """Create a topic, and return its id."""

    def exists() -> bool:
        topic = topic_of(peer, "jobs", create=True)
        return topic.error_code == ErrorCode.none and topic.partitions[0].leader_id == 1

    eventually(exists, "the topic exists")
    return topic_of(peer, "jobs").topic_id


def about(peer: WirePeer, key: ApiKey, kind: str, topic_id: UUID, **fields: object) -> Any:
    part = make(key, 0, "PartitionData", partition=0, **fields)
    topic = make(key, 0, kind, topic_id=topic_id, partitions=(part,))
    (result,) = peer.ask(key, 0, group_id="workers", topics=(topic,)).results
    return result.partitions[0]


def write(peer: WirePeer, topic_id: UUID, offset: int) -> ErrorCode:
    key = K.WRITE_SHARE_GROUP_STATE
    batch = make(
        key, 0, "StateBatch", first_offset=offset, last_offset=offset + 4, delivery_state=2, delivery_count=1
    )
    fields = {"state_epoch": 1, "leader_epoch": 2, "start_offset": 100, "state_batches": (batch,)}
    return about(peer, key, "WriteStateData", topic_id, **fields).error_code


def read(peer: WirePeer, topic_id: UUID, leader_epoch: int) -> Any:
    return about(peer, K.READ_SHARE_GROUP_STATE, "ReadStateData", topic_id, leader_epoch=leader_epoch)


def settings_of(peer: WirePeer, name: str) -> dict[str, str]:
    key = K.DESCRIBE_CONFIGS
    resource = make(
        key, 4, "DescribeConfigsResource", resource_type=2, resource_name=name, configuration_keys=None
    )
    (result,) = peer.ask(key, 4, resources=(resource,), include_synonyms=False).results
    return {config.name: config.value for config in result.configs}


def log_start(peer: WirePeer) -> int:
    key = K.LIST_OFFSETS
    part = make(key, 7, "ListOffsetsPartition", partition_index=0, timestamp=-2)
    topic = make(key, 7, "ListOffsetsTopic", name=TOPIC, partitions=(part,))
    answer = peer.ask(key, 7, replica_id=-1, isolation_level=0, topics=(topic,))
    return answer.topics[0].partitions[0].offset


def test_the_state_is_there_after_a_restart_and_what_it_does_not_need_is_deleted(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data", overrides=PRUNED) as broker:
        with WirePeer(broker.bootstrap) as peer:
            topic_id = created(peer)
            assert topic_of(peer, TOPIC).error_code is ErrorCode.unknown_topic_or_partition
            text = f"workers:{topic_id_of(topic_id)}:0"

            def found() -> bool:
                answer = peer.ask(K.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=(text,))
                return answer.coordinators[0].node_id == 1

            eventually(found, "the share partition has a coordinator")
            topic = topic_of(peer, TOPIC)
            assert topic.is_internal
            assert len(topic.partitions) == 1
            settings = settings_of(peer, TOPIC)
            assert {name: settings[name] for name in ("cleanup.policy", "retention.ms", "segment.bytes")} == {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "segment.bytes": "104857600",
            }
            begin = K.INITIALIZE_SHARE_GROUP_STATE, "InitializeStateData"

            def initialized() -> bool:
                answer = about(peer, *begin, topic_id, state_epoch=1, start_offset=100)
                return answer.error_code == ErrorCode.none

            eventually(initialized, "the coordinator has loaded")
            assert read(peer, topic_id, 2).error_code == ErrorCode.none
            for offset in range(100, 120, 5):
                assert write(peer, topic_id, offset) == ErrorCode.none
            eventually(lambda: log_start(peer) >= 3, "what is before the last snapshot is deleted")
        broker.stop()
        broker.start()
        with WirePeer(broker.bootstrap) as peer:
            eventually(lambda: read(peer, topic_id, 2).error_code == ErrorCode.none, "it is loaded again")
            state = read(peer, topic_id, 2)
            assert (state.state_epoch, state.start_offset) == (1, 100)
            assert [(one.first_offset, one.last_offset) for one in state.state_batches] == [(100, 119)]
            assert read(peer, topic_id, 1).error_code == ErrorCode.fenced_leader_epoch
    assert "Traceback" not in broker.output
