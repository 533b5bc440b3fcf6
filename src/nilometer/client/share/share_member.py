"""The membership of a share group (KIP-932): heartbeats report the subscription, and the coordinator answers
with the partitions to fetch from. Does I/O.

Nothing is given up or taken over, since members may share a partition: an assignment is in effect at once.

Invariant: a member keeps its id, also when it was fenced and joins again: what it has
acquired stays its own.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable

from nilometer.client.group.coordinator import GROUP_CHANNEL, LOST, Coordinator
from nilometer.client.group.group_settings import GroupConfig
from nilometer.client.group.member import Heartbeats
from nilometer.client.network.client import Client
from nilometer.client.network.connection_pool import Backoff
from nilometer.client.share.share_session import SharePartition
from nilometer.wire.api import Api
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
REJOIN_ERRORS = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})


class ShareMember:
    def __init__(
        self, client: Client, config: GroupConfig, topics: tuple[str, ...], on_change: Callable[[], None]
    ) -> None:
        """``on_change`` is called after a change of :attr:`assigned`, and once :attr:`failure` is set."""
        self._client = client
        self._config = config
        self._topics = topics
        self._on_change = on_change
        self._clock = client.runtime.clock
        settings = client.settings
        self._backoff = Backoff(
            settings.integer("retry.backoff.ms"), settings.integer("retry.backoff.max.ms")
        )
        self._coordinator = Coordinator(client, config.group_id)
        self._heartbeats = Heartbeats(self._clock, config, self)
        self._heartbeats.on_poll_begun()  # and never ended: this member may not be late to poll
        self._epoch = JOIN_EPOCH
        self._is_active = False
        self._has_reported = False
        self._failures = 0
        # As Kafka's own ids: brokers before 4.1 take no other.
        self.member_id = base64.urlsafe_b64encode(client.runtime.entropy.uuid().bytes).decode().rstrip("=")
        self.assigned: tuple[SharePartition, ...] = ()
        self.failure: KafkaError | None = None

    def start(self) -> None:
        self._is_active = True
        self._heartbeats.begin()

    async def close(self) -> None:
        """Leave the group; a failure is logged: the session timeout removes the member."""
        was_member = self._epoch > JOIN_EPOCH
        self._is_active = False
        await self._heartbeats.end()
        if was_member:
            await self._coordinator.send_leave(
                ApiKey.SHARE_GROUP_HEARTBEAT, lambda api: self._request(api, LEAVE_EPOCH)
            )

    # --- heartbeats

    def wants_heartbeats(self) -> bool:
        return self._is_active

    def has_changes_to_report(self) -> bool:
        return not self._has_reported and not self._failures

    def on_session_over(self, now_ms: int) -> bool:
        return False

    async def leave_on_poll_timeout(self) -> None:
        raise AssertionError("a share member is never late to poll")

    async def beat(self, now_ms: int) -> None:
        self._heartbeats.liveness.on_heartbeat_sent(now_ms)
        try:
            response = await self._coordinator.ask(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                lambda api: self._request(api, self._epoch),
                channel=GROUP_CHANNEL,
            )
            code, message = response.error_code, response.error_message or ""
        except KafkaError as error:
            response, code, message = None, error.code, error.message
        if not self._is_active:
            return
        if response is not None and code == ErrorCode.none:
            self._on_answer(response)
        else:
            self._on_refused(code, message)

    def _on_answer(self, response: Message) -> None:
        self._failures = 0
        self._has_reported = True
        self._epoch = response.member_epoch
        liveness = self._heartbeats.liveness
        liveness.heartbeat_every(max(milliseconds(response.heartbeat_interval), 1))
        now_ms = self._clock.monotonic_ms()
        liveness.on_heartbeat_answered(now_ms)
        liveness.on_heartbeat_sent(now_ms)
        if response.assignment is not None:
            self.assigned = tuple(
                SharePartition(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
            logger.debug("Group %s: assigned %s", self._config.group_id, self.assigned)
            self._on_change()

    def _on_refused(self, code: ErrorCode, message: str) -> None:
        self._failures += 1
        self._has_reported = False
        if code in REJOIN_ERRORS:
            logger.info("Group %s: fenced (%s); joining again", self._config.group_id, code.name)
            self._epoch = JOIN_EPOCH
            if self._failures == 1:
                self._failures = 0  # at once
                return
        elif code in LOST:
            self._coordinator.lose(code.name)
        elif not KafkaError(code).retriable:
            self._is_active = False
            self.failure = KafkaError(code, message or f"group {self._config.group_id}")
            self._on_change()
            return
        pause_ms = self._backoff.delay_ms(self._failures, self._client.runtime.entropy)
        self._heartbeats.liveness.on_heartbeat_failed(self._clock.monotonic_ms(), pause_ms)

    def _request(self, api: Api, epoch: int) -> Message:
        is_change = not self._has_reported and epoch >= JOIN_EPOCH
        return api.request(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            rack_id=self._config.rack if is_change else None,
            subscribed_topic_names=self._topics if is_change else None,
        )
