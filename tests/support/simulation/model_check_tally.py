"""Counts the states that the model check explored in this test run, for a line at its end."""

from __future__ import annotations

from typing import Any

from nilometer.simulation.model_check import explorer
from nilometer.simulation.model_check.explorer import Explorable, Exploration

_explored: list[Exploration] = []


def explore(world: Explorable[Any], **given: Any) -> Exploration:
    """Explore as the model check does, and count the result."""
    seen = explorer.explore(world, **given)
    _explored.append(seen)
    return seen


def summary() -> str | None:
    """Return the summary line; None if nothing was explored."""
    if not _explored:
        return None
    states = sum(seen.states for seen in _explored)
    steps = sum(seen.transitions for seen in _explored)
    found = sum(seen.violation is not None for seen in _explored)
    return (
        f"model check: {states:,} states and {steps:,} steps in {len(_explored)} worlds; "
        f"{found} planted or historic faults found, each with its shortest path"
    )
