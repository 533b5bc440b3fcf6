"""What grows in a simulated cluster: the sizes of all containers that objects of the product hold, and what
each broker's process has open.

A size is summed for all objects of a class, by class and attribute. Objects of the simulation itself are left
out, since its history grows with the run.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from statistics import mean
from types import ModuleType
from typing import Any

from nilometer.simulation.cluster import Cluster

OWN = "nilometer."
OF_THE_SIMULATION = "nilometer.simulation"
SIZED = (dict, list, set, frozenset, deque, bytearray, bytes, str, tuple)
WARM_UP_SHARE = 0.25
"""So much of a run is left out: caches fill, and topics get their first segments."""
GROWTH_MAX = 1.25
"""How much the second half of the rest may have, in the mean, of what the first half has …"""
SLACK = 200
"""… and so much more, which is noise of a number that goes up and down."""


class Growth:
    """An observer of a simulation that samples what the cluster holds, each ``every_s`` of simulated time."""

    def __init__(self, cluster: Cluster, every_s: float) -> None:
        self._cluster = cluster
        self._every_s = every_s
        self._next_s = every_s
        self.samples: list[Mapping[str, int]] = []

    def look(self, findings: Iterable[str] = ()) -> None:
        if self._cluster.world.loop.time() >= self._next_s:
            self._next_s += self._every_s
            self.samples.append(sizes(self._cluster))

    def end(self, findings: Iterable[str]) -> None:
        pass

    def grown(self) -> list[str]:
        """Return what has grown, each with its size in every sample."""
        return grown(self.samples)


def grown(samples: list[Mapping[str, int]]) -> list[str]:
    """Return the names of sizes that are larger in the end than they were, with all samples of each."""
    rest = samples[int(len(samples) * WARM_UP_SHARE) :]
    half = len(rest) // 2
    assert half, "there are too few samples to compare"
    names = {name for sample in rest for name in sample}
    found: list[str] = []
    for name in sorted(names):
        series = [sample.get(name, 0) for sample in rest]
        if mean(series[half:]) > GROWTH_MAX * mean(series[:half]) + SLACK:
            found.append(f"{name}: {' '.join(str(sample.get(name, 0)) for sample in samples)}")
    return found


def sizes(cluster: Cluster) -> Counter[str]:
    """Return the present sizes, by name."""
    gc.collect()
    found: Counter[str] = Counter()
    found["timers of the event loop"] = len(cluster.world.loop._scheduled)
    for node in cluster.nodes.values():
        if node.process is not None:
            found["unfinished tasks of brokers"] += node.process.unfinished_tasks
            found["open files of brokers"] += node.host.disk.open_files.get(node.process, 0)
    found["open connections"] = len(cluster.world.network.connections)
    for each in gc.get_objects():
        kind = type(each)
        if kind in (asyncio.Task, asyncio.Future):
            found[f"objects: {kind.__name__}"] += 1
        module = kind.__module__
        if isinstance(module, str) and _is_product(module):
            name = f"{module}.{kind.__qualname__}"
            found[f"objects: {name}"] += 1
            for attribute, value in _attributes(each):
                if isinstance(value, SIZED):
                    found[f"{name}.{attribute}"] += len(value)
    for name, module in list(sys.modules.items()):
        if _is_product(name) and isinstance(module, ModuleType):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, SIZED):
                    found[f"{name}: {attribute}"] += len(value)
    return found


def _is_product(module: str) -> bool:
    return module.startswith(OWN) and not module.startswith(OF_THE_SIMULATION)


def _attributes(each: object) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(each, "__dict__", {}).items())
    for kind in type(each).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            if slot not in ("__dict__", "__weakref__"):
                name = f"_{kind.__name__.lstrip('_')}{slot}" if slot.startswith("__") else slot
                value = getattr(each, name, None)
                if value is not None:
                    yield slot, value
