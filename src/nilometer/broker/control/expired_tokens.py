"""A periodic controller task: removes the delegation tokens that have expired."""

from __future__ import annotations

import logging

from nilometer.broker.control import causes
from nilometer.broker.control.controller import Controller
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.credentials import decide_remove_expired_tokens
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Clock
from nilometer.wire.errors import KafkaError

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
                causes.EXPIRED_TOKENS,
            ):
                pass  # one decision removes a limited number; repeat until none is left
        except (KafkaError, CoordinationError) as error:
            logger.warning(
                "Expired delegation tokens were not removed; the next round tries again: %s", error
            )
