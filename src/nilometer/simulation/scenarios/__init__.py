"""Scenarios of replication, played on the real core and printed value by value."""

from nilometer.simulation.scenarios.catalogue import SCENARIOS, Scenario
from nilometer.simulation.scenarios.stage import Stage

__all__ = ["SCENARIOS", "Scenario", "Stage"]
