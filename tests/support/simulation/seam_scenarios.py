"""What a scenario of the seam's contract is, and what plays it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nilometer.runtime import Runtime

Scenario = Callable[[Runtime, str], Awaitable[None]]
"""Takes a runtime and an empty folder."""
Play = Callable[[Scenario], None]
