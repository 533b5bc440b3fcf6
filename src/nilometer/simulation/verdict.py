"""The verdict of a run: clean or the most severe type of failure, with findings and statistics."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nilometer.simulation.plan import Kind, Plan


class Exit(enum.IntEnum):
    CLEAN = 0
    CRASH = 10
    NO_CONVERGENCE = 11
    WRONG_RESULT = 12


SEVERITY_ORDER = (Exit.CLEAN, Exit.NO_CONVERGENCE, Exit.CRASH, Exit.WRONG_RESULT)


@dataclass(slots=True)
class Verdict:
    plan: Plan
    exit: Exit = Exit.CLEAN
    findings: list[str] = field(default_factory=list[str])
    digest: str = ""
    simulated_s: float = 0.0
    real_s: float = 0.0
    faults: Counter[Kind] = field(default_factory=Counter[Kind])
    sends: int = 0
    acknowledged: int = 0
    read: int = 0
    workloads: Counter[str] = field(default_factory=Counter[str])
    """How often clients and operators executed each operation, by name."""
    highest: dict[str, int] = field(default_factory=dict[str, int])
    """The highest observed values of bounded resources, by name."""
    generations: int = 0
    """Number of generations of the consumer group, if there was one."""
    process_logs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    error_counts: Counter[str] = field(default_factory=Counter[str])

    def find(self, exit: Exit, findings: Iterable[str]) -> None:
        """Add findings; the most severe exit code of all becomes the run's."""
        found = list(findings)
        if found and SEVERITY_ORDER.index(exit) > SEVERITY_ORDER.index(self.exit):
            self.exit = exit
        self.findings += found
