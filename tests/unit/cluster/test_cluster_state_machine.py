"""Random runs of a small cluster (:mod:`cluster_model`), by hypothesis and by long seeded walks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from cluster_model import BROKERS, MIN_ISR, ClusterModel
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from nilometer.cluster.controller import partition_change
from nilometer.cluster.controller.partition_change import RequestedChange
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Replicas
from nilometer.cluster.states import PartitionState
from support.properties import examples

brokers = st.sampled_from(BROKERS)
topics = st.sampled_from(sorted(MIN_ISR))


class ClusterRuns(RuleBasedStateMachine):
    proves_kills = True

    def __init__(self) -> None:
        super().__init__()
        self.model = ClusterModel(proves_kills=self.proves_kills)

    @rule(broker=brokers)
    def kill(self, broker: int) -> None:
        self.model.kill(broker)

    @rule(broker=brokers, keep=st.integers(0, 3))
    def lose_machine(self, broker: int, keep: int) -> None:
        self.model.lose_machine(broker, keep)

    @rule(broker=brokers)
    def stop_cleanly(self, broker: int) -> None:
        self.model.stop_cleanly(broker)

    @rule(broker=brokers)
    def come_back(self, broker: int) -> None:
        self.model.come_back(broker)

    @rule(entries_max=st.none() | st.integers(0, 3))
    def controller_notices(self, entries_max: int | None) -> None:
        self.model.controller_notices(entries_max)

    @rule()
    def controller_changes(self) -> None:
        self.model.controller_changes()

    @rule()
    def deposed_controller_wakes_up(self) -> None:
        self.model.deposed_controller_wakes_up()

    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        self.model.produce(count)

    @rule(broker=brokers)
    def replicate_to(self, broker: int) -> None:
        self.model.replicate_to(broker)

    @rule()
    def replicate(self) -> None:
        self.model.replicate()

    @rule(topic=topics, without=brokers)
    def leader_shrinks_isr(self, topic: str, without: int) -> None:
        self.model.leader_shrinks_isr(topic, without)

    @rule(broker=brokers)
    def leaders_grow_isr(self, broker: int) -> None:
        self.model.leaders_grow_isr(broker)

    @rule(topic=topics, order=st.none() | st.permutations(BROKERS))
    def reassign(self, topic: str, order: list[int] | None) -> None:
        self.model.reassign(topic, order)

    @rule()
    def elect_preferred_leaders(self) -> None:
        self.model.elect_preferred_leaders()

    @rule()
    def keep_a_snapshot(self) -> None:
        self.model.keep_a_snapshot()

    @invariant()
    def promises_are_kept(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        self.model.finish()


class ClusterRunsWithoutProof(ClusterRuns):
    proves_kills = False


QUICK = examples(60, stateful_step_count=50, suppress_health_check=list(HealthCheck))
TestClusterRuns = ClusterRuns.TestCase
TestClusterRuns.settings = QUICK
TestClusterRunsWithoutProof = ClusterRunsWithoutProof.TestCase
TestClusterRunsWithoutProof.settings = QUICK


def walk(seed: int, steps: int, *, proves_kills: bool) -> ClusterModel:
    """Failures come more rarely than repairs, or there would be little to lose."""
    chance = random.Random(seed)
    model = ClusterModel(proves_kills=proves_kills)

    def broker() -> int:
        return chance.choice(BROKERS)

    def topic() -> str:
        return chance.choice(sorted(MIN_ISR))

    weighted: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: model.kill(broker())),
        (5, lambda: model.lose_machine(broker(), chance.randint(0, 3))),
        (3, lambda: model.stop_cleanly(broker())),
        (11, lambda: model.come_back(broker())),
        (18, lambda: model.controller_notices(chance.choice([None, None, None, 0, 1, 2]))),
        (1, model.controller_changes),
        (2, model.deposed_controller_wakes_up),
        (12, lambda: model.produce(chance.randint(1, 3))),
        (6, lambda: model.replicate_to(broker())),
        (12, model.replicate),
        (4, lambda: model.leader_shrinks_isr(topic(), broker())),
        (12, lambda: model.leaders_grow_isr(broker())),
        (2, lambda: model.reassign(topic(), chance.choice([None, chance.sample(BROKERS, 4)]))),
        (2, model.elect_preferred_leaders),
        (1, model.keep_a_snapshot),
    ]
    actions = [action for _, action in weighted]
    weights = [weight for weight, _ in weighted]
    for _ in range(steps):
        chance.choices(actions, weights)[0]()
        model.check()
    model.finish()
    return model


def walk_many(first: int, count: int, steps: int, *, proves_kills: bool) -> int:
    """Returns how many records were acknowledged."""
    total = 0
    for seed in range(first, first + count):
        try:
            model = walk(seed, steps, proves_kills=proves_kills)
        except Exception:
            print(
                f"replay: NILOMETER_SEED={seed} NILOMETER_WALKS=1 pytest "
                f"tests/unit/cluster/test_cluster_state_machine.py -k walk"
            )
            raise
        total += sum(len(found) for found in model.acknowledged.values())
    return total


FIRST_SEED = int(os.environ.get("NILOMETER_SEED", "1"))
WALKS = int(os.environ.get("NILOMETER_WALKS", "60"))


@pytest.mark.parametrize("proves_kills", [True, False])
def test_n3_no_acknowledged_record_is_lost_on_long_walks(proves_kills: bool) -> None:
    assert walk_many(FIRST_SEED, WALKS, 150, proves_kills=proves_kills) > WALKS * 20


@pytest.mark.soak
@pytest.mark.parametrize("proves_kills", [True, False])
def test_n3_no_acknowledged_record_is_lost_on_very_many_walks(proves_kills: bool) -> None:
    assert walk_many(FIRST_SEED, 20 * WALKS, 400, proves_kills=proves_kills) > WALKS * 20


def trust_forfeited(monkeypatch: pytest.MonkeyPatch) -> None:
    right = partition_change._safe

    def wrong(state: PartitionState, order: Replicas, wanted: RequestedChange) -> Replicas:
        return right(state, order, RequestedChange())

    monkeypatch.setattr(partition_change, "_safe", wrong)


def any_replica_may_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    right = partition_change._elect

    def wrong(state: PartitionState, assignment: object, wanted: RequestedChange, *rest: object) -> object:
        return right(state, assignment, replace(wanted, allow_unclean=True), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(partition_change, "_elect", wrong)


def count_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterImage, "counts", lambda self, entry: True)


def remember_the_eligible_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As though the high watermark were held whatever the size of the ISR."""
    right = partition_change._elect

    def wrong(state: PartitionState, assignment: object, wanted: object, may_lead: object, _: int) -> object:
        return right(state, assignment, wanted, may_lead, 99)  # type: ignore[arg-type]

    monkeypatch.setattr(partition_change, "_elect", wrong)
    monkeypatch.setattr(partition_change, "min", lambda one, _: one, raising=False)


@pytest.mark.parametrize(
    "plant", [trust_forfeited, any_replica_may_lead, count_every_entry, remember_the_eligible_for_ever]
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        walk_many(1, 200, 150, proves_kills=True)
