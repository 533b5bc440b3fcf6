"""Share sessions (KIP-932): which share partitions a member fetches from this broker, so that its requests
name only what has changed.

A member has at most one session on a broker. Epoch 0 begins one, in place of an earlier one; each later
request has the next epoch; epoch -1 ends it. A session ends with the connection of its newest request, too.
What its member holds is released then, but not if another session takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from nilometer.identifiers import TopicIdPartition
from nilometer.wire.errors import ErrorCode, KafkaError

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1
PARTITIONS_MAX: Final = 10_000
"""Of one session."""
ALL_PARTITIONS_MAX: Final = 100_000
"""Of all sessions of a broker."""


class MemberKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSession:
    __slots__ = ("connection", "epoch", "member", "partitions")

    def __init__(self, member: MemberKey, connection: object) -> None:
        self.member = member
        self.connection = connection
        """The one that the newest request came on."""
        self.epoch = INITIAL_EPOCH
        """Of the newest request."""
        self.partitions: dict[TopicIdPartition, None] = {}
        """In the order in which they are read: who was served goes to the end."""

    def rotate(self, served: Iterable[TopicIdPartition]) -> None:
        """Move partitions to the end: the others are read before them next time."""
        for key in served:
            if key in self.partitions:
                del self.partitions[key]
                self.partitions[key] = None


class ShareSessions:
    def __init__(self, slots: int) -> None:
        """``slots``: how many sessions there may be, ``group.share.max.share.sessions``."""
        self._slots = slots
        self._sessions: dict[MemberKey, ShareSession] = {}
        self._of_connection: dict[object, dict[ShareSession, None]] = {}
        self._partitions = 0  # of all sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def has(self, member: MemberKey) -> bool:
        return member in self._sessions

    def begin(
        self,
        member: MemberKey,
        epoch: int,
        connection: object,
        added: Sequence[TopicIdPartition],
        removed: Sequence[TopicIdPartition],
    ) -> tuple[ShareSession, ShareSession | None]:
        """Begin a request with ``epoch`` of a member; return its session, and the one whose place it takes.

        With ``FINAL_EPOCH`` the session is returned as it is: the caller ends it. Raises KafkaError:
        SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED.
        """
        replaced = None
        if epoch == INITIAL_EPOCH:
            replaced = self._sessions.get(member)
            if replaced is None and len(self._sessions) >= self._slots:
                raise KafkaError(ErrorCode.share_session_limit_reached)
            session = ShareSession(member, connection)
            self._check_room(session, added, replaced)
            if replaced is not None:
                self.end(replaced)
            self._sessions[member] = session
            self._of_connection.setdefault(connection, {})[session] = None
        else:
            session = self.of(member, epoch, connection)
            if epoch == FINAL_EPOCH:
                return session, None
            self._check_room(session, added, None)
        self._partitions -= len(session.partitions)
        for key in removed:
            session.partitions.pop(key, None)
        session.partitions.update(dict.fromkeys(added))
        self._partitions += len(session.partitions)
        return session, replaced

    def of(self, member: MemberKey, epoch: int, connection: object) -> ShareSession:
        """Return the session of a request that adds no partitions, as ShareAcknowledge, in its new epoch.
        Raises KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH."""
        session = self._sessions.get(member)
        if session is None:
            raise KafkaError(ErrorCode.share_session_not_found, f"no share session of {member.member_id}")
        following = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        if epoch not in (FINAL_EPOCH, following):
            raise KafkaError(
                ErrorCode.invalid_share_session_epoch, f"share session epoch {epoch}, not {following}"
            )
        if session.connection is not connection:
            self._leave_connection(session)
            session.connection = connection
            self._of_connection.setdefault(connection, {})[session] = None
        if epoch != FINAL_EPOCH:
            session.epoch = epoch
        return session

    def end(self, session: ShareSession) -> None:
        if self._sessions.get(session.member) is session:
            del self._sessions[session.member]
            self._partitions -= len(session.partitions)
            self._leave_connection(session)

    def of_connection(self, connection: object) -> list[ShareSession]:
        """Return the sessions whose newest request came on ``connection``."""
        return list(self._of_connection.get(connection, ()))

    def _leave_connection(self, session: ShareSession) -> None:
        sessions = self._of_connection.get(session.connection)
        if sessions is not None:
            sessions.pop(session, None)
            if not sessions:
                del self._of_connection[session.connection]

    def _check_room(
        self, session: ShareSession, added: Sequence[TopicIdPartition], replaced: ShareSession | None
    ) -> None:
        after = len(session.partitions) + len(added)
        freed = 0 if replaced is None else len(replaced.partitions)
        if after > PARTITIONS_MAX or self._partitions - freed + len(added) > ALL_PARTITIONS_MAX:
            raise KafkaError(ErrorCode.share_session_limit_reached, "too many partitions in share sessions")
