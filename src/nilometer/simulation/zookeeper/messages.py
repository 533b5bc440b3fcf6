"""What servers say to each other, and what clients and servers say to each other."""

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
"""(server, request): who waits for the outcome."""

# ---- the election


class State(enum.Enum):
    LOOKING = "looking"
    FOLLOWING = "following"
    LEADING = "leading"


@dataclass(frozen=True, slots=True, order=True)
class Vote:
    """For a server, by how much it has. The greatest wins."""

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
    """False where this epoch was accepted before."""


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
    """The sessions with pings at the follower since."""


# ---- a leader to its follower


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    epoch: int


@dataclass(frozen=True, slots=True)
class Synchronise:
    """What the follower lacks, and from where on it has what never was."""

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
    """0: there is no such session any more."""


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


Read = GetData | GetExists | GetChildren
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
    """As negotiated; 0: the session has ended."""
    password: int


@dataclass(frozen=True, slots=True)
class Answer:
    xid: int
    zxid: int
    """The newest transaction that the server had applied."""
    outcome: NodeState | list[str] | Refusal | None


@dataclass(frozen=True, slots=True)
class Fired:
    event: Event
    path: str


@dataclass(frozen=True, slots=True)
class Pong:
    pass
