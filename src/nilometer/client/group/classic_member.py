"""A member of a classic group: JoinGroup, SyncGroup and heartbeats (SPEC C-4, C-5). Does I/O.

A *round* is JoinGroup, the assignment of partitions if this member is the leader, and SyncGroup. Only
:meth:`ClassicMember.poll` starts a round and applies its outcome, because the user's callbacks must run
within the user's calls; the round and the heartbeats continue in the background between polls.

Invariants:

- At most one round is under way; if something requires another one meanwhile, that is remembered.
- A response is applied only if the identity (member id and generation) is still that of the request.
- A member whose user stops polling leaves the group; its next poll reports its partitions as lost.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from nilometer.client.group.assignors import (
    AssignmentTask,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    common_protocol,
)
from nilometer.client.group.committer import CommitFailed
from nilometer.client.group.coordinator import GROUP_CHANNEL, LOST, Coordinator
from nilometer.client.group.group_exchange import (
    NO_GENERATION,
    NO_MEMBER_ID,
    Joined,
    MemberIdentity,
    heartbeat_request,
    join_request,
    leave_request,
    read_joined,
    sync_request,
)
from nilometer.client.group.group_settings import GroupConfig
from nilometer.client.group.member import POLL_TIMEOUT_REASON, CommitOwned, Heartbeats, Ownership
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.client.network.connection_pool import Backoff
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage
from nilometer.wire.value_bytes import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

# A classic member's requests to its coordinator: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
#
# Each is sent once, with its own timeout and connection; the member evaluates the responses. Only LeaveGroup
# is retried.

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


# The work of a classic group's leader: read the members' subscriptions and assign the partitions.

logger = logging.getLogger("nilometer.client.group.leading")


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    shares: tuple[tuple[str, bytes], ...]
    """(member id, encoded assignment) of every member."""
    partition_counts: Mapping[str, int]
    """The partition count of each subscribed topic at the time; 0 for a topic that did not exist."""

    def is_outdated(self, metadata: ClusterMetadata) -> bool:
        """Whether a subscribed topic has another partition count in ``metadata``."""
        return any(metadata.partition_count(topic) != count for topic, count in self.partition_counts.items())


async def assign_partitions(client: Client, assignors: Sequence[Assignor], joined: Joined) -> GroupAssignment:
    """Assign the partitions of all subscribed topics, with the assignor that the coordinator chose.

    Raises KafkaError if that assignor is not among ``assignors``.
    """
    assignor = next((one for one in assignors if one.name == joined.protocol_name), None)
    if assignor is None:
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol,
            f"the group chose assignor {joined.protocol_name!r}, which this consumer does not offer",
        )
    members = {
        member_id: read_member(member_id, instance_id, data)
        for member_id, instance_id, data in joined.members
    }
    topics = sorted({topic for member in members.values() for topic in member.topics})
    client.watch_topics(topics)
    if any(client.metadata.partition_count(topic) == 0 for topic in topics):
        await client.refresh()
    counts = {topic: client.metadata.partition_count(topic) for topic in topics}
    found = assignor.assign(
        AssignmentTask({topic: count for topic, count in counts.items() if count}, members)
    )
    shares = tuple(
        (member_id, encode_assignment(Assignment(tuple(partitions))))
        for member_id, partitions in found.items()
    )
    return GroupAssignment(shares, counts)


def read_member(member_id: str, instance_id: str | None, data: bytes) -> MemberSubscription:
    """Decode a member's subscription; if it is malformed, return one without topics.

    So that member gets no partitions, and the other members get theirs.
    """
    try:
        said = decode_subscription(data)
    except MalformedMessage as error:
        logger.warning("The subscription of member %s cannot be read: %s", member_id, error.message)
        return MemberSubscription((), instance_id=instance_id)
    return MemberSubscription(
        topics=said.topics,
        user_data=said.user_data,
        owned=tuple(TopicPartition(topic, number) for topic, number in said.owned),
        generation=said.generation,
        rack=said.rack,
        instance_id=instance_id,
    )


RETRIABLE_JOIN_ERRORS = frozenset(
    {ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress}
)
"""Errors of a round after which the next one starts without a pause."""


class MemberState(enum.Enum):
    NOT_JOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a round: the identity that the member has now, and its assigned partitions."""

    identity: MemberIdentity
    partitions: tuple[TopicPartition, ...]


