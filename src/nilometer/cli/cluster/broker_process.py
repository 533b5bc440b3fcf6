"""One broker of a data folder, as its commands speak of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """One broker as the data folder knows it."""

    id: int
    host: str
    port: int
    pid: int | None
    state: str
    """``running``, ``fenced`` (its process stays, and serves nothing until it is restarted) or ``down``."""
    reason: str | None = None
    """Why it is fenced, or has ended by itself."""
