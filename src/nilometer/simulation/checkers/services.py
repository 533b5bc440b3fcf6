"""Checking that every service (background task) of every broker is alive, and that periodic ones run.

A service may end by an error, or stop its rounds, only together with its broker; this is checked all the
time. Whether rounds are late is checked when the cluster is at rest: no process is paused then and no disk
hangs, so a round that stays late will never happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nilometer.broker.tasks import Service
from nilometer.simulation.cluster import Cluster

LATE_S = 15.0
"""How long a round may take at rest, in addition to its interval or the pause after a failed round."""
VIOLATIONS_MAX = 10


class Services:
    """Checks the services; ``violations`` are the findings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []

    def look(self) -> None:
        self._note(
            f"services: {name} of {broker} has ended, and the broker keeps running: {service.last_failure}"
            for broker, services in self._running()
            for name, service in services.items()
            if has_died(service)
        )

    def look_at_rest(self) -> None:
        self.look()
        self._note(iter(self.late()))

    def late(self) -> list[str]:
        """Return which services made no round for too long. After a disk hung, a round may still run."""
        now_ms = self._cluster.world.loop.time() * 1000
        return [
            f"services: {name} of {broker} made no round for {late_ms / 1000:.0f} s"
            for broker, services in self._running()
            for name, service in services.items()
            if (late_ms := overdue_ms(service, now_ms)) > LATE_S * 1000
        ]

    def _running(self) -> Iterator[tuple[str, Mapping[str, Service]]]:
        for node in self._cluster.nodes.values():
            if node.is_serving and node.broker is not None and not node.broker.services.tasks.is_stopping:
                yield node.name, node.broker.services.tasks.services

    def _note(self, found: Iterator[str]) -> None:
        for violation in found:
            if len(self.violations) < VIOLATIONS_MAX and violation not in self.violations:
                self.violations.append(violation)


def has_died(service: Service) -> bool:
    """Return whether a service ended by an error, or is periodic and has ended.

    Others may end: they are started again when there is work.
    """
    return not service.is_alive and (bool(service.last_failure) or service.interval_ms is not None)


def overdue_ms(service: Service, now_ms: float) -> float:
    """Return for how many ms a round has been overdue; 0 or less if it is not. Considers pauses after
    failures.
    """
    if service.interval_ms is None:
        return 0
    last_ms = service.started_ms if service.last_round_ms is None else service.last_round_ms
    return now_ms - last_ms - service.pause_ms
