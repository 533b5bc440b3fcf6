"""How a client of ZooKeeper authenticates, and what it protects its nodes with."""

from __future__ import annotations

from dataclasses import dataclass, field

from nilometer.runtime.tls import ClientTls


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity:
    """``user`` and ``password`` are those of ZooKeeper's authentication scheme ``digest``; empty: none."""

    user: str = ""
    password: str = field(default="", repr=False)
    set_acl: bool = False
    """Whether nodes get an ACL that permits everything to the own user, and nothing to others."""
    tls: ClientTls | None = None

    @property
    def credentials(self) -> str | None:
        """The content of the request that authenticates a connection; None without a user."""
        return f"{self.user}:{self.password}" if self.user else None


OPEN = ZooKeeperSecurity()
