"""A member of a consumer group (KIP-848): heartbeats report its subscription and its owned partitions.

The only request is ConsumerGroupHeartbeat. The coordinator assigns the partitions and responds with a
*target*; the next poll gives up the partitions that are not in it and takes those that are, and the next
heartbeat reports that. Other members keep fetching meanwhile. Does I/O.

Invariants:

- Heartbeats report the partitions owned at that time: a revoked partition is reported as given up only after
  the user's callback has run.
- Only :meth:`ConsumerMember.poll` applies a target, because callbacks must run within the user's calls.
- A member that was fenced, or left because its user stopped polling, has lost its partitions: its next poll
  reports that to the user before it joins again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from nilometer.client.group.committer import CommitFailed
from nilometer.client.group.coordinator import GROUP_CHANNEL, LOST, Coordinator
from nilometer.client.group.group_exchange import MemberIdentity
from nilometer.client.group.group_settings import GroupConfig
from nilometer.client.group.member import POLL_TIMEOUT_REASON, CommitOwned, Heartbeats, Ownership
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.connection_pool import Backoff
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message, milliseconds

logger = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""The member epoch with which a static member leaves that may come back."""
OWN_MEMBER_ID_SINCE = 1
UNCHANGED_MS = -1

REJOIN_ERRORS = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})

Target = Mapping[UUID, tuple[int, ...]]
"""Topic id to partition indexes."""


