"""What one kind of coordinator brings: its topic, its shards, its record format and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from nilometer.cluster.image import ClusterImage
from nilometer.coordinators.effects import Effects, Token
from nilometer.coordinators.transactional import TransactionalRecord, TransactionEnd
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
    """One partition of the topic, as a state machine: loaded with :meth:`replay` for each of its records and
    then :meth:`on_loaded`, and dropped when the broker leads the partition no longer or an append fails."""

    def replay(self, record: RecordT) -> None: ...

    def replay_transactional(self, transactional: TransactionalRecord[RecordT]) -> None: ...

    def replay_end(self, end: TransactionEnd) -> None:
        """While loading, and when a marker is written live."""
        ...

    def on_loaded(self, now_ms: int, wall_ms: int) -> Effects[RecordT, ReplyT, ActionT]: ...

    def handle(
        self, token: Token, request: RequestT_contra, now_ms: int, wall_ms: int
    ) -> Effects[RecordT, ReplyT, ActionT]: ...

    def forget(self, token: Token) -> None: ...

    def on_image(
        self, image: ClusterImage, now_ms: int, wall_ms: int
    ) -> Effects[RecordT, ReplyT, ActionT]: ...

    def next_deadline_ms(self) -> int | None: ...

    def on_time(self, now_ms: int, wall_ms: int) -> Effects[RecordT, ReplyT, ActionT]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorKind(Generic[RequestT, ReplyT, RecordT, ActionT]):
    name: str
    """As in "the group coordinator"."""
    subject: str
    """What is loaded, as in "Loading groups"."""
    topic: str
    num_partitions: int
    """Of ``topic``, until it exists."""
    commit_timeout_ms: int
    """How long a reply waits for its records to be committed."""
    load_buffer_bytes: int
    codec: Codec
    """Of the batches that are appended."""
    make_shard: Callable[[], Shard[RequestT, ReplyT, RecordT, ActionT]]
    encode: Callable[[RecordT], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None], RecordT | None]
    """None: a record of no type that is known here. Raises MalformedMessage."""
    refuse: Callable[[RequestT, ErrorCode], ReplyT]
    """The error as the answer to a whole request that reached no shard."""
    refuse_for_log: Callable[[RequestT, ErrorCode], ReplyT]
    """The answer where the log gave this error to an append, or to the wait for its commit."""
    carry_out: Callable[[CoordinatorShell[RequestT, ReplyT, RecordT, ActionT], ActionT], None]
    """Carries out an action whose records are committed."""
