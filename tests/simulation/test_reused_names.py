"""The program that reuses a topic name: what it takes for lost, and what it does not."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import draw
from nilometer.simulation.run import run
from nilometer.simulation.workload.reused_names import Incarnation, NameReuser
from nilometer.simulation.world import World

TOPIC = UUID(int=7)


def _judged(seen: dict[tuple[int, int], str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of topic 3, to which two records were acknowledged, one of which may be deleted."""

    async def read(*_: object) -> dict[tuple[int, int], str]:
        return seen

    reuser = NameReuser(World(1).host("clients"), "nowhere:1", flush_each=False)
    topic = Incarnation(3, TOPIC, {(0, 4): "3-1", (0, 5): "3-2"}, {0: 5})
    monkeypatch.setattr(reuser, "_read", read)
    asyncio.run(reuser._compare(None, topic))  # type: ignore[arg-type]
    return reuser.troubles


def test_records_that_are_there_or_may_be_gone_are_all_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _judged({(0, 4): "3-1", (0, 5): "3-2", (1, 0): "3-9"}, monkeypatch) == []
    assert _judged({(0, 5): "3-2"}, monkeypatch) == []


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ({}, "has no record at 0/5: 3-2 was acknowledged"),
        ({(0, 4): "3-9", (0, 5): "3-2"}, "has 3-9 at 0/4: 3-1 was acknowledged"),
        ({(0, 5): "3-2", (1, 0): "2-8"}, "has 2-8 of an earlier one at 1/0"),
    ],
)
def test_what_is_lost_or_left_over_is_found(
    seen: dict[tuple[int, int], str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [found in trouble for trouble in _judged(seen, monkeypatch)] == [True]


def test_a_drawn_seed_reuses_a_name_and_kills_all_brokers() -> None:
    plan = next(plan for seed in range(100) if (plan := draw(seed, 0.5, [Kind.CRASH_ALL])).reuses_names)
    verdict = run(plan)
    assert verdict.findings == [], f"nilometer simulate --seed {plan.seed} --minutes 0.5 --faults crash-all"
    assert verdict.workloads["topics of a reused name"] > 0
    assert verdict.faults[Kind.CRASH_ALL] > 0
