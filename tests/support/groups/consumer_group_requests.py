"""Sends requests of KIP-848 groups to one broker: heartbeats, descriptions, commits; for comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.value_bytes import Subscription, encode_subscription

from ..brokers.two_brokers import Plain, Side
from ..wire.wire_peer import make
from .group_requests import commit_fields, join_fields, sync_fields, wait_for_coordinator

KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
COOPERATIVE = ((("cooperative-sticky"), encode_subscription(Subscription(("shared-848",), version=1))),)


class ConsumerGroup:
    """A group on one broker; ``name`` is part of its id."""

    def __init__(self, side: Side, name: str, version: int = 1) -> None:
        self.side = side
        self.name = f"kip-848 {name}"
        self.version = version
        wait_for_coordinator(side, self.name)

    def message(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: Iterable[str] | None = None,
        regex: str | None = None,
        owned: Mapping[str, Iterable[int]] | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        rack: str | None = None,
        rebalance_ms: int = -1,
    ) -> Any:
        claimed = None
        if owned is not None:
            claimed = tuple(
                make(
                    KEY,
                    self.version,
                    "TopicPartitions",
                    topic_id=self.side.topic_ids[name],
                    partitions=tuple(partitions),
                )
                for name, partitions in owned.items()
            )
        fields: dict[str, object] = {} if self.version == 0 else {"subscribed_topic_regex": regex}
        return self.side.message(
            KEY,
            self.version,
            group_id=self.name,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout=timedelta(milliseconds=rebalance_ms),
            subscribed_topic_names=None if topics is None else tuple(topics),
            server_assignor=assignor,
            topic_partitions=claimed,
            **fields,
        )

    def beat(self, member_id: str, epoch: int, **fields: Any) -> Plain:
        return self.side.plain(self.message(member_id, epoch, **fields))

    def enter(self, member_id: str, *topics: str, **fields: Any) -> Plain:
        fields = {"topics": topics or ("shared-848",), "owned": {}, "rebalance_ms": 30_000, **fields}
        fields.setdefault("assignor", "range")
        return self.beat(member_id, 0, **fields)

    def describe(self) -> Plain:
        told = self.side.ask(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            1,
            group_ids=(self.name,),
            include_authorized_operations=False,
        )
        for group in told["groups"]:
            for member in group["members"]:
                member.pop("client_id")
                member.pop("client_host")
        return told

    def listed(self) -> Plain:
        told = self.side.ask(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=())
        return [group for group in told["groups"] if group["group_id"] == self.name]

    def commit(self, member_id: str, epoch: int, *partitions: int, topic: str = "shared-848") -> Plain:
        offsets = dict.fromkeys(partitions, 7)
        fields = commit_fields(9, self.name, topic, offsets, member_id=member_id, generation=epoch)
        return self.side.ask(ApiKey.OFFSET_COMMIT, 9, **fields)

    def fetch(self, member_id: str | None, epoch: int) -> Plain:
        asked = make(
            ApiKey.OFFSET_FETCH,
            9,
            "OffsetFetchRequestGroup",
            group_id=self.name,
            member_id=member_id,
            member_epoch=epoch,
            topics=None,
        )
        return self.side.ask(ApiKey.OFFSET_FETCH, 9, groups=(asked,), require_stable=False)

    def join(self, member_id: str = "", **fields: Any) -> Any:
        fields = {"protocols": COOPERATIVE, **fields}
        return self.side.message(ApiKey.JOIN_GROUP, 9, **join_fields(9, self.name, member_id, **fields))

    def sync(self, member_id: str, generation: int, **fields: Any) -> Plain:
        fields = {"protocol_name": "cooperative-sticky", **fields}
        return self.side.ask(
            ApiKey.SYNC_GROUP, 5, **sync_fields(5, self.name, member_id, generation, **fields)
        )

    def classic_heartbeat(self, member_id: str, generation: int) -> Plain:
        return self.side.ask(
            ApiKey.HEARTBEAT,
            4,
            group_id=self.name,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=None,
        )
