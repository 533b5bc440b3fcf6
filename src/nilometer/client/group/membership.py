"""All that a consumer has to do with its group: subscribing, rebalances, commits, leaving. A shell.

Ties together who wants what (``subscription``), who is who (``classic_member`` or ``consumer_member``), which
partitions that brings (``ownership``) and how far they are read (``committer``). A consumer with a
``group.id`` whose partitions the user assigns has one too: it commits without being a member.

Invariant: what is committed automatically was returned by an earlier poll than the one that commits it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from nilometer.client.group.classic_member import ClassicMember
from nilometer.client.group.committer import CommitIdentity, Committer
from nilometer.client.group.consumer_member import ConsumerMember
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_config import GroupConfig
from nilometer.client.group.group_exchange import MemberIdentity, OffsetAndMetadata
from nilometer.client.group.member import Member
from nilometer.client.group.ownership import Ownership, RebalanceListener
from nilometer.client.group.subscription import Subscription
from nilometer.client.network.backoff import Backoff
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.jobs import Jobs
from nilometer.client.offsets.positions import Positions
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_MS = 5_000
"""How long the commits of one who leaves may take."""

OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None], None]


class Membership:
    def __init__(
        self, client: Client, config: GroupConfig, positions: Positions, attention: Callable[[], None]
    ) -> None:
        """``attention`` is called when a poll that waits should look here."""
        self.config = config
        self.subscription = Subscription()
        self._client = client
        self._clock = client.runtime.clock
        self._positions = positions
        positions.in_group = True
        self._attention = attention
        self._coordinator = Coordinator(client, config.group_id)
        self._ownership = Ownership(positions, self._on_owned)
        self._member: Member | None = None
        self._committer = Committer(
            client,
            self._coordinator,
            self._commit_identity,
            self._on_refused,
            lambda: self._ownership.revocations,
        )
        self._backoff = Backoff(
            client.settings.integer("retry.backoff.ms"), client.settings.integer("retry.backoff.max.ms")
        )
        self._jobs = Jobs("group", lambda: None)
        self._auto_commit_due_ms = self._clock.monotonic_ms() + config.auto_commit_interval_ms
        self._auto_commit_failures = 0
        self._commits = 0

    # --- what to read

    @property
    def identity(self) -> MemberIdentity:
        return self._member.identity if self._member is not None else MemberIdentity()

    @property
    def is_subscribed(self) -> bool:
        return bool(self.subscription)

    async def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        """Takes effect at the next poll. An empty subscription means to leave."""
        if not subscription:
            await self.unsubscribe()
            return
        self.subscription = subscription
        self._ownership.listener = listener
        if subscription.pattern is not None:
            self._client.watch_all_topics()
        elif self._client.watch_topics(subscription.names):
            self._client.request_refresh()
        if self._member is None:
            self._member = self._new_member()
        self._attention()

    async def unsubscribe(self) -> None:
        """Give everything up and leave the group; the consumer goes on to live."""
        await self._part("the consumer unsubscribed")
        self.subscription = Subscription()

    def request_rejoin(self, reason: str) -> None:
        if self._member is not None:
            self._member.request_rejoin(reason)

    # --- polling

    def on_poll_begun(self) -> None:
        self._refuse_in_callback()
        if self._member is not None:
            self._member.on_poll_begun()

    def on_poll_ended(self) -> None:
        if self._member is not None:
            self._member.on_poll_ended()

    async def poll(self, deadline_ms: int) -> None:
        """Whatever is due: a rebalance, an automatic commit. Raises KafkaError, and what callbacks raise."""
        if self._member is not None and self.subscription:
            await self._member.poll(deadline_ms)
        if self.config.auto_commit and self._clock.monotonic_ms() >= self._auto_commit_due_ms:
            self._commit_automatically()

    def next_wake_ms(self) -> int | None:
        """When a poll that waits has to look here again."""
        times = [self._auto_commit_due_ms] if self.config.auto_commit else []
        if self._member is not None and (wake_ms := self._member.next_wake_ms()) is not None:
            times.append(wake_ms)
        return min(times, default=None)

    # --- committed offsets

    def positions(
        self, partitions: Collection[TopicPartition] | None = None, *, changed: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where this consumer is, as far as that is known; ``changed``: and not committed yet."""
        return {
            partition: OffsetAndMetadata(position.offset, position.offset_epoch)
            for partition, position in self._positions.entries()
            if position.is_known
            and (partitions is None or partition in partitions)
            and not (changed and position.offset == position.committed_offset)
        }

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit ``offsets``, or where this consumer is. Raises CommitFailed, or another KafkaError."""
        await self._commit(self.positions() if offsets is None else offsets, self.config.api_timeout_ms)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, on_done: OnCommit | None
    ) -> None:
        """In the background, in the order of the calls, as who this consumer is now. Tried once: repeated
        later it might undo a newer commit."""
        chosen = self.positions() if offsets is None else dict(offsets)
        commit_identity = self._commit_identity_or_error()
        self._commits += 1

        async def work() -> None:
            error: KafkaError | None = None
            try:
                await self._commit_as(commit_identity, chosen)
            except KafkaError as failure:
                error = failure
                logger.warning("Group %s: an asynchronous commit failed: %s", self.config.group_id, failure)
            if on_done is not None:
                on_done(chosen, error)

        self._jobs.start(f"commit-{self._commits}", work)

    async def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._committer.fetch(partitions, self.config.api_timeout_ms)

    # --- the end

    async def close(self) -> None:
        """Commit, tell the user, leave. Raises what a callback raises, once all is done."""
        try:
            await self._part("the consumer is being closed")
        finally:
            await self._jobs.close()

    async def _part(self, reason: str) -> None:
        self._refuse_in_callback()
        member = self._member
        lost = member is not None and not member.identity.is_member
        try:
            if self.config.auto_commit and not lost:
                await self._commit_quietly(self.positions(changed=True))
            if member is not None:
                await self._ownership.give_up(self._ownership.owned(), lost=lost)
        finally:
            await self._committer.wait_idle(CLOSE_TIMEOUT_MS)  # who has left cannot commit
            self._member = None
            if member is not None:
                await member.leave(reason)

    # --- helpers

    def _new_member(self) -> Member:
        kind = ConsumerMember if self.config.uses_consumer_protocol else ClassicMember
        return kind(
            self._client,
            self.config,
            self._coordinator,
            self._ownership,
            self._topics,
            self._commit_owned,
            self._attention,
        )

    def _topics(self) -> tuple[str, ...]:
        return self.subscription.topics(
            self._client.metadata, exclude_internal=self.config.exclude_internal_topics
        )

    def _on_owned(self, topics: Collection[str]) -> None:
        if self._client.watch_topics(sorted(topics)):
            self._client.request_refresh()
        self._attention()

    def _commit_identity(self) -> MemberIdentity:
        return self._member.commit_identity() if self._member is not None else MemberIdentity()

    def _on_refused(self, code: ErrorCode, identity: MemberIdentity) -> None:
        if self._member is not None:
            self._member.on_error(code, identity)

    def _commit_identity_or_error(self) -> CommitIdentity | KafkaError:
        try:
            return self._committer.commit_identity()
        except KafkaError as error:
            return error

    async def _commit_as(
        self,
        commit_identity: CommitIdentity | KafkaError,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Once, for a commit that was asked for by ``commit_identity``."""
        if isinstance(commit_identity, KafkaError):
            raise commit_identity
        await self._committer.commit(offsets, self.config.request_timeout_ms, commit_identity, retries=False)
        self._note_committed(offsets)

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> None:
        await self._committer.commit(offsets, timeout_ms)
        self._note_committed(offsets)

    def _note_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for partition, one in offsets.items():
            position = self._positions.get(partition)
            if position is not None:
                position.committed_offset = one.offset

    def _commit_automatically(self) -> None:
        self._auto_commit_due_ms = self._clock.monotonic_ms() + self.config.auto_commit_interval_ms
        offsets = self.positions(changed=True)
        if not offsets:
            return
        commit_identity = self._commit_identity_or_error()

        async def work() -> None:
            try:
                await self._commit_as(commit_identity, offsets)
                self._auto_commit_failures = 0
            except KafkaError as error:
                logger.warning("Group %s: an automatic commit failed: %s", self.config.group_id, error)
                self._auto_commit_failures += 1
                pause_ms = self._backoff.delay_ms(self._auto_commit_failures, self._client.runtime.entropy)
                self._auto_commit_due_ms = min(
                    self._auto_commit_due_ms, self._clock.monotonic_ms() + pause_ms
                )

        self._jobs.start("auto-commit", work)

    async def _commit_owned(self, partitions: Collection[TopicPartition]) -> None:
        if self.config.auto_commit:
            await self._commit_quietly(self.positions(partitions, changed=True))

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The last commit for partitions that go: what cannot be committed will be read again by others."""
        try:
            await self._commit(offsets, CLOSE_TIMEOUT_MS)
        except KafkaError as error:
            logger.warning(
                "Group %s: the commit before the partitions are revoked failed: %s",
                self.config.group_id,
                error,
            )

    def _refuse_in_callback(self) -> None:
        if self._ownership.in_callback:
            raise KafkaError(
                ErrorCode.invalid_request, "a rebalance callback may commit and seek, but not poll"
            )
