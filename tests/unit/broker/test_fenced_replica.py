"""A broken invariant fences its replica, in every place that finds it; another broker leads, and the rest
goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nilometer.broker.replicas.delayed_requests import DeleteOutcome
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.admin.replica_survey import ReplicaSurvey
from nilometer.client.producer.producer import Producer
from nilometer.invariants import InvariantBroken
from nilometer.replication.leader import LeaderRole
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.world import Host, World
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import ReplicaState

BROKEN, SOUND = "broken", "sound"
PRODUCE = object()
Trigger = Any
"""What meets the broken member: PRODUCE, or a call of the partition; None where a service does."""


def _delete(partition: Partition) -> None:
    partition.delete_records(-1, DeleteOutcome(0), None)  # type: ignore[arg-type]


def _hold(partition: Partition) -> None:
    partition.hold_until_committed(partition.log.log_end_offset, None)  # type: ignore[arg-type]


class Scenario:
    """Three brokers; on the first, ``member`` of the leader of one partition is broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, member: str, trigger: Any) -> None:
        self._monkeypatch = monkeypatch
        self._member = member
        self._trigger = trigger
        self.was_broken = False

    async def play(self, world: World) -> None:
        self.cluster, self.clients = Cluster(world, brokers=3, one_machine=True), world.host("clients")
        await self.cluster.set_up()
        await self._on(self.clients, self._create)
        await self._until(lambda: self._is_led(BROKEN) and self._is_led(SOUND))
        await self._produce(SOUND)
        await self._produce(BROKEN)
        partition = self._partition(BROKEN)
        self._break(partition.leader)
        if self._trigger is PRODUCE:
            await self._produce(BROKEN)
        elif self._trigger is not None:
            with pytest.raises(KafkaError) as refused:
                self._trigger(partition)
            assert refused.value.code is ErrorCode.kafka_storage_error
        await self._until(lambda: self.was_broken)
        await self._until(lambda: self._leader(BROKEN) in (2, 3))

        broker = self.cluster.nodes[1].broker
        assert broker is not None, "the broker goes on"
        replicas = broker.parts.replication.replicas
        assert not replicas.hosts(partition)
        assert not isinstance(partition.replica.role, LeaderRole)
        assert "an invariant was broken" in replicas.offline.reason(partition.key)
        state = self._state(BROKEN)
        assert (state.offline, sorted(state.isr)) == ((1,), [2, 3])
        assert not any(each.failure for each in replicas.logs.directories), "no disk failed"
        await self._produce(BROKEN)
        await self._produce(SOUND)
        assert self._leader(SOUND) == 1
        shown = await self._survey()
        assert (shown.role, len(shown.problems)) == ("offline", 1)
        assert "a planted sentence" in shown.problems[0]
        assert all(one.is_alive for one in broker.parts.given.tasks.services.values() if one.interval_ms)

    def _break(self, role: LeaderRole) -> None:
        found: Any = getattr(LeaderRole, self._member)

        def planted(leader: LeaderRole, *arguments: Any) -> Any:
            if leader is role:
                self.was_broken = True
                raise InvariantBroken("a planted sentence", ())
            return found.__get__(leader) if isinstance(found, property) else found(leader, *arguments)

        self._monkeypatch.setattr(
            LeaderRole, self._member, property(planted) if isinstance(found, property) else planted
        )

    # ── the cluster ─────────────────────────────────────────────────────────────────────────────
    def _partition(self, topic: str) -> Partition:
        broker = self.cluster.nodes[1].broker
        assert broker is not None
        return broker.parts.replication.replicas.partition(topic, 0)

    def _is_led(self, topic: str) -> bool:
        try:
            return self._partition(topic).is_led_here
        except KafkaError:
            return False  # not known there yet

    def _state(self, topic: str) -> Any:
        image = self.cluster.newest_image
        assert image is not None
        found = image.topic(topic)
        assert found is not None
        return found.partition(0)

    def _leader(self, topic: str) -> int:
        return self._state(topic).leader

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):  # of virtual time
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _on(self, host: Host, main: Any) -> None:
        assert await host.start("client", main).exited is None

    async def _create(self, runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": self.cluster.bootstrap_servers}) as admin:
            for topic in (BROKEN, SOUND):
                await admin.create_topic(NewTopic(topic, assignments={0: (1, 2, 3)}))

    async def _produce(self, topic: str) -> None:
        async def main(runtime: Runtime) -> None:
            async with Producer(runtime, {"bootstrap.servers": self.cluster.bootstrap_servers}) as producer:
                await producer.send_and_wait(topic, b"value", partition=0)

        await self._on(self.clients, main)

    async def _survey(self) -> ReplicaState:
        found: list[ReplicaState] = []

        async def main(runtime: Runtime) -> None:
            async with ReplicaSurvey(runtime, self.cluster.bootstrap_servers.split(",")) as survey:
                seen = await survey.look([BROKEN])
                found.extend(row.state for row in seen.rows if row.broker_id == 1 and row.state is not None)

        await self._on(self.clients, main)
        (one,) = found
        return one


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("member", "trigger"),
    [
        pytest.param("on_appended", PRODUCE, id="produce"),
        pytest.param("on_follower_fetch", PRODUCE, id="fetch of a follower"),
        pytest.param("low_watermark", _delete, id="DeleteRecords"),
        pytest.param("hold_produce", _hold, id="hold until committed"),
        pytest.param("needs_tick", None, id="tick"),
    ],
)
def test_a_broken_invariant_fences_the_replica(
    monkeypatch: pytest.MonkeyPatch, member: str, trigger: Trigger
) -> None:
    scenario = Scenario(monkeypatch, member, trigger)
    World(1).run(scenario.play, limit_s=1_000)
    assert scenario.was_broken