class ClassicMember:
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
        """``topics`` returns the topics subscribed to now; ``attention`` is called to wake a waiting poll.

        ``commit_owned`` commits the positions of partitions before they are given up.
        """
        self.state = MemberState.NOT_JOINED
        self._client = client
        self._config = config
        self._coordinator = coordinator
        self._ownership = ownership
        self._topics = topics
        self._commit_owned = commit_owned
        self._attention = attention
        self._clock = client.runtime.clock
        self._cooperative = common_protocol(config.assignors) is RebalanceProtocol.COOPERATIVE
        self._backoff = Backoff(
            client.settings.integer("retry.backoff.ms"), client.settings.integer("retry.backoff.max.ms")
        )
        self._identity: MemberIdentity = MemberIdentity(instance_id=config.instance_id)
        self._requests = ClassicRequests(config, coordinator)
        self._heartbeats = Heartbeats(self._clock, config, self)
        self._rejoin_reason: str | None = "a new member"
        self._round: asyncio.Task[Outcome] | None = None
        self._joined_topics: tuple[str, ...] = ()
        self._group_assignment: GroupAssignment | None = None
        """The last assignment that this member made as the group's leader; None if it is not the leader."""
        self._had: tuple[int, tuple[TopicPartition, ...]] = (NO_GENERATION, ())
        """The last generation and assignment, for the user data of sticky assignors."""
        self._failures = 0
        self._retry_at_ms = 0
        self._fatal: KafkaError | None = None
        self._left = False
        """Whether the member has left since the last poll began: a poll that waits must not join again."""

    # --- called by the membership

    @property
    def identity(self) -> MemberIdentity:
        return self._identity

    def commit_identity(self) -> MemberIdentity:
        """Return the identity for commits.

        Raises KafkaError during a rebalance, and CommitFailed if this is not a member of the group.
        """
        if self.state in (MemberState.JOINING, MemberState.SYNCING):
            raise KafkaError(
                ErrorCode.rebalance_in_progress, "the group is rebalancing; commit after the next poll"
            )
        if not self._identity.is_member:
            raise CommitFailed(
                ErrorCode.unknown_member_id,
                "this consumer is not a member of its group; the next poll joins it",
            )
        return self._identity

    def on_poll_begun(self) -> None:
        self._heartbeats.on_poll_begun()

    def on_poll_ended(self) -> None:
        self._heartbeats.on_poll_ended()

    def next_wake_ms(self) -> int | None:
        """Return the time at which a waiting poll must start a round; None if none is needed."""
        return self._retry_at_ms if self._rejoin_reason is not None else None

    async def poll(self, deadline_ms: int) -> None:
        """Start, wait for and apply the rounds that are needed, until ``deadline_ms``.

        Raises KafkaError if joining again would not help, and the exceptions of the user's callbacks.
        """
        if self._fatal is not None:
            raise self._fatal
        self._left = False
        self._notice_changes()
        while not self._left and (self._rejoin_reason is not None or self._round is not None):
            if self._round is None:
                if not await self._pause(deadline_ms):
                    return
                await self._prepare()
                if self._left:
                    return
                self._start_round()
            if not await self._wait_round(deadline_ms):
                return
            outcome = self._take_outcome()
            if outcome is not None and outcome.identity == self._identity:
                await self._complete(outcome)

    def request_rejoin(self, reason: str) -> None:
        """Have the next poll start a round; ``reason`` is logged and sent to the coordinator."""
        if self._rejoin_reason is None:
            logger.info("Group %s: this member will join again: %s", self._config.group_id, reason)
            self._rejoin_reason = reason
        self._attention()

    def on_error(self, code: ErrorCode, identity: MemberIdentity) -> None:
        """Handle an error of a request that was made as ``identity``; ignore it if the identity has changed.

        An error about the member itself makes it join again; FENCED_INSTANCE_ID is raised by the next poll.
        """
        if identity != self._identity:
            return
        match code:
            case ErrorCode.unknown_member_id:
                self._reset(NO_MEMBER_ID, "the coordinator does not know this member")
            case ErrorCode.illegal_generation:
                self._reset(identity.member_id, "the group has a newer generation")
            case ErrorCode.rebalance_in_progress if self.state is MemberState.STABLE:
                self.request_rejoin("the group is rebalancing")
            case ErrorCode.fenced_instance_id:
                self._fatal = KafkaError(
                    code, f"another consumer has joined with group.instance.id {identity.instance_id}"
                )
                self._reset(NO_MEMBER_ID, "another consumer joined with its group.instance.id")
            case _:
                pass

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        """End the membership; send LeaveGroup, except for a static member that may come back.

        The caller gives up the partitions.
        """
        self._end_round()
        self._left = True
        identity = self._identity
        self._rejoin_reason = "a new member"
        self._reset(NO_MEMBER_ID, reason)
        await self._heartbeats.end()
        if identity.member_id and (for_good or identity.instance_id is None):
            await self._requests.leave(identity, reason)

    # --- a round

    def _notice_changes(self) -> None:
        """Request a round if the subscription or the topics' partition counts changed since the last one."""
        if self._rejoin_reason is not None or self._round is not None:
            return
        if self._topics() != self._joined_topics:
            self.request_rejoin("the subscribed topics changed")
        elif self._group_assignment is not None and self._group_assignment.is_outdated(self._client.metadata):
            self.request_rejoin("partition counts of the group's topics changed")

    async def _prepare(self) -> None:
        """Commit the offsets before a round, and give up the partitions that cannot be kept during it.

        With an eager assignor these are all partitions; with a cooperative one those of topics that are no
        longer subscribed to.
        """
        owned = self._ownership.owned()
        if not self._identity.is_member:
            await self._ownership.give_up(owned, lost=True)
            return
        await self._commit_owned(owned)
        if not self._identity.is_member:  # the commit's response ended the membership
            await self._ownership.give_up(owned, lost=True)
            return
        topics = self._topics()
        going = [one for one in owned if not self._cooperative or one.topic not in topics]
        await self._ownership.give_up(going)

    def _start_round(self) -> None:
        reason, self._rejoin_reason = self._rejoin_reason or "", None
        self.state = MemberState.JOINING
        self._round = asyncio.create_task(self._join_and_sync(reason), name="group-round")
        self._round.add_done_callback(self._on_round_ended)

    def _on_round_ended(self, task: asyncio.Task[Outcome]) -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the next poll handles it
        self._attention()

    async def _wait_round(self, deadline_ms: int) -> bool:
        """Wait for the round until ``deadline_ms``; return whether it has ended."""
        task = self._round
        assert task is not None
        if task.done():
            return True
        with suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(max(deadline_ms - self._clock.monotonic_ms(), 0) / 1000):
                try:
                    await asyncio.shield(task)
                except asyncio.CancelledError:
                    if not task.cancelled():
                        raise  # this poll was cancelled, not the round
        return task.done()

    def _take_outcome(self) -> Outcome | None:
        """Return the outcome of the round that has ended; None if another round is needed.

        Raises KafkaError if joining again would not help.
        """
        task, self._round = self._round, None
        if task is None or task.cancelled():
            return None
        try:
            outcome = task.result()
        except KafkaError as error:
            self._on_round_failed(error)
            return None
        self._failures = 0
        return outcome

    def _on_round_failed(self, error: KafkaError) -> None:
        at_once = error.code in RETRIABLE_JOIN_ERRORS
        delay_ms = self._backoff.delay_ms(self._failures + (not at_once), self._client.runtime.entropy)
        self._failures += 1
        self._retry_at_ms = self._clock.monotonic_ms() + delay_ms
        self.state = MemberState.NOT_JOINED
        self._rejoin_reason = self._rejoin_reason or f"joining failed: {error.code.name}"
        if self._fatal is not None:
            raise self._fatal
        if not error.retriable and not at_once:
            raise error
        logger.info("Group %s: %s; joining again", self._config.group_id, error)

    def _end_round(self) -> None:
        if self._round is not None:
            self._round.cancel()
            self._round = None

    async def _pause(self, deadline_ms: int) -> bool:
        """Wait for the end of the pause after a failure; return False if ``deadline_ms`` comes first."""
        until_ms = min(self._retry_at_ms, deadline_ms)
        if (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            await asyncio.sleep(left_ms / 1000)
        return self._clock.monotonic_ms() >= self._retry_at_ms

    async def _join_and_sync(self, reason: str) -> Outcome:
        joined = await self._join(reason)
        self._identity = replace(self._identity, member_id=joined.member_id, generation=joined.generation)
        self.state = MemberState.SYNCING
        self._heartbeats.begin()
        shares: Sequence[tuple[str, bytes]] = ()
        self._group_assignment = None
        if joined.leads:
            group_assignment = await assign_partitions(self._client, self._config.assignors, joined)
            self._group_assignment = group_assignment
            if not joined.skip_assignment:
                shares = group_assignment.shares
        data = await self._sync(joined, shares)
        self.state = MemberState.STABLE
        found = tuple(TopicPartition(topic, number) for topic, number in decode_assignment(data).partitions)
        self._had = (self._identity.generation, found)
        logger.info(
            "Group %s: member %s joined generation %d%s with %d partitions",
            self._config.group_id,
            self._identity.member_id,
            self._identity.generation,
            " as the leader" if joined.leads else "",
            len(found),
        )
        return Outcome(self._identity, found)

    async def _join(self, reason: str) -> Joined:
        while True:
            identity = self._identity
            self._joined_topics = self._topics()
            owned = tuple(self._ownership.owned())
            response = await self._requests.join(identity, self._joined_topics, owned, self._had, reason)
            if response.error_code == ErrorCode.member_id_required:
                self._identity = replace(identity, member_id=response.member_id, generation=NO_GENERATION)
                continue
            if response.error_code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
                self.on_error(response.error_code, identity)
            self._coordinator.check(response.error_code, "joining")
            return read_joined(response)

    async def _sync(self, joined: Joined, shares: Sequence[tuple[str, bytes]]) -> bytes:
        identity = self._identity
        response = await self._requests.sync(identity, joined.protocol_name, shares)
        self.on_error(response.error_code, identity)
        self._coordinator.check(response.error_code, "synchronising")
        data: bytes = response.assignment
        return data

    async def _complete(self, outcome: Outcome) -> None:
        """Apply the outcome of a round: give up owned partitions that are not assigned, and take new ones."""
        assigned = {one for one in outcome.partitions if one.topic in self._joined_topics}
        if len(assigned) < len(outcome.partitions):
            self.request_rejoin("partitions of topics no longer subscribed to were assigned")
        gone = [one for one in self._ownership.owned() if one not in assigned]
        if gone:
            self.request_rejoin(
                "partitions were assigned to other members; they get them in the next rebalance"
            )
            await self._commit_owned(gone)
            await self._ownership.give_up(gone)
        await self._ownership.take(assigned)

    # --- the session

    def wants_heartbeats(self) -> bool:
        return self.state in (MemberState.SYNCING, MemberState.STABLE)

    def has_changes_to_report(self) -> bool:
        return False

    def on_session_over(self, now_ms: int) -> bool:
        self._coordinator.lose("no heartbeat response within session.timeout.ms")
        self._heartbeats.liveness.on_heartbeat_answered(now_ms)
        return True

    async def beat(self, now_ms: int) -> None:
        identity, liveness = self._identity, self._heartbeats.liveness
        liveness.on_heartbeat_sent(now_ms)
        code = await self._requests.beat(identity)
        if identity != self._identity:
            return
        now_ms = self._clock.monotonic_ms()
        if code in (ErrorCode.none, ErrorCode.rebalance_in_progress):
            liveness.on_heartbeat_answered(now_ms)
        else:
            pause_ms = self._backoff.delay_ms(1, self._client.runtime.entropy)
            liveness.on_heartbeat_failed(now_ms, pause_ms)
            if code in LOST:
                self._coordinator.lose(code.name)
        self.on_error(code, identity)

    async def leave_on_poll_timeout(self) -> None:
        await self.leave(POLL_TIMEOUT_REASON)

    def _reset(self, member_id: str, reason: str) -> None:
        """End the membership and request a new round, which will join as ``member_id``."""
        self._identity = replace(self._identity, member_id=member_id, generation=NO_GENERATION)
        self.state = MemberState.NOT_JOINED
        self._group_assignment = None
        self.request_rejoin(reason)
