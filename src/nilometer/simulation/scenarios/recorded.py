"""The recording of a scenario. The replication code decides every step again each time it is made."""

from __future__ import annotations

from nilometer.replication import TruncationRule
from nilometer.simulation.recording.format import End, Header, Recording
from nilometer.simulation.scenarios.catalogue import Scenario

RULES = {
    TruncationRule.BY_LEADER_EPOCH: "A follower truncates only what its leader does not have.",
    TruncationRule.TO_HIGH_WATERMARK: "A follower truncates to its high watermark, as before KIP-101.",
}


def recorded(scenario: Scenario, rule: TruncationRule) -> Recording:
    """Play ``scenario`` and return its recording."""
    stage = scenario.play(rule)
    stage.judge()
    header = Header(
        title=scenario.summary,
        description=f"Scenario {scenario.name}. {RULES[rule]}",
        names=dict(enumerate(stage.names, 1)),
    )
    events = tuple(stage.recorder.events)
    return Recording(header, events, End(events=len(events), is_cut=False))
