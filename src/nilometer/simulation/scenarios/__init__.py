"""Scenarios of replication, executed with the real replication code and printed with all values."""

from nilometer.simulation.scenarios.catalogue import SCENARIOS, Scenario
from nilometer.simulation.scenarios.stage import Stage

__all__ = ["SCENARIOS", "Scenario", "Stage"]
