"""The judge of services: one that ended, one that stands still, and those that are all right."""

from __future__ import annotations

import pytest

from nilometer.broker.tasks import Tasks
from nilometer.simulation.checkers.running_brokers import Services, overdue_ms
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.world import World


def test_a_round_is_overdue_behind_its_interval_and_the_pause_after_failures() -> None:
    async def never() -> None:
        raise AssertionError

    async def scenario(world: World) -> None:
        tasks = Tasks()
        tasks.periodic("rounds", 1_000, never)
        service = tasks.services["rounds"]
        assert overdue_ms(service, service.started_ms + 1_000) == 0
        assert overdue_ms(service, service.started_ms + 5_000) == 4_000
        service.note_round(5_000)
        assert overdue_ms(service, 6_500) == 500
        service.note_failure(OSError())
        service.note_failure(OSError())
        assert overdue_ms(service, 6_500) < 0
        service.interval_ms = None
        assert overdue_ms(service, 1e9) == 0
        await tasks.stop()

    World(1).run(scenario)


@pytest.mark.parametrize("how", ["ended", "stands still", "well"])
def test_services_that_ended_or_stand_still_are_found(how: str) -> None:
    async def scenario(world: World) -> list[str]:
        cluster = Cluster(world)
        await cluster.set_up()
        broker = cluster.nodes[2].broker
        assert broker is not None
        service = broker.parts.given.tasks.services["retention"]
        if how == "ended":
            service.is_alive = False
        if how == "stands still":
            service.last_round_ms = service.started_ms = -10_000_000
        checker = Services(cluster)
        checker.look_at_rest()
        checker.look_at_rest()
        return checker.violations

    found = World(3).run(scenario)
    assert len(found) == (0 if how == "well" else 1)
    assert all(line.startswith("services: retention of broker-2") for line in found)
