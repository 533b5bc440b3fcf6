"""The messages between servers, and between clients and servers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nilometer.simulation.zookeeper.tree import (
    DataTree,
    Event,
    NodeState,
    Operation,
    Refusal,
    Transaction,
)

Origin = tuple[int, int]
"""(server, request): the server with the waiting client, and the request's number at that server."""

# ---- the election


class State(enum.Enum):
    LOOKING = "looking"
    FOLLOWING = "following"
    LEADING = "leading"


@dataclass(frozen=True, slots=True, order=True)
class Vote:
    """A vote for ``server``. The greatest wins: by epoch, then by the log's last zxid."""

    epoch: int
    zxid: int
    server: int


@dataclass(frozen=True, slots=True)
class Notification:
    sender: int
    round: int
    vote: Vote
    state: State


# ---- a follower to its leader


@dataclass(frozen=True, slots=True)
class FollowerInfo:
    server: int
    accepted_epoch: int


@dataclass(frozen=True, slots=True)
class AckEpoch:
    current_epoch: int
    last_zxid: int
    counts: bool
    """False if the follower had accepted this epoch before: the message then adds nothing to the majority."""


@dataclass(frozen=True, slots=True)
class AckNewLeader:
    pass


@dataclass(frozen=True, slots=True)
class Ack:
    zxid: int


@dataclass(frozen=True, slots=True)
class Forward:
    session: int
    operation: Operation
    origin: Origin


@dataclass(frozen=True, slots=True)
class Revalidate:
    session: int
    request: int


@dataclass(frozen=True, slots=True)
class PingReply:
    touched: tuple[int, ...]
    """The sessions from which the follower has heard since its last response."""


# ---- a leader to its follower


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    epoch: int


@dataclass(frozen=True, slots=True)
class Synchronise:
    """Makes a follower's log equal to the leader's.

    The follower truncates its log to ``truncate_to``, or loads ``snapshot`` if there is one; then it appends
    ``transactions``.
    """

    truncate_to: int
    transactions: tuple[Transaction, ...]
    snapshot: DataTree | None = None


@dataclass(frozen=True, slots=True)
class NewLeader:
    epoch: int


@dataclass(frozen=True, slots=True)
class UpToDate:
    pass


@dataclass(frozen=True, slots=True)
class Propose:
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Commit:
    zxid: int


@dataclass(frozen=True, slots=True)
class Revalidated:
    request: int
    timeout_ms: int
    """The session's timeout; 0 if the session has ended."""


@dataclass(frozen=True, slots=True)
class Ping:
    pass


# ---- a client to its server


@dataclass(frozen=True, slots=True)
class Hello:
    last_zxid: int
    timeout_ms: int
    session: int
    password: int
    user: str = ""
    """The user that the client authenticates as: in place of a request of its own."""


@dataclass(frozen=True, slots=True)
class GetAcl:
    path: str


@dataclass(frozen=True, slots=True)
class GetData:
    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetExists:
    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetChildren:
    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class ClientPing:
    pass


Read = GetAcl | GetData | GetExists | GetChildren
Asked = Read | ClientPing | Operation


@dataclass(frozen=True, slots=True)
class Ask:
    xid: int
    what: Asked
    size: int


# ---- a server to its client


@dataclass(frozen=True, slots=True)
class Welcome:
    session: int
    timeout_ms: int
    """The negotiated session timeout; 0 if the session has ended."""
    password: int


@dataclass(frozen=True, slots=True)
class Answer:
    xid: int
    zxid: int
    """The newest transaction that the server has applied."""
    outcome: NodeState | list[str] | Refusal | None


@dataclass(frozen=True, slots=True)
class Fired:
    event: Event
    path: str


@dataclass(frozen=True, slots=True)
class Pong:
    pass
