"""The requests of an authenticated connection whose session has an end (KIP-368).

A client authenticates again on its connection, with a SaslHandshake, before the end or even after it. Any
other request that arrives after the end closes the connection, unanswered, as in Kafka. A session that began
with a delegation token ends with it, also if the token is removed, or made to expire earlier, after the
login; in Kafka it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from typing_extensions import Buffer

from nilometer.broker.connection import CloseConnection, Connection, Dispatcher, Reply
from nilometer.runtime import Clock
from nilometer.wire.api_keys import ApiKey

REAUTHENTICATION_INTERVAL_MS = 1000
"""A client that authenticates again twice within this time gets the error of one that need not, as in
Kafka."""
_HANDSHAKE = int(ApiKey.SASL_HANDSHAKE)

BeginAgain = Callable[[Buffer, Connection], "asyncio.Future[Reply] | Reply"]


class ExpiringSession:
    """Implements :class:`~nilometer.broker.connection.Dispatcher` for one session of one connection."""

    def __init__(
        self,
        served: Dispatcher,
        clock: Clock,
        lifetime_ms: int,
        begin_again: BeginAgain,
        not_before_ms: int,
        is_token_valid: Callable[[], bool] | None = None,
    ) -> None:
        """``served`` processes the requests of authenticated connections; ``begin_again`` a SaslHandshake,
        from the monotonic time ``not_before_ms`` on. ``is_token_valid``: whether the delegation token of the
        login still is; None: it was not by one."""
        self._served = served
        self._clock = clock
        self._begin_again = begin_again
        self._not_before_ms = not_before_ms
        self._is_token_valid = is_token_valid
        self._ends_ms = clock.monotonic_ms() + lifetime_ms

    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Reply] | Reply:
        now_ms = self._clock.monotonic_ms()
        is_handshake = int.from_bytes(memoryview(frame)[:2], "big") == _HANDSHAKE
        if is_handshake and now_ms >= self._not_before_ms:
            return self._begin_again(frame, connection)
        if now_ms > self._ends_ms:
            raise CloseConnection("its session has expired, and it has not authenticated again")
        if self._is_token_valid is not None and not self._is_token_valid():
            raise CloseConnection("the delegation token of its login has expired or was removed")
        return self._served.dispatch(frame, connection)

    def may_pipeline(self, frame: Buffer) -> bool:
        return self._served.may_pipeline(frame)

    def request_failed(self, error: BaseException) -> None:
        self._served.request_failed(error)

    def connection_opened(self, connection: Connection) -> bool:
        return self._served.connection_opened(connection)

    def connection_closed(self, connection: Connection) -> None:
        self._served.connection_closed(connection)
