"""The differences between group and transaction coordinators: topic, shards, record format and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from nilometer.cluster.image import ClusterImage
from nilometer.coordinators.turn import Effects, Token, TransactionalRecord, TransactionEnd
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode

if TYPE_CHECKING:
    from nilometer.broker.coordinators.shell import CoordinatorShell

RequestT = TypeVar("RequestT")
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
ReplyT = TypeVar("ReplyT")
RecordT = TypeVar("RecordT")
ActionT = TypeVar("ActionT")


class Shard(Protocol[RequestT_contra, ReplyT, RecordT, ActionT]):
    """The state machine of one partition of the topic. It is loaded by :meth:`replay` for each record and
    then :meth:`on_loaded`, and dropped when the broker no longer leads the partition or an append fails.

    ``now_ms`` is the monotonic time, ``wall_ms`` the time since the epoch. A ``token`` identifies a request
    until its reply. The returned effects are the records to append, and the replies and actions that wait
    until these are committed.
    """

    def replay(self, record: RecordT) -> None: ...

    def replay_transactional(self, transactional: TransactionalRecord[RecordT]) -> None: ...

    def replay_end(self, end: TransactionEnd) -> None:
        """Apply the end of a transaction: while loading, or when its marker was written to the partition."""
        ...

    def on_loaded(self, now_ms: int, wall_ms: int) -> Effects[RecordT, ReplyT, ActionT]: ...

    def handle(
        self, token: Token, request: RequestT_contra, now_ms: int, wall_ms: int
    ) -> Effects[RecordT, ReplyT, ActionT]: ...

    def forget(self, token: Token) -> None: ...

    def states(self) -> Iterable[str]:
        """Return the state of each group or transaction, under Kafka's name."""
        ...

    def on_image(
        self, image: ClusterImage, now_ms: int, wall_ms: int
    ) -> Effects[RecordT, ReplyT, ActionT]: ...

    def next_deadline_ms(self) -> int | None: ...

    def on_time(self, now_ms: int, wall_ms: int) -> Effects[RecordT, ReplyT, ActionT]: ...


class CoordinatorKind(msgspec.Struct, Generic[RequestT, ReplyT, RecordT, ActionT], frozen=True, kw_only=True):
    name: str
    """For messages: as in "the group coordinator"."""
    subject: str
    """For messages: as in "Loading groups"."""
    topic: str
    num_partitions: int
    """The partition count of ``topic`` that is assumed until the topic exists."""
    commit_timeout_ms: int
    """How long a reply waits for its records to be committed."""
    load_buffer_bytes: int
    codec: Codec
    """The compression of appended batches."""
    make_shard: Callable[[], Shard[RequestT, ReplyT, RecordT, ActionT]]
    encode: Callable[[RecordT], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None], RecordT | None]
    """Decodes key and value; None for a record of an unknown type. Raises MalformedMessage."""
    refuse: Callable[[RequestT, ErrorCode], ReplyT]
    """Makes the reply with an error to a request that reached no shard."""
    refuse_for_log: Callable[[RequestT, ErrorCode], ReplyT]
    """Makes the reply to a request whose records could not be appended or committed, from the log's error."""
    carry_out: Callable[[CoordinatorShell[RequestT, ReplyT, RecordT, ActionT], ActionT], None]
    """Carries out an action that the shard decided on; the records before it are committed."""
