"""How many states the model check went through in this test run, told at its end."""

from __future__ import annotations

from typing import Any

from nilometer.simulation import model_check
from nilometer.simulation.model_check import Exploration
from nilometer.simulation.model_check.explorer import Explorable

_explored: list[Exploration] = []


def explore(world: Explorable[Any], **limits: Any) -> Exploration:
    """As the model check does it, and counted."""
    seen = model_check.explore(world, **limits)
    _explored.append(seen)
    return seen


def summary() -> str | None:
    """None where nothing was explored."""
    if not _explored:
        return None
    states = sum(seen.states for seen in _explored)
    steps = sum(seen.transitions for seen in _explored)
    found = sum(seen.violation is not None for seen in _explored)
    return (
        f"model check: {states:,} states and {steps:,} steps in {len(_explored)} worlds; "
        f"{found} planted or historic faults found, each with its shortest path"
    )
