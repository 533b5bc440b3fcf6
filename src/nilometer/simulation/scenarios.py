"""The scenarios: those of the requirements for replication, and one that shows the repeated truncation of
KIP-279.

Each is a function that executes steps on a :class:`Stage`. :data:`SCENARIOS` lists them by name; ``nilometer
scenario run NAME`` prints them, and :func:`recorded` makes a recording of one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nilometer.replication.follower import TruncationRule
from nilometer.simulation.recording import End, Header, Recording
from nilometer.simulation.scenario_stage import Stage


def two_replica_sync(rule: TruncationRule) -> Stage:
    stage = Stage("AB", rule=rule)
    stage.narrate("Two replicas, both empty. A leads.")
    stage.show()
    stage.produce("A")
    stage.narrate(
        "B appends the record that it fetches: its LEO is 1. A only knows the offset of B's fetch: 0."
    )
    stage.fetch("B")
    stage.narrate(
        "The next fetch shows A that B has m1. The high watermark advances, and the response carries it."
    )
    stage.fetch("B")
    return stage


def three_replica_high_watermark(rule: TruncationRule) -> Stage:
    stage = Stage("ABC", rule=rule)
    stage.narrate("A leads with 5 records; B has 3 of them, C all. The high watermark is 3 everywhere.")
    stage.produce("A", 3)
    stage.fetch("B", max_records=3)
    stage.fetch("C", max_records=3)
    stage.fetch("B")
    stage.produce("A", 2)
    stage.fetch("C", max_records=2)
    stage.fetch("C")
    stage.narrate(
        "B fetches one record at a time, and every fetch gets a response at once. LEOs 5, 3, 5; HW 3."
    )
    stage.fetch("B", may_wait=False)
    stage.narrate("B fetches at 4: A knows now that B has 4 records, and its high watermark advances.")
    stage.fetch("B", may_wait=False)
    stage.narrate("C receives it with its next fetch.")
    stage.fetch("C", may_wait=False)
    stage.narrate("B fetches at 5: the high watermark advances to 5. B receives 4, and 5 one fetch later.")
    stage.fetch("B", may_wait=False)
    stage.fetch("C", may_wait=False)
    stage.fetch("B", may_wait=False)
    return stage


def slow_follower(rule: TruncationRule) -> Stage:
    stage = Stage("ABC", min_insync_replicas=2, rule=rule)
    stage.narrate("A leads; B and C are in sync. A record is committed when all of the ISR have it.")
    stage.produce("A")
    for name in "BCBC":
        stage.fetch(name)
    stage.narrate("C becomes slow. B fetches two more records, and the high watermark waits for C.")
    stage.produce("A", 2)
    stage.fetch("B", max_records=2)
    stage.fetch("B")
    stage.narrate(
        "After replica.lag.time.max.ms A requests the ISR without C. Then the records are committed."
    )
    stage.lag("A", "C")
    stage.fetch("B")
    stage.narrate("Two replicas are in sync, as many as min.insync.replicas needs: producers continue.")
    stage.produce("A")
    stage.fetch("B")
    stage.fetch("B")
    stage.narrate(
        "C fetches again. At the high watermark it is added to the ISR, and counts from the request on."
    )
    stage.fetch("C", max_records=3)
    stage.fetch("C")
    stage.fetch("B")
    return stage


def data_loss(rule: TruncationRule) -> Stage:
    stage = Stage("BA", rule=rule)
    stage.narrate(f"Two replicas, min.insync.replicas=1, B leads. Rule: {rule.value}.")
    stage.produce("B")
    stage.fetch("A")
    stage.fetch("A")
    stage.produce("B")
    stage.fetch("A")
    stage.narrate(
        "A has m2 but does not know that it is committed. It fetches, B counts it, and the response is lost."
    )
    stage.fetch("A", answer_is_lost=True)
    stage.narrate("A restarts so fast that it is still in the ISR.")
    stage.crash("A", notice=False)
    stage.restart("A")
    stage.narrate("Before A can fetch, B crashes. A is elected: it is in the ISR.")
    stage.crash("B")
    stage.narrate("B returns as a follower, with m2 in its log.")
    stage.restart("B")
    stage.fetch("B")
    stage.fetch("B")
    verdict = "is still there" if 2 in [value for _, value in stage.log_of("A").records] else "is lost"
    stage.narrate(f"m2, which was acknowledged, {verdict}.")
    return stage


def follower_recovery(rule: TruncationRule) -> Stage:
    stage = Stage("ABC", min_insync_replicas=2, rule=rule)
    stage.produce("A")
    for _ in range(2):
        stage.fetch("B")
        stage.fetch("C")
    stage.narrate("C fails. It leaves the ISR, and the partition continues without it.")
    stage.crash("C")
    stage.produce("A", 2)
    stage.fetch("B", max_records=2)
    stage.fetch("B")
    stage.narrate(
        "C returns. It truncates nothing, because A has all its records, and fetches the missing ones."
    )
    stage.restart("C")
    stage.fetch("C")
    stage.narrate("When it has reached the high watermark, A requests to add it to the ISR again.")
    stage.fetch("C")
    stage.fetch("C")
    return stage


def leader_recovery(rule: TruncationRule) -> Stage:
    stage = Stage("ABC", rule=rule)
    stage.produce("A", 2)
    for name in "BCBC":
        stage.fetch(name, max_records=2)
    stage.narrate("A appends m3 and crashes before any replica fetched it. m3 was never acknowledged.")
    stage.produce("A")
    stage.crash("A")
    stage.narrate(
        "B, the first live member of the ISR in the order of the assignment, leads from offset 2 on."
    )
    stage.produce("B")
    stage.fetch("C")
    stage.fetch("C")
    stage.narrate("A returns. Its last epoch is 0, which ends at 2 in B's log: A truncates to 2.")
    stage.restart("A")
    stage.fetch("A")
    stage.fetch("A")
    stage.fetch("A")
    return stage


def fenced_leader(rule: TruncationRule) -> Stage:
    stage = Stage("AB", rule=rule)
    stage.produce("A")
    stage.fetch("B")
    stage.fetch("B")
    stage.narrate("A hangs for longer than its session. B is elected, but A does not know.")
    stage.stops_reading_metadata("A")
    stage.expire("A")
    stage.narrate(
        "A still thinks that it leads in epoch 0. It can append, but not commit: B no longer fetches from it."
    )
    stage.produce("A")
    stage.narrate("It cannot shrink the ISR to itself either.")
    stage.lag("A", "B")
    stage.narrate("B leads in epoch 1 and commits alone.")
    stage.produce("B")
    stage.narrate(
        "At last A reads the metadata log. It has been fenced; it stops leading and registers again."
    )
    stage.learns("A")
    stage.restart("A")
    stage.fetch("A")
    stage.fetch("A")
    stage.fetch("A")
    return stage


def fast_leader_changes(rule: TruncationRule) -> Stage:
    stage = Stage("AB", min_insync_replicas=2, rule=rule)
    stage.narrate("A leads in epoch 0 and has 12 records; B has 10 of them.")
    stage.produce("A", 10)
    stage.fetch("B", max_records=10)
    stage.fetch("B")
    stage.produce("A", 2)
    stage.narrate(
        "A crashes. B leads in epoch 1 and appends 5 records with acks=1: they are not committed (min ISR)."
    )
    stage.crash("A")
    stage.produce("B", 5, acks_all=False)
    stage.narrate(
        "B crashes before any replica fetched them. A returns: it has all that was committed, so it may lead."
    )
    stage.crash("B")
    stage.restart("A")
    stage.produce("A", acks_all=False)
    stage.narrate(
        "B returns and fetches with last epoch 1, unknown to A, whose largest lower epoch is 0, ending at 12."
    )
    stage.narrate("B's own epoch 0 ends at 10, so the logs can be equal up to 10.")
    stage.restart("B")
    stage.fetch("B", max_records=5)
    stage.fetch("B", max_records=5)
    stage.fetch("B", max_records=5)
    return stage


class Scenario(msgspec.Struct, frozen=True):
    name: str
    summary: str
    play: Callable[[TruncationRule], Stage]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("two-replica-sync", "How one record is replicated and becomes committed", two_replica_sync),
        Scenario(
            "three-replica-high-watermark",
            "How the high watermark follows a lagging replica",
            three_replica_high_watermark,
        ),
        Scenario("slow-follower", "A slow follower leaves the ISR and returns", slow_follower),
        Scenario("data-loss", "What leader epochs are for: two restarts while the HW lags", data_loss),
        Scenario("follower-recovery", "A follower fails, returns and rejoins the ISR", follower_recovery),
        Scenario("leader-recovery", "A leader fails; its uncommitted records are truncated", leader_recovery),
        Scenario("fenced-leader", "A leader that does not know that it was replaced", fenced_leader),
        Scenario(
            "fast-leader-changes", "Logs that diverge twice become equal again (KIP-279)", fast_leader_changes
        ),
    )
}


# The recording of a scenario. The replication code decides every step again each time it is made.

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
