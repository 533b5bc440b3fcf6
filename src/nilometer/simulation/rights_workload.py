"""The users of a run and their rights: the programs, what they did, and its judgement."""

from __future__ import annotations

from collections import Counter

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.rights import AclHistory, RightsLedger
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.workload.rights.grantor import TOPICS, USERS, Grantor
from nilometer.simulation.workload.rights.guest import Guest
from nilometer.simulation.world import Host

REPLICAS = 3


class RightsWorkload:
    def __init__(self, cluster: Cluster, clients: Host, *, flushes: bool) -> None:
        """``flushes``: whether the machines may all lose power, so that records must be flushed."""
        self._cluster = cluster
        self._configs = {"min.insync.replicas": "2", **({"flush.messages": "1"} if flushes else {})}
        self.ledger = RightsLedger()
        self._grantor = Grantor(clients, cluster.bootstrap_servers)
        self._guests = [Guest(user, clients, cluster, self.ledger) for user in USERS]

    @property
    def programs(self) -> list[Grantor | Guest]:
        return [self._grantor, *self._guests]

    async def create_topics(self, runtime: Runtime, admin: Admin) -> None:
        for name in TOPICS:
            await admin.create_topic(NewTopic(name, 1, REPLICAS, self._configs))

    async def ask_at_rest(self, runtime: Runtime) -> None:
        """Send all requests to all brokers: they must know all ACLs now."""
        for guest in self._guests:
            await guest.ask_every_broker(runtime)

    def judge(self) -> list[str]:
        return self.ledger.violations(self._cluster.store.entries())

    @property
    def error_counts(self) -> Counter[str]:
        return sum((each.error_counts for each in self.programs), start=Counter[str]())

    def done(self) -> Counter[str]:
        entries = self._cluster.store.entries()
        return self._grantor.done + Counter(
            {
                **{f"requests of users, {outcome}": count for outcome, count in self.ledger.counts.items()},
                "changes of ACLs": 0 if entries is None else AclHistory(entries).changes,
            }
        )
