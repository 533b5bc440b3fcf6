"""kazoo's connection to one server after the other, with features that kazoo lacks.

- It knows the timeout that a server granted, and which server is in use.
- An unreachable server does not use up the session timeout: there is time to try the others.
- An answer that cannot be parsed does not end kazoo's thread; without the thread, the client would never
  connect again.
- kazoo's own log lines (hundreds, while no server answers) are logged as debug: the bridge logs what matters.
"""

# kazoo has no type hints.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import logging
from collections.abc import MutableMapping
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState

logger = logging.getLogger(__name__)

BOTH_WAYS = 2
"""SHUT_RDWR"""


class QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs everything below error level as debug."""

    last = ""
    """Why the last attempt to connect failed, or the connection ended."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level == logging.WARNING and str(msg).startswith("Connection "):
            self.last = str(msg) % args if args else str(msg)
        super().log(level if level > logging.WARNING else min(level, logging.DEBUG), msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


class ConnectTimeoutHandler(SequentialThreadingHandler):
    """Caps the connect timeout: kazoo would wait for a connection for a whole session timeout."""

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs["timeout"], self._connect_timeout_s)
        return super().create_connection(*args, **kwargs)


class ObservedConnection(ConnectionHandler):
    server = ""
    session_timeout_ms = 0
    """The granted timeout; 0 before the first connection."""
    trying = ""
    _left = ""

    def leave(self) -> None:
        """Disconnect from the server in use, and try the others first. From any thread."""
        self._left = self.server
        connection: Any = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):  # it is being closed
                connection.shutdown(BOTH_WAYS)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except Exception as error:
            # For example, an answer to another request than the oldest waiting one. The requests on this
            # connection have an unknown outcome, as when the connection is lost.
            logger.warning(
                "ZooKeeper server %s sent an answer that cannot be parsed: %r; trying others",
                self.trying,
                error,
            )
            self.client._session_callback(KeeperState.CONNECTING)

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        return sorted(found, key=lambda server: f"{server[0]}:{server[2]}" == self._left)

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self.trying = f"{host}:{port}"
        return super()._connect(host, hostip, port)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        outcome: Any = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect) and outcome[0].time_out > 0:
            self.server, self.session_timeout_ms = self.trying, outcome[0].time_out
            self._left = ""
        return outcome
