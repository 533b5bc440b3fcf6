"""A fault: replicas that break an invariant at their next event, as a bug in their code would; and its
checker.

A real bug cannot be planned, so a role is changed to raise InvariantBroken. As for a real one, the broker
must fence this replica at once and continue with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.invariants import InvariantBroken
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.simulation.cluster import BrokerNode
from nilometer.simulation.world import Process

SETTLE_S = 1.0
"""Seconds within which the replica must have lost its role."""

Role = LeaderRole | FollowerRole
OnBroken = Callable[[Role], Exception]


class InjectedBreach(InvariantBroken):
    """The error that a changed role raises."""


@dataclass(slots=True)
class _Breach:
    node: BrokerNode
    process: Process
    partition: Partition
    role: Role
    met_s: float | None = None


class BrokenInvariants:
    """Changes roles so that they break an invariant, and checks that they are fenced.

    ``violations`` are the replicas that were not fenced in time.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._open: list[_Breach] = []
        self._breaking_leader = _breaking_leader(self._on_met)
        self._breaking_follower = _breaking_follower(self._on_met)
        self.violations: list[str] = []

    def break_one(self, node: BrokerNode, choice: float) -> str | None:
        """Make one replica of ``node`` break an invariant; return a description, None if it has no replica.

        ``choice``, from 0 to 1, selects the replica.
        """
        found = [
            (partition, role)
            for partition in node.partitions
            if isinstance(role := partition.replica.role, Role) and type(role) in (LeaderRole, FollowerRole)
        ]
        if not found or node.process is None:
            return None
        partition, role = found[int(choice * len(found))]
        leads = isinstance(role, LeaderRole)
        role.__class__ = self._breaking_leader if leads else self._breaking_follower  # type: ignore[assignment]
        self._open.append(_Breach(node, node.process, partition, role))
        return f"{partition} of {node.name} is chosen to break an invariant"

    def excuses(self, error: BaseException) -> bool:
        """Return whether a logged error is one of the injected ones."""
        return isinstance(error, InjectedBreach)

    def look(self) -> None:
        now_s = self._now_s()
        for breach in list(self._open):
            if breach.node.process is not breach.process or breach.partition.replica.role is not breach.role:
                self._open.remove(breach)
            elif breach.met_s is not None and now_s > breach.met_s + SETTLE_S and not breach.process.paused:
                self._open.remove(breach)
                name, partition = breach.node.name, breach.partition
                self.violations.append(
                    f"broken invariant: {name} found one in {partition} and keeps its role"
                )

    def _on_met(self, role: Role) -> Exception:
        for breach in self._open:
            if breach.role is role and breach.met_s is None:
                breach.met_s = self._now_s()
        return InjectedBreach("an invariant that the simulation breaks", ())


def _breaking_leader(on_met: OnBroken) -> type[LeaderRole]:
    class BreakingLeader(LeaderRole):
        __slots__ = ()

        def on_appended(self, *_: Any) -> Any:  # type: ignore[override]
            raise on_met(self)

        def on_follower_fetch(self, *_: Any) -> Any:  # type: ignore[override]
            raise on_met(self)

    return BreakingLeader


def _breaking_follower(on_met: OnBroken) -> type[FollowerRole]:
    class BreakingFollower(FollowerRole):
        __slots__ = ()

        def on_fetch_response(self, *_: Any) -> Any:  # type: ignore[override]
            raise on_met(self)

    return BreakingFollower
