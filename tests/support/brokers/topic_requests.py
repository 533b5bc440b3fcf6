"""Metadata and CreateTopics requests, in every version."""

from __future__ import annotations

from nilometer.wire.api_keys import ApiKey
from support.brokers.two_brokers import CLOSED, Plain, Side
from support.wire.wire_peer import make


def metadata(side: Side, version: int, *topics: object, create: bool = False, **fields: object) -> Plain:
    answer = side.ask(ApiKey.METADATA, version, topics=topics, allow_auto_topic_creation=create, **fields)
    return answer if answer == CLOSED else {k: v for k, v in answer.items() if k != "brokers"}


def by_name(version: int, name: str) -> object:
    return make(ApiKey.METADATA, version, "MetadataRequestTopic", name=name)


def create(side: Side, version: int, *topics: object, **fields: object) -> Plain:
    answer = side.message(ApiKey.CREATE_TOPICS, version, topics=topics, timeout_ms=10_000, **fields)
    told = side.plain(answer)
    for topic in told["topics"]:
        topic.pop("topic_id", None)
        # What both know of the settings of a topic; each has some that the other has not.
        configs = {one["name"]: one for one in topic.pop("configs", None) or ()}
        topic["configs"] = {
            name: configs[name] for name in ("retention.ms", "cleanup.policy") if name in configs
        }
    return told
