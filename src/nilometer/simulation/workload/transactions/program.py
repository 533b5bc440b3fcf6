"""Base class of transactional programs: the incarnations of one transactional id, and their ledger.

An incarnation is the time from one InitProducerId to the next restart of the producer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass

from nilometer.client.network.client import Client
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.transactions.ledger import Fate, LoggedTransaction, TransactionLedger
from nilometer.simulation.workload.transactions.session import TransactionalSession, make_client
from nilometer.simulation.world import Host, Process
from nilometer.wire.errors import KafkaError

RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan:
    version: int
    """The ``transaction.version`` whose request versions the producers use: 1 or 2."""
    timeout_ms: int
    """The transaction timeout, after which the coordinator aborts an open transaction."""
    gap_s: float
    """The average pause between two transactions of a program."""
    first_epoch: int = 0
    """The first epoch of new producer ids; near the largest one, a producer id is soon exhausted."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the brokers."""
        return {
            "transaction.state.log.num.partitions": "2",
            "offsets.topic.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "500",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        }


class TransactionalProgram(ABC):
    """A process with one transactional id. ``violations`` has the responses that no broker may give."""

    def __init__(
        self, name: str, host: Host, bootstrap_servers: str, plan: TransactionPlan, ledger: TransactionLedger
    ) -> None:
        self.name = name
        self.plan = plan
        self.ledger = ledger
        self.error_counts: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        """Number of its actions, by name."""
        self.violations: list[str] = []
        self.incarnations = 0
        self._producer_id: int | None = None
        """The one that it had last."""
        self.process: Process | None = None
        self._host = host
        self._bootstrap_servers = bootstrap_servers
        self._stopping = False

    def start(self) -> Process:
        self._stopping = False
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        self._stopping = True

    async def _main(self, runtime: Runtime) -> None:
        while not self._is_finished():
            self.incarnations += 1
            try:
                await self._incarnation(runtime)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(RETRY_S)

    def _is_finished(self) -> bool:
        return self._stopping

    @abstractmethod
    async def _incarnation(self, runtime: Runtime) -> None:
        """Run one incarnation, which starts with InitProducerId. Raises KafkaError."""

    def _client(self, runtime: Runtime) -> Client:
        return make_client(runtime, self._bootstrap_servers, self.name)

    def _session(self, client: Client) -> TransactionalSession:
        return TransactionalSession(
            client, self.name, timeout_ms=self.plan.timeout_ms, version=self.plan.version
        )

    def _begin(self, session: TransactionalSession) -> LoggedTransaction:
        session.begin()
        if self._producer_id not in (None, session.producer_id):
            self.done["producer ids rotated"] += 1
        self._producer_id = session.producer_id
        return self.ledger.begin(self.name, session.producer_id, session.producer_epoch)

    async def _end(
        self, session: TransactionalSession, transaction: LoggedTransaction, *, commit: bool
    ) -> None:
        """End the transaction and record its fate in the ledger. Raises KafkaError."""
        if commit:
            transaction.fate = Fate.UNKNOWN
        try:
            await session.end(commit=commit)
        except KafkaError:
            if commit and not session.end_is_uncertain:
                transaction.fate = Fate.ABORTED
            raise
        if commit:
            transaction.fate = Fate.COMMITTED
        self.done["committed" if commit else "aborted"] += 1

    async def _beside(
        self, rival: Coroutine[object, object, None], zombie: Coroutine[object, object, None]
    ) -> None:
        """Run both concurrently; count the zombie's KafkaError, and raise the rival's."""
        outcomes = await asyncio.gather(rival, zombie, return_exceptions=True)
        for error in outcomes:
            if isinstance(error, BaseException) and not isinstance(error, KafkaError):
                raise error
        refused = outcomes[1]
        if isinstance(refused, KafkaError):
            self.error_counts[refused.code.name] += 1
            self.done["zombies stopped"] += 1
        if isinstance(outcomes[0], KafkaError):
            raise outcomes[0]
