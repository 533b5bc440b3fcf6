"""What a run came to: clean, or the gravest of what was found, and what it was made of."""

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
    """What clients and operators did, by name and how often."""
    highest: dict[str, int] = field(default_factory=dict[str, int])
    """What is to stay small, and the most that was seen of it."""
    generations: int = 0
    """Of the consumer group, if there was one."""
    process_logs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    error_counts: Counter[str] = field(default_factory=Counter[str])

    def find(self, exit: Exit, findings: Iterable[str]) -> None:
        """The gravest kind of failure names the run."""
        found = list(findings)
        if found and SEVERITY_ORDER.index(exit) > SEVERITY_ORDER.index(self.exit):
            self.exit = exit
        self.findings += found
