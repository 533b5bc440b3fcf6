"""The metadata quorum, as any broker describes it, and changes of its voters (KIP-853)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from nilometer.client.admin.requests import AdminRequests, raise_error
from nilometer.identifiers import uuid_from_text, uuid_to_text
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError

METADATA_TOPIC = "__cluster_metadata"
CHANGE_TIMEOUT_MS = 15_000
REACHED_MS = 2_500
"""A voter that has not fetched from the leader for longer counts as not reached."""


class QuorumEndpoint(msgspec.Struct, frozen=True):
    listener: str
    host: str
    port: int


class QuorumReplica(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    directory_id: str
    """"" where the broker does not say so: its metadata are in another coordination store."""
    is_leader: bool
    log_end_offset: int | None
    """None: it has not fetched from this leader."""
    lag: int | None
    """How many offsets it is behind the leader's log end."""
    fetched_ago_ms: int | None
    """How long before the response it has fetched from the leader; None: never from this one."""
    caught_up_ago_ms: int | None
    endpoints: tuple[QuorumEndpoint, ...] = ()
    """Where it listens for the others; of voters only."""

    @property
    def is_reached(self) -> bool:
        return self.fetched_ago_ms is not None and self.fetched_ago_ms <= REACHED_MS


class QuorumView(msgspec.Struct, frozen=True, kw_only=True):
    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    @property
    def is_of_brokers(self) -> bool:
        """Whether the brokers have a quorum of their own. Else the controller is shown as the only voter."""
        return all(one.directory_id for one in self.voters)

    @property
    def majority(self) -> int:
        return majority_of(len(self.voters))

    def voter(self, node_id: int) -> QuorumReplica | None:
        return next((one for one in self.voters if one.node_id == node_id), None)

    def observer(self, node_id: int) -> QuorumReplica | None:
        """Return the observer with this id; of several, as after a folder was lost, the one that fetched
        last."""
        found = [one for one in self.observers if one.node_id == node_id and one.fetched_ago_ms is not None]
        return min(found, key=lambda one: one.fetched_ago_ms or 0, default=None)

    def without(self, node_id: int) -> tuple[int, int, list[int]]:
        """Return what would be left without a voter: how many voters, how many of them are a majority, and
        which of them the leader does not reach."""
        left = [one for one in self.voters if one.node_id != node_id]
        silent = [one.node_id for one in left if not one.is_leader and not one.is_reached]
        return len(left), majority_of(len(left)), silent


def majority_of(voters: int) -> int:
    return voters // 2 + 1


class QuorumAdmin(AdminRequests):
    async def describe(self) -> QuorumView:
        """Raises KafkaError: LEADER_NOT_AVAILABLE with the reason if the quorum has no leader."""

        return read_view(await self._any(ApiKey.DESCRIBE_QUORUM, describe_request))

    async def add_voter(self, node_id: int, directory_id: str, endpoint: QuorumEndpoint) -> None:
        """Add a voter; return when that is committed. Raises KafkaError."""

        def make(api: Api) -> Message:
            listener = api.make_request(
                "Listener", name=endpoint.listener, host=endpoint.host, port=endpoint.port
            )
            return api.request(
                cluster_id=None,
                timeout=timedelta(milliseconds=CHANGE_TIMEOUT_MS),
                voter_id=node_id,
                voter_directory_id=uuid_from_text(directory_id),
                listeners=(listener,),
            )

        await self._change(ApiKey.ADD_RAFT_VOTER, make)

    async def remove_voter(self, node_id: int, directory_id: str) -> None:
        """Remove a voter; return when that is committed. Raises KafkaError."""

        def make(api: Api) -> Message:
            directory = uuid_from_text(directory_id)
            return api.request(cluster_id=None, voter_id=node_id, voter_directory_id=directory)

        await self._change(ApiKey.REMOVE_RAFT_VOTER, make)

    async def _change(self, key: ApiKey, make: Any) -> None:
        """A response that says that nothing happened is not asked for again: it may be the second one."""
        response = await self._client.send_to_any(key, make)
        raise_error(response.error_code, response.error_message)


def describe_request(api: Api) -> Message:
    partition = api.make_request("PartitionData", partition_index=0)
    topic = api.make_request("TopicData", topic_name=METADATA_TOPIC, partitions=(partition,))
    return api.request(topics=(topic,))


def read_view(response: Message) -> QuorumView:
    """Raises KafkaError."""
    raise_error(response.error_code, getattr(response, "error_message", None))
    ((found,),) = (topic.partitions for topic in response.topics)
    raise_error(found.error_code, getattr(found, "error_message", None))
    nodes = {one.node_id: one for one in getattr(response, "nodes", ())}
    leader = next((one for one in found.current_voters if one.replica_id == found.leader_id), None)
    if leader is None:
        raise KafkaError(ErrorCode.leader_not_available, "the metadata quorum has no leader")
    now_ms = leader.last_fetch_timestamp  # the leader's own, so that the clocks of others do not matter

    def read(one: Any, *, is_voter: bool) -> QuorumReplica:
        directory = getattr(one, "replica_directory_id", None)
        end = one.log_end_offset
        node = nodes.get(one.replica_id) if is_voter else None
        return QuorumReplica(
            node_id=one.replica_id,
            directory_id="" if directory is None else uuid_to_text(directory),
            is_leader=one.replica_id == found.leader_id and is_voter,
            log_end_offset=None if end < 0 else end,
            lag=None if end < 0 else max(leader.log_end_offset - end, 0),
            fetched_ago_ms=_ago(now_ms, getattr(one, "last_fetch_timestamp", -1)),
            caught_up_ago_ms=_ago(now_ms, getattr(one, "last_caught_up_timestamp", -1)),
            endpoints=()
            if node is None
            else tuple(QuorumEndpoint(each.name, each.host, each.port) for each in node.listeners),
        )

    return QuorumView(
        leader_id=found.leader_id,
        epoch=found.leader_epoch,
        high_watermark=found.high_watermark,
        voters=tuple(read(one, is_voter=True) for one in found.current_voters),
        observers=tuple(read(one, is_voter=False) for one in found.observers),
    )


def _ago(now_ms: int, at_ms: int) -> int | None:
    return None if at_ms < 0 else max(now_ms - at_ms, 0)


def quorum_member(one: QuorumReplica) -> str:
    """Return a node with its lag, if it has one, in words."""
    if one.is_leader or one.lag == 0:
        return str(one.node_id)
    lag = "has not fetched" if one.lag is None else f"lags by {one.lag}"
    return f"{one.node_id} ({lag})"
