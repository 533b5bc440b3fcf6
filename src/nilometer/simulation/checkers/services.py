"""Every service of every broker is alive, and the rounds of the periodic ones happen.

A service may end by an error, or leave its rounds, only together with its broker. That is looked at all the
time. Rounds are looked at when the cluster is at rest: no process is paused then and no disk hangs, so one
that is late stands still for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nilometer.broker.tasks import Service
from nilometer.simulation.cluster import Cluster

LATE_S = 15.0
"""Beyond its interval, or the pause after a failed round, how long a round may take at rest."""
VIOLATIONS_MAX = 10


class Services:
    """``violations`` only grows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []

    def look(self) -> None:
        self._note(
            f"services: {name} of {broker} has ended, and the broker goes on: {service.last_failure}"
            for broker, services in self._running()
            for name, service in services.items()
            if has_died(service)
        )

    def look_at_rest(self) -> None:
        self.look()
        now_ms = self._cluster.world.loop.time() * 1000
        self._note(
            f"services: {name} of {broker} made no round for {late_ms / 1000:.0f} s"
            for broker, services in self._running()
            for name, service in services.items()
            if (late_ms := overdue_ms(service, now_ms)) > LATE_S * 1000
        )

    def _running(self) -> Iterator[tuple[str, Mapping[str, Service]]]:
        for node in self._cluster.nodes.values():
            if node.is_serving and node.broker is not None and not node.broker.services.tasks.is_stopping:
                yield node.name, node.broker.services.tasks.services

    def _note(self, found: Iterator[str]) -> None:
        for violation in found:
            if len(self.violations) < VIOLATIONS_MAX and violation not in self.violations:
                self.violations.append(violation)


def has_died(service: Service) -> bool:
    """It ended by an error, or has rounds to make and makes them no more. Others may return: they begin
    again when there is work."""
    return not service.is_alive and (bool(service.last_failure) or service.interval_ms is not None)


def overdue_ms(service: Service, now_ms: float) -> float:
    """For how long a round has been due; at most 0: none is. Pauses after failures count as they are."""
    if service.interval_ms is None:
        return 0
    last_ms = service.started_ms if service.last_round_ms is None else service.last_round_ms
    return now_ms - last_ms - service.pause_ms
