"""Commits and fetches the offsets of one group, as a member or without being one.

Evaluates the responses; the membership provides the identity to commit as, and handles errors about the
member itself.

Invariants:

- Commits are sent one after the other, in the order of the calls: an older one never undoes a newer one.
- A commit is sent as the member that requested it. Only if the coordinator responds STALE_MEMBER_EPOCH is it
  repeated in the newer epoch, and only if no partition was given up since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import (
    TOPIC_IDS_SINCE,
    MemberIdentity,
    OffsetAndMetadata,
    commit_request,
    fetch_offsets_request,
    read_commit,
    read_fetched_offsets,
)
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

NOT_A_MEMBER = frozenset(
    {ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_member_epoch}
)


class CommitFailed(KafkaError):
    """The commit failed because this consumer is not a member of the group (in this generation) any more.

    Another member owns the partitions or will, and reads the uncommitted records again. The usual reason is a
    pause between polls of more than ``max.poll.interval.ms``.
    """


class StaleEpoch(KafkaError):
    """The member's epoch is older than the coordinator's; the next heartbeat's response has the new one."""

    @property
    def retriable(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """The identity that a commit is made with."""

    identity: MemberIdentity
    revocations: int
    """How often partitions had been given up when the commit was requested."""


@dataclass(slots=True)
class _Attempt:
    left: dict[TopicPartition, OffsetAndMetadata]
    commit_identity: CommitIdentity
    is_epoch_over: bool = False
    """Whether the coordinator responded STALE_MEMBER_EPOCH to this identity."""


class Committer:
    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        identity: Callable[[], MemberIdentity],
        on_refused: Callable[[ErrorCode, MemberIdentity], None],
        revocations: Callable[[], int] = lambda: 0,
    ) -> None:
        """``identity`` returns the identity for commits now, or raises KafkaError while there is none.

        ``on_refused`` is called with the error code and the identity of every commit that fails;
        ``revocations`` returns how often partitions were given up so far.
        """
        self._client = client
        self._coordinator = coordinator
        self._identity = identity
        self._on_refused = on_refused
        self._revocations = revocations
        self._turn = asyncio.Lock()

    def commit_identity(self) -> CommitIdentity:
        """Return the identity for commits now. Raises KafkaError while there is none."""
        return CommitIdentity(self._identity(), self._revocations())

    async def commit(
        self,
        offsets: Offsets,
        timeout_ms: int,
        commit_identity: CommitIdentity | None = None,
        *,
        retries: bool = True,
    ) -> None:
        """Commit as ``commit_identity``, by default as the member's identity now.

        ``timeout_ms`` includes the wait for earlier commits. Without ``retries`` there is one attempt. Raises
        CommitFailed, or another KafkaError.
        """
        if not offsets:
            return
        attempt = _Attempt(dict(offsets), commit_identity or self.commit_identity())
        self._client.watch_topics(sorted({partition.topic for partition in offsets}))
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turn:
                if retries:
                    await self._client.retry(lambda: self._commit_once(attempt), timeout_ms)
                else:
                    await self._commit_once(attempt)
        except StaleEpoch as error:
            if not retries:
                raise
            # No newer epoch became known in time: the member may be out of the group, as after a long pause.
            raise CommitFailed(error.code, error.message) from error
        except TimeoutError:
            if attempt.is_epoch_over:  # as above: the wait for an earlier commit took the rest of the time
                raise CommitFailed(
                    ErrorCode.stale_member_epoch, f"not committed within {timeout_ms} ms"
                ) from None
            raise KafkaError(ErrorCode.request_timed_out, f"not committed within {timeout_ms} ms") from None

    async def wait_idle(self, timeout_ms: int) -> None:
        """Return once all commits requested so far have ended, or after ``timeout_ms``."""
        await asyncio.sleep(0)  # commits whose task was just created must get in line for the lock first
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000), self._turn:
                return

    async def fetch(
        self, partitions: Sequence[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition, None if there is none. Raises KafkaError."""
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self._client.watch_topics(sorted({partition.topic for partition in partitions}))

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
            await self._fetch_once([one for one in partitions if one not in found], found)
            return found

        return await self._client.retry(attempt, timeout_ms) if partitions else found

    async def _commit_once(self, attempt: _Attempt) -> None:
        """Send one OffsetCommit, and remove the committed partitions from ``attempt.left``.

        Raises StaleEpoch, CommitFailed, or another KafkaError.
        """
        if attempt.is_epoch_over:
            attempt.commit_identity = self._commit_identity_in_new_epoch(attempt.commit_identity)
            attempt.is_epoch_over = False
        left, identity = attempt.left, attempt.commit_identity.identity
        ids, at_most = self._topic_ids(left)
        response = await self._coordinator.ask(
            ApiKey.OFFSET_COMMIT,
            lambda api: commit_request(api, self._coordinator.key, identity, left, ids),
            at_most=at_most,
        )
        error: KafkaError | None = None
        for partition, code in read_commit(response, _names(ids)).items():
            if code == ErrorCode.none:
                left.pop(partition, None)
            elif error is None or error.retriable:
                error = KafkaError(code, f"commit of {partition} in group {self._coordinator.key}")
        if error is not None:
            self._coordinator.on_error(error.code, self._coordinator.node_id)
            self._on_refused(error.code, identity)
            if error.code == ErrorCode.stale_member_epoch:
                attempt.is_epoch_over = True
                raise StaleEpoch(error.code, error.message)
            if error.code in NOT_A_MEMBER:
                raise CommitFailed(error.code, error.message)
            raise error

    def _commit_identity_in_new_epoch(self, before: CommitIdentity) -> CommitIdentity:
        """Return the identity in the member's new epoch.

        Raises CommitFailed if partitions were given up since: another member may have owned them.
        """
        now = self.commit_identity()
        if now.revocations != before.revocations or now.identity.member_id != before.identity.member_id:
            raise CommitFailed(
                ErrorCode.stale_member_epoch, "the partitions were revoked after this commit was requested"
            )
        return now

    async def _fetch_once(
        self, wanted: Sequence[TopicPartition], found: dict[TopicPartition, OffsetAndMetadata | None]
    ) -> None:
        ids, at_most = self._topic_ids(wanted)
        response = await self._coordinator.ask(
            ApiKey.OFFSET_FETCH,
            lambda api: fetch_offsets_request(api, self._coordinator.key, wanted, ids, MemberIdentity()),
            at_most=at_most,
        )
        code, answers = read_fetched_offsets(response, _names(ids))
        self._coordinator.check(code, "fetching committed offsets")
        error: KafkaError | None = None
        for partition, (part_code, one) in answers.items():
            if part_code == ErrorCode.none:
                found[partition] = one
            else:
                error = KafkaError(part_code, f"committed offset of {partition}")
        if error is not None:
            raise error
        for partition in wanted:
            found.setdefault(partition, None)  # a broker may leave out partitions never committed

    def _topic_ids(
        self, partitions: Sequence[TopicPartition] | Offsets
    ) -> tuple[dict[str, UUID], int | None]:
        """Return the topics' ids, and None: any API version.

        If an id is unknown, returns no ids, and the newest API version that names topics by name.
        """
        topics = self._client.metadata.topics
        ids: dict[str, UUID] = {}
        for partition in partitions:
            known = topics.get(partition.topic)
            if known is None or known.topic_id is None:
                return {}, TOPIC_IDS_SINCE - 1
            ids[partition.topic] = known.topic_id
        return ids, None


def _names(ids: Mapping[str, UUID]) -> dict[UUID, str]:
    return {topic_id: name for name, topic_id in ids.items()}
