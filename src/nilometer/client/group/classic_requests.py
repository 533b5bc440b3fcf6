"""A classic member's requests to its coordinator: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Each is sent once, with its own timeout and connection; the member evaluates the responses. Only LeaveGroup is
retried.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.client.group.coordinator import GROUP_CHANNEL, Coordinator
from nilometer.client.group.group_config import GroupConfig
from nilometer.client.group.group_exchange import (
    MemberIdentity,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.consumer_protocol import Subscription, encode_subscription
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

JOIN_SLACK_MS = 5_000
"""How much longer than the rebalance timeout a JoinGroup response is waited for."""

Partitions = tuple[TopicPartition, ...]


class ClassicRequests:
    def __init__(self, config: GroupConfig, coordinator: Coordinator) -> None:
        self._config = config
        self._coordinator = coordinator
        self._rebalance_timeout_ms = max(
            config.request_timeout_ms, config.max_poll_interval_ms + JOIN_SLACK_MS
        )

    async def join(
        self,
        identity: MemberIdentity,
        topics: tuple[str, ...],
        owned: Partitions,
        had: tuple[int, Partitions],
        reason: str,
    ) -> Message:
        """Send JoinGroup and return the response. Raises KafkaError.

        ``had`` is the member's last generation and its assignment, for the user data of sticky assignors.
        """
        protocols = self._protocols(identity, topics, owned, had)
        return await self._coordinator.ask(
            ApiKey.JOIN_GROUP,
            lambda api: join_request(
                api,
                self._config.group_id,
                identity,
                protocols,
                session_timeout_ms=self._config.session_timeout_ms,
                rebalance_timeout_ms=self._config.max_poll_interval_ms,
                reason=reason,
            ),
            channel=GROUP_CHANNEL,
            timeout_ms=self._rebalance_timeout_ms,
        )

    async def sync(
        self, identity: MemberIdentity, protocol_name: str, shares: Sequence[tuple[str, bytes]]
    ) -> Message:
        """Send SyncGroup and return the response. Raises KafkaError.

        ``shares`` is (member id, assignment) of every member if this one is the leader, else empty.
        """
        return await self._coordinator.ask(
            ApiKey.SYNC_GROUP,
            lambda api: sync_request(api, self._config.group_id, identity, protocol_name, shares),
            channel=GROUP_CHANNEL,
            timeout_ms=self._rebalance_timeout_ms,
        )

    async def beat(self, identity: MemberIdentity) -> ErrorCode:
        """Send a heartbeat; return the error code of the response, or of the failure to get one."""
        try:
            response = await self._coordinator.ask(
                ApiKey.HEARTBEAT,
                lambda api: heartbeat_request(api, self._config.group_id, identity),
                channel=GROUP_CHANNEL,
                timeout_ms=min(self._config.request_timeout_ms, self._config.session_timeout_ms),
            )
        except KafkaError as error:
            return error.code
        code: ErrorCode = response.error_code
        return code

    async def leave(self, identity: MemberIdentity, reason: str) -> None:
        """Send LeaveGroup; failures are only logged."""
        await self._coordinator.send_leave(
            ApiKey.LEAVE_GROUP, lambda api: leave_request(api, self._config.group_id, identity, reason)
        )

    def _protocols(
        self,
        identity: MemberIdentity,
        topics: tuple[str, ...],
        owned: Partitions,
        had: tuple[int, Partitions],
    ) -> list[tuple[str, bytes]]:
        generation, last = had
        return [
            (
                assignor.name,
                encode_subscription(
                    Subscription(
                        topics,
                        assignor.user_data(last, generation),
                        owned,
                        identity.generation,
                        self._config.rack,
                    )
                ),
            )
            for assignor in self._config.assignors
        ]
