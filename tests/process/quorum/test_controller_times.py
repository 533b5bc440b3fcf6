"""How long no change of metadata is acknowledged after each kind of fault of the controller, at the defaults.

    NILOMETER_CHAOS_SEED=17 NILOMETER_FAULTS=8 pytest tests/process/quorum/test_controller_times.py -m soak

Prints a table of the times. That every acknowledged topic is there in the end is what it asserts.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.brokers.nilometer_broker import Place
from support.brokers.quorum_brokers import QuorumBrokers
from support.chaos.network import ChaosNetwork, is_available
from support.chaos.run import seed_from_environment
from support.chaos.schedule import BROKERS, CLIENTS, node
from support.eventually import eventually
from support.wire.new_topics import first_created

SEED = seed_from_environment(1)
FAULTS = int(os.environ.get("NILOMETER_FAULTS", "5"))
DEFAULTS = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
PATIENCE_S = 60.0
AT_REST_S = (0.5, 3.0)
"""So long the cluster is left alone before a fault."""


class Times:
    def __init__(self, cluster: QuorumBrokers, network: ChaosNetwork) -> None:
        self.cluster = cluster
        self.network = network
        self.chance = random.Random(SEED)
        self.created: list[str] = []
        self.asked = 0

    def controller(self) -> int:
        found: list[int | None] = []

        def is_known() -> bool:
            found.append(self.cluster.controller())
            return found[-1] is not None

        eventually(is_known, "the brokers agree on a controller", PATIENCE_S)
        assert found[-1] is not None
        return found[-1]

    def until_created(self, asked: list[int], since: float) -> float:
        """The seconds from ``since`` until one of these brokers has created a topic."""
        self.asked += 1
        addresses = [self.cluster.brokers[one].bootstrap for one in asked]
        self.created.append(first_created(addresses, f"t{self.asked}", PATIENCE_S))
        return time.monotonic() - since

    # Each begins a fault of the controller, and returns which brokers are asked meanwhile.

    def kill(self, controller: int) -> list[int]:
        self.cluster.kill(controller)
        return self.others(controller)

    def stop(self, controller: int) -> list[int]:
        self.cluster.pause(controller)
        return self.others(controller)

    def cut(self, controller: int) -> list[int]:
        self.network.isolate(node(controller), *map(node, self.others(controller)))
        return self.others(controller)

    def cut_what_it_sends(self, controller: int) -> list[int]:
        for other in self.others(controller):
            self.network.cut(node(controller), node(other))
        return self.others(controller)

    def cut_what_it_gets(self, controller: int) -> list[int]:
        for other in self.others(controller):
            self.network.cut(node(other), node(controller))
        return self.others(controller)

    def cut_from_one(self, controller: int) -> list[int]:
        other = self.chance.choice(self.others(controller))
        self.network.cut_both(node(controller), node(other))
        return list(BROKERS)

    @staticmethod
    def others(controller: int) -> list[int]:
        return [one for one in BROKERS if one != controller]

    def mend(self) -> None:
        self.network.heal()
        for broker_id in BROKERS:
            self.cluster.resume(broker_id)
        self.cluster.start()
        self.until_created([self.controller()], time.monotonic())


@pytest.fixture
def times(tmp_path: Path) -> Iterator[Times]:
    if not is_available():
        pytest.skip("this process cannot create network namespaces")
    with ChaosNetwork([*map(node, BROKERS), CLIENTS]) as network, network.entered(CLIENTS):
        places = {
            one: Place(network.address(node(one)), lambda one=one: network.entered(node(one)))
            for one in BROKERS
        }
        with QuorumBrokers(tmp_path, 3, DEFAULTS, places=places) as cluster:
            yield Times(cluster, network)


@pytest.mark.soak
@pytest.mark.timeout(60 * FAULTS * 6 + 300)
def test_times_without_a_controller(times: Times) -> None:
    print(f"\nagain: NILOMETER_CHAOS_SEED={SEED} NILOMETER_FAULTS={FAULTS} pytest {__file__} -m soak")
    kinds: list[Callable[[int], list[int]]] = [
        times.kill,
        times.stop,
        times.cut,
        times.cut_what_it_sends,
        times.cut_what_it_gets,
        times.cut_from_one,
    ]
    faults = kinds * FAULTS
    times.chance.shuffle(faults)
    seconds: dict[str, list[float]] = defaultdict(list)
    for fault in faults:
        times.mend()
        time.sleep(times.chance.uniform(*AT_REST_S))
        controller = times.controller()
        began = time.monotonic()
        asked = fault(controller)
        seconds[fault.__name__].append(times.until_created(asked, began))
    times.mend()
    for name, each in seconds.items():
        print(f"{name}: median {statistics.median(each):.2f} s, longest {max(each):.2f} s, {len(each)} times")
    assert set(times.created) <= set(times.cluster.topics())
