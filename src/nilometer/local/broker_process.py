"""One broker of a local cluster's data folder, as a value, and the environment that its process gets."""

from __future__ import annotations

from collections.abc import Mapping
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


def broker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` for a process that imports a broker: Python may keep its bytecode.

    Containers often set PYTHONDONTWRITEBYTECODE for programs that start once. A broker has some 700 modules;
    to compile those of a checkout takes longer than the rest of its start.
    """
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
