"""Stories of replication, played on the real core and printed value by value."""

from nilometer.simulation.scenarios.stage import Stage
from nilometer.simulation.scenarios.stories import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "Stage"]