class ConsumerMember:
    def __init__(
        self,
        client: Client,
        config: GroupConfig,
        coordinator: Coordinator,
        ownership: Ownership,
        topics: Callable[[], tuple[str, ...]],
        commit_owned: CommitOwned,
        attention: Callable[[], None],
    ) -> None:
        """The arguments are those of :class:`~nilometer.client.group.classic_member.ClassicMember`."""
        self._client = client
        self._config = config
        self._coordinator = coordinator
        self._ownership = ownership
        self._topics = topics
        self._commit_owned = commit_owned
        self._attention = attention
        self._clock = client.runtime.clock
        self._backoff = Backoff(
            client.settings.integer("retry.backoff.ms"), client.settings.integer("retry.backoff.max.ms")
        )
        self._member_id = str(client.runtime.entropy.uuid())
        self._epoch = JOIN_EPOCH
        self._active = False
        """Whether heartbeats are sent: from the first poll on, until the member leaves or is fenced."""
        self._lost = False
        """Whether the owned partitions are lost; the next poll reports that to the user."""
        self._heartbeats = Heartbeats(self._clock, config, self)
        self._target: Target | None = None
        """The last assignment received that is not applied yet."""
        self._told = False
        """Whether on_partitions_assigned has run, if only for no partitions, since this member joined."""
        self._topic_ids: dict[str, UUID] = {}
        self._reported_topics: tuple[str, ...] | None = None
        self._reported_owned: list[TopicPartition] | None = None
        """The partitions last reported to the coordinator; None: the next heartbeat reports everything."""
        self._failures = 0
        self._fatal: KafkaError | None = None

    # --- called by the membership

    @property
    def identity(self) -> MemberIdentity:
        if not self._active or self._epoch <= JOIN_EPOCH:
            return MemberIdentity(self._member_id, instance_id=self._config.instance_id)
        return MemberIdentity(self._member_id, self._epoch, self._config.instance_id)

    def commit_identity(self) -> MemberIdentity:
        identity = self.identity
        if not identity.is_member:
            raise CommitFailed(
                ErrorCode.unknown_member_id,
                "this consumer is not a member of its group; the next poll joins it",
            )
        return identity

    def on_poll_begun(self) -> None:
        self._heartbeats.on_poll_begun()

    def on_poll_ended(self) -> None:
        self._heartbeats.on_poll_ended()

    def next_wake_ms(self) -> int | None:
        """Return when a waiting poll must retry a target whose topics the metadata lacks; None if none."""
        return None if self._target is None else self._clock.monotonic_ms() + self._backoff.initial_ms

    async def poll(self, deadline_ms: int) -> None:
        """Report lost partitions, join if needed, and apply the last target.

        Raises KafkaError for errors that a retry does not cure, and the exceptions of the user's callbacks.
        """
        if self._fatal is not None:
            error, self._fatal = self._fatal, None
            raise error
        if self._lost:
            self._lost = False
            await self._ownership.give_up(self._ownership.owned(), lost=True)
        if not self._active:
            self._join()
        if self._topics() != self._reported_topics:
            self._heartbeats.wake()
        if self._target is not None:
            await self._reconcile(self._target)

    def request_rejoin(self, reason: str) -> None:
        """Send a heartbeat soon if there are changes: only the coordinator can start a rebalance."""
        self._heartbeats.wake()

    def on_error(self, code: ErrorCode, identity: MemberIdentity) -> None:
        """Handle the error of a commit: if it fenced this member, send a full heartbeat soon to find out."""
        if code in REJOIN_ERRORS and identity == self.identity:
            self._reported_topics = None
            self._heartbeats.wake()

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        identity = self.identity
        self._end(lost=self._lost)
        self._member_id = str(self._client.runtime.entropy.uuid())  # if it joins again, as a new member
        await self._heartbeats.end()
        if identity.is_member:
            logger.info("Group %s: leaving: %s", self._config.group_id, reason)
            await self._send_leave(identity.member_id, for_good)

    # --- applying a target

    async def _reconcile(self, target: Target) -> None:
        wanted, complete = self._named(target)
        owned = self._ownership.owned()
        going = [one for one in owned if one not in wanted]
        if going:
            await self._commit_owned(going)
            if not self._active:
                return  # fenced meanwhile: they are lost
            await self._ownership.give_up(going)
        if self._target is target and complete:
            self._target = None
        if wanted != set(self._ownership.owned()) or (complete and not self._told):
            self._told = True
            await self._ownership.take(wanted)
        self._heartbeats.wake()

    def _named(self, target: Target) -> tuple[set[TopicPartition], bool]:
        """Return the target's partitions with topic names, and whether all its topic ids are known.

        Requests a metadata refresh for unknown ones.
        """
        found: set[TopicPartition] = set()
        complete = True
        for topic_id, numbers in target.items():
            name = self._client.metadata.topic_name(topic_id)
            if name is None:
                complete = False
                self._client.request_refresh()
                continue
            self._topic_ids[name] = topic_id
            found.update(TopicPartition(name, number) for number in numbers)
        return found, complete

    # --- heartbeats

    def _join(self) -> None:
        """Start the heartbeats; the first one joins the group."""
        self._epoch = JOIN_EPOCH
        self._active = True
        self._told = False
        self._reported_topics = self._reported_owned = None
        self._heartbeats.begin()

    def wants_heartbeats(self) -> bool:
        return self._active

    def on_session_over(self, now_ms: int) -> bool:
        return False

    def has_changes_to_report(self) -> bool:
        if self._failures:
            return False  # a failed heartbeat is repeated after the pause
        return self._reported_topics != self._topics() or self._reported_owned != self._ownership.owned()

    async def beat(self, now_ms: int) -> None:
        epoch, member_id = self._epoch, self._member_id
        topics, owned = self._topics(), self._ownership.owned()
        everything = epoch == JOIN_EPOCH or self._reported_owned is None
        self._heartbeats.liveness.on_heartbeat_sent(now_ms)
        try:
            response = await self._coordinator.ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                lambda api: self._request(
                    api,
                    epoch,
                    member_id,
                    topics=topics if everything or topics != self._reported_topics else None,
                    owned=owned if everything or owned != self._reported_owned else None,
                    everything=everything,
                ),
                channel=GROUP_CHANNEL,
            )
            code, message = response.error_code, response.error_message or ""
        except KafkaError as error:
            response, code, message = None, error.code, error.message
        if not self._active or (epoch, member_id) != (self._epoch, self._member_id):
            return
        if response is not None and code == ErrorCode.none:
            self._reported_topics, self._reported_owned = topics, owned
            self._on_answer(response)
        else:
            self._on_refused(code, message)

    def _on_answer(self, response: Message) -> None:
        self._failures = 0
        self._member_id = response.member_id or self._member_id
        if response.member_epoch != self._epoch:
            logger.info(
                "Group %s: member %s is in epoch %d",
                self._config.group_id,
                self._member_id,
                response.member_epoch,
            )
        self._epoch = response.member_epoch
        liveness = self._heartbeats.liveness
        liveness.heartbeat_every(max(milliseconds(response.heartbeat_interval), 1))
        now_ms = self._clock.monotonic_ms()
        liveness.on_heartbeat_answered(now_ms)
        liveness.on_heartbeat_sent(now_ms)
        if response.assignment is not None:
            self._target = {
                topic.topic_id: tuple(topic.partitions) for topic in response.assignment.topic_partitions
            }
            self._attention()

    def _on_refused(self, code: ErrorCode, message: str) -> None:
        now_ms = self._clock.monotonic_ms()
        self._failures += 1
        self._reported_topics = self._reported_owned = None
        if code in REJOIN_ERRORS:
            logger.info("Group %s: fenced (%s); joining again", self._config.group_id, code.name)
            self._end(lost=True)
            self._failures = 0
        elif code in LOST or KafkaError(code).retriable:
            if code in LOST:
                self._coordinator.lose(code.name)
            pause_ms = self._backoff.delay_ms(self._failures, self._client.runtime.entropy)
            self._heartbeats.liveness.on_heartbeat_failed(now_ms, pause_ms)
        else:
            self._fatal = KafkaError(code, message or f"group {self._config.group_id}")
            self._end(lost=True)
        self._attention()

    def _end(self, *, lost: bool) -> None:
        """End the membership; the next poll joins again.

        ``lost``: others may have the owned partitions already, so they are lost, not revoked.
        """
        self._active = False
        self._lost = lost
        self._target = None
        self._epoch = JOIN_EPOCH

    def _request(
        self,
        api: Api,
        epoch: int,
        member_id: str,
        *,
        topics: Collection[str] | None = None,
        owned: Collection[TopicPartition] | None = None,
        everything: bool = False,
    ) -> Message:
        own_id = api.version >= OWN_MEMBER_ID_SINCE or epoch != JOIN_EPOCH
        fields: dict[str, object] = {}
        if api.version >= OWN_MEMBER_ID_SINCE:
            fields["subscribed_topic_regex"] = None
        return api.request(
            **fields,
            group_id=self._config.group_id,
            member_id=member_id if own_id else "",
            member_epoch=epoch,
            instance_id=self._config.instance_id if everything or epoch < JOIN_EPOCH else None,
            rack_id=self._config.rack if everything else None,
            rebalance_timeout_ms=self._config.max_poll_interval_ms if everything else UNCHANGED_MS,
            subscribed_topic_names=None if topics is None else tuple(topics),
            server_assignor=self._config.remote_assignor if everything else None,
            topic_partitions=None if owned is None else self._with_ids(api, owned),
        )

    def _with_ids(self, api: Api, owned: Collection[TopicPartition]) -> tuple[Message, ...]:
        by_topic: dict[UUID, list[int]] = {}
        for topic, number in owned:
            by_topic.setdefault(self._topic_ids[topic], []).append(number)
        return tuple(
            api.make_request("TopicPartitions", topic_id=topic_id, partitions=tuple(numbers))
            for topic_id, numbers in by_topic.items()
        )

    # --- leaving

    async def leave_on_poll_timeout(self) -> None:
        self._lost = True
        await self.leave(POLL_TIMEOUT_REASON)

    async def _send_leave(self, member_id: str, for_good: bool) -> None:
        leaves = for_good or self._config.instance_id is None
        epoch = LEAVE_EPOCH if leaves else STATIC_LEAVE_EPOCH
        await self._coordinator.send_leave(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda api: self._request(api, epoch, member_id)
        )
