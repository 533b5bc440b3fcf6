"""The periodic tasks of the controller: expired delegation tokens are removed, leaderships move back to
preferred replicas.
"""

from __future__ import annotations

import logging

from nilometer.broker.control import decision_log
from nilometer.broker.control.controller import Controller
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.access import decide_remove_expired_tokens
from nilometer.cluster.controller.reassignments import decide_preferred_leaders
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Clock
from nilometer.wire.errors import KafkaError

# A periodic controller task: removes the delegation tokens that have expired.

logger = logging.getLogger("nilometer.broker.control")


class ExpiredTokens:
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
            logger.warning(
                "Expired delegation tokens were not removed; the next round tries again: %s", error
            )


# A periodic controller task: moves leaderships back to the preferred replicas.
#
# When a broker returns, other brokers lead its partitions. If it lacks more than
# ``leader.imbalance.per.broker.percentage`` of its preferred leaderships, they move back to it.


class PreferredLeaderRebalancer:
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
            logger.warning(
                "Leaderships were not moved back to preferred replicas; the next round tries again: %s", error
            )
