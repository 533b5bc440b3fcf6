"""A broker's periodic tasks: retention, overdue flushes, idle connections; and the controller's, which remove
expired delegation tokens and move leaderships back to preferred replicas.

There are a few timers for the whole broker, none per partition and none per connection. Each round checks all
partitions in memory, slice by slice; flushes and file removals run off the event loop.

Invariant: an error of one partition or log directory does not end the round for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from nilometer.broker.api.dispatcher import RequestDispatcher
from nilometer.broker.control import decision_log
from nilometer.broker.control.controller import Controller
from nilometer.broker.replicas.file_work import LogDisposal
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.controller.access import decide_remove_expired_tokens
from nilometer.cluster.controller.reassignments import decide_preferred_leaders
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Clock, Runtime
from nilometer.wire.errors import KafkaError

logger = logging.getLogger("nilometer.broker")
control_logger = logging.getLogger("nilometer.broker.control")

FLUSH_CHECK_MS = 100
"""How often logs are checked for an overdue ``flush.ms``, once any log has set one."""
CONNECTION_CHECK_MS = 10_000
"""How often connections are checked for idle ones; more often if ``connections.max.idle.ms`` is shorter."""
PRODUCER_CHECK_MS = 600_000
STRAY_CHECK_MS = 5_000
"""How often it is checked whether an operator has deleted stray folders, if there are any."""


class Housekeeping:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        replicas: ReplicaManager,
        dispatcher: RequestDispatcher,
        disposal: LogDisposal,
        turns: Turns,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._replicas = replicas
        self._dispatcher = dispatcher
        self._disposal = disposal
        self._turns = turns

    def start(self, tasks: Tasks) -> None:
        config = self._config
        retention_ms = config.integer("log.retention.check.interval.ms")
        rounds = (
            ("retention", retention_ms, self.apply_retention),
            ("lagging followers", config.replica_lag_time_max_ms // 2, self.tick_leaders),
            ("overdue flushes", FLUSH_CHECK_MS, self.flush_overdue),
            ("idle connections", self._connection_check_ms, self.close_idle_connections),
            ("producer expiry", PRODUCER_CHECK_MS, self.expire_producers),
            ("deleted stray logs", STRAY_CHECK_MS, self._replicas.forget_deleted_strays),
        )
        for name, interval_ms, work in rounds:
            tasks.periodic(name, interval_ms, work)

    async def _for_each(
        self, partitions: Iterable[Partition], what: str, work: Callable[[Partition], Iterable[int] | None]
    ) -> None:
        """Call ``work`` for all ``partitions``; an error of one does not affect the others.

        What takes long for one partition yields after each step how many elements it had.
        ``what``: the work as a noun, for messages.
        """
        slices = LongWork(self._turns)
        for partition in list(partitions):
            await slices.step(1)
            if partition not in self._replicas:
                continue  # it was removed meanwhile
            try:
                for elements in work(partition) or ():
                    await slices.step(elements)
                    if partition not in self._replicas:
                        break
            except Exception as error:
                partition.on_failure(what, error)
            else:
                partition.on_success(what)

    async def apply_retention(self) -> None:
        """Delete old segments: rename them to ``.deleted`` now, remove them after
        ``file.delete.delay.ms``."""
        wall_ms = self._runtime.clock.wall_ms()

        def retain(partition: Partition) -> Iterator[int]:
            log = partition.log
            began, removed, was_in_tier = log.log_start_offset, 0, log.begins_in_tier
            while paths := log.delete_old_segments(partition.replica.high_watermark, wall_ms):
                partition.notify_log_start()
                self._disposal.remove_files(paths, log.config.file_delete_delay_ms)
                removed += len(paths)
                yield len(paths)
            if was_in_tier and not log.begins_in_tier:
                partition.notify_log_start()
                logger.warning(
                    "%s is not of a tiered topic: its records from offset %d to %d, which remote storage "
                    "alone has, are given up. With remote.storage.enable=true they would be kept",
                    partition,
                    began,
                    log.local_start_offset - 1,
                )
            if removed and log.local_start_offset > log.log_start_offset:
                logger.info(
                    "%s now begins at offset %d here; its records from offset %d on are in remote storage",
                    partition,
                    log.local_start_offset,
                    log.log_start_offset,
                )
            elif removed:
                logger.info("%s now begins at offset %d", partition, log.log_start_offset)

        await self._for_each(self._replicas, "retention", retain)

    async def tick_leaders(self) -> None:
        """Let all leaders remove followers from the ISR that have not caught up for too long."""
        await self._for_each(self._replicas, "check of lagging followers", Partition.tick)

    async def flush_overdue(self) -> None:
        wall_ms = self._runtime.clock.wall_ms()

        def flush(partition: Partition) -> None:
            if partition.log.is_flush_due(wall_ms):
                partition.request_flush()

        await self._for_each(self._replicas.with_flush_ms, "overdue flush", flush)

    @property
    def _connection_check_ms(self) -> int:
        idle_ms = self._config.integer("connections.max.idle.ms")
        return CONNECTION_CHECK_MS if idle_ms < 0 else max(100, min(CONNECTION_CHECK_MS, idle_ms // 2))

    def close_idle_connections(self) -> None:
        idle_ms = self._config.integer("connections.max.idle.ms")
        if idle_ms < 0:
            return
        oldest = self._runtime.clock.monotonic_ms() - idle_ms
        for connection in list(self._dispatcher.connections):
            if connection.last_active_ms < oldest:
                connection.abort("idle")

    async def expire_producers(self) -> None:
        wall_ms = self._runtime.clock.wall_ms()
        await self._for_each(
            self._replicas,
            "expiry of producers",
            lambda partition: partition.log.producers.remove_expired(wall_ms),
        )


# The controller's periodic tasks, on every broker for when it is the controller.


class ExpiredTokens:
    """Removes the delegation tokens that have expired."""

    def __init__(self, config: BrokerConfig, controller: Controller, clock: Clock) -> None:
        self._interval_ms = config.integer("delegation.token.expiry.check.interval.ms")
        self._controller = controller
        self._clock = clock

    def start(self, tasks: Tasks) -> None:
        tasks.periodic("expired tokens", self._interval_ms, self._round)

    async def _round(self) -> None:
        try:
            while self._controller.is_active and await self._controller.decide(
                lambda image: decide_remove_expired_tokens(image, now_ms=self._clock.wall_ms()),
                decision_log.EXPIRED_TOKENS,
            ):
                pass  # one decision removes a limited number; repeat until none is left
        except (KafkaError, CoordinationError) as error:
            control_logger.warning(
                "Expired delegation tokens were not removed; the next round tries again: %s", error
            )


class PreferredLeaderRebalancer:
    """Moves leaderships back to the preferred replicas.

    When a broker returns, other brokers lead its partitions. If it lacks more than
    ``leader.imbalance.per.broker.percentage`` of its preferred leaderships, they move back to it.
    """

    def __init__(self, config: BrokerConfig, controller: Controller) -> None:
        self._config = config
        self._controller = controller

    def start(self, tasks: Tasks) -> None:
        if self._config.boolean("auto.leader.rebalance.enable"):
            interval_ms = 1000 * self._config.integer("leader.imbalance.check.interval.seconds")
            tasks.periodic("preferred leaders", interval_ms, self._round)

    async def _round(self) -> None:
        if self._controller.is_active:
            await self._restore_preferred_leaders()

    async def _restore_preferred_leaders(self) -> None:
        percentage = self._config.integer("leader.imbalance.per.broker.percentage")
        try:
            while await self._controller.decide(
                lambda image: decide_preferred_leaders.steps(image, imbalance_percentage=percentage),
                decision_log.PREFERRED_LEADERS,
            ):
                pass  # one decision moves a limited number; repeat until none is left
        except (KafkaError, CoordinationError) as error:
            control_logger.warning(
                "Leaderships were not moved back to preferred replicas; the next round tries again: %s", error
            )
