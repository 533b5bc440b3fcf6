"""A consumer's side of its group: subscribing, rebalances, commits, leaving. Does I/O.

Combines ``member`` (the subscription, the assigned partitions), ``classic_member`` or ``consumer_member``
(the group protocol) and ``committer`` (the committed offsets). A consumer with a
``group.id`` whose partitions the user assigns has a membership too: it commits without being a member.

Invariant: an automatic commit only covers records that a poll before the current one returned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from nilometer.client.group.classic_member import ClassicMember
from nilometer.client.group.committer import CommitIdentity, Committer
from nilometer.client.group.consumer_member import ConsumerMember
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import MemberIdentity, OffsetAndMetadata
from nilometer.client.group.group_settings import GroupConfig
from nilometer.client.group.member import Member, Ownership, RebalanceListener, Subscription
from nilometer.client.network.client import Client, Jobs
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.connection_pool import Backoff
from nilometer.client.positions import Positions
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_MS = 5_000
"""How long the last commits may take when partitions are given up or the consumer closes."""

OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaError | None], None]


class Membership:
    def __init__(
        self, client: Client, config: GroupConfig, positions: Positions, attention: Callable[[], None]
    ) -> None:
        """``attention`` is called to wake a waiting poll of the consumer."""
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

    # --- the subscription

    @property
    def identity(self) -> MemberIdentity:
        return self._member.identity if self._member is not None else MemberIdentity()

    @property
    def is_subscribed(self) -> bool:
        return bool(self.subscription)

    async def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        """Subscribe from the next poll on. An empty subscription leaves the group at once."""
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
        """Commit (with auto commit), give up all partitions and leave the group.

        The consumer stays open and may subscribe again.
        """
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
        """Perform the rebalance and the automatic commit that are due.

        Raises KafkaError, and the exceptions of the user's callbacks.
        """
        if self._member is not None and self.subscription:
            await self._member.poll(deadline_ms)
        if self.config.auto_commit and self._clock.monotonic_ms() >= self._auto_commit_due_ms:
            self._commit_automatically()

    def next_wake_ms(self) -> int | None:
        """Return the time at which a waiting poll must call :meth:`poll` again; None: no such time."""
        times = [self._auto_commit_due_ms] if self.config.auto_commit else []
        if self._member is not None and (wake_ms := self._member.next_wake_ms()) is not None:
            times.append(wake_ms)
        return min(times, default=None)

    # --- committed offsets

    def positions(
        self, partitions: Collection[TopicPartition] | None = None, *, changed: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the known positions of ``partitions`` (None: of all), as offsets to commit.

        ``changed`` leaves out those that are committed already.
        """
        return {
            partition: OffsetAndMetadata(position.offset, position.offset_epoch)
            for partition, position in self._positions.entries()
            if position.is_known
            and (partitions is None or partition in partitions)
            and not (changed and position.offset == position.committed_offset)
        }

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit ``offsets`` (None: all positions). Raises CommitFailed, or another KafkaError."""
        await self._commit(self.positions() if offsets is None else offsets, self.config.api_timeout_ms)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, on_done: OnCommit | None
    ) -> None:
        """Commit ``offsets`` (None: all positions) in the background, in the order of the calls.

        The commit is made with the member's present identity, and tried once: a retry might undo a newer
        commit. ``on_done`` is called with the offsets and the error or None.
        """
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

    async def close(self, *, for_good: bool = False) -> None:
        """Commit (with auto commit), give up the partitions and leave the group.

        A static member leaves only ``for_good``. Raises the exception of the user's callback, after
        everything is done.
        """
        try:
            await self._part("the consumer is being closed", for_good=for_good)
        finally:
            await self._jobs.close()

    async def _part(self, reason: str, *, for_good: bool = False) -> None:
        self._refuse_in_callback()
        member = self._member
        lost = member is not None and not member.identity.is_member
        try:
            if self.config.auto_commit and not lost:
                await self._commit_quietly(self.positions(changed=True))
            if member is not None:
                await self._ownership.give_up(self._ownership.owned(), lost=lost)
        finally:
            await self._committer.wait_idle(CLOSE_TIMEOUT_MS)  # before leaving: commits need a member
            self._member = None
            if member is not None:
                await member.leave(reason, for_good=for_good)

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
        """Commit ``offsets`` as ``commit_identity``, in one attempt. Raises it if it is an error."""
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
        """Commit before partitions are given up; log a failure: other members then read the records again."""
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
                ErrorCode.invalid_request,
                "a rebalance callback may commit and seek, but not poll, unsubscribe or close",
            )
