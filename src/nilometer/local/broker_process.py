"""One broker of a local cluster's data folder, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """One broker of a data folder: its endpoint, process and state."""

    id: int
    host: str
    port: int
    pid: int | None
    state: str
    """``running``, ``fenced`` (its process runs but serves nothing until it is restarted) or ``down``."""
    reason: str | None = None
    """Why it is fenced or down; None while it runs."""
    metrics: str | None = None
    """The URL of its metrics, while it runs and serves them."""
