"""What a client of a consumer group holds, whatever the coordinator believes."""

from __future__ import annotations

from dataclasses import dataclass, field

Held = set[tuple[str, int]]
"""Names with the incarnation of the topic, and partitions."""


@dataclass
class Client:
    name: str
    topics: tuple[str, ...]
    regex: str
    instance: str | None
    classic: bool
    member_id: str = ""
    epoch: int = 0
    held: Held = field(default_factory=set)
    told: Held | None = None
    """An assignment it has heard of but not carried out: it still holds what it is to revoke."""
    asks: bool = False
    """A classic client has joined and not asked for its part yet."""
    away: bool = False
    crashed: bool = False

    def forget(self) -> None:
        self.epoch, self.held, self.told = 0, set(), None

    def revoke(self) -> None:
        if self.told is not None:
            self.held, self.told = set(self.told), None
