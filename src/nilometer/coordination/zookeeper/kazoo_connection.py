"""kazoo's connection, extended by features that kazoo lacks.

- It has the timeout that a server granted, and the connected server.
- An unreachable server does not use up the session timeout: there is time to try the others.
- A response that cannot be parsed does not end kazoo's thread; without the thread, the client would never
  connect again.
- kazoo's own log lines (hundreds, while no server responds) are logged as debug; the bridge logs the
  important ones. Credentials are left out of them.
- TLS by this project's settings; the files of keys and certificates are read for each connection.
"""

# kazoo has no type hints.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import MutableMapping
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Auth, Connect
from kazoo.protocol.states import KeeperState

from nilometer.runtime.tls import ClientTls, TlsUnusable, client_context

logger = logging.getLogger(__name__)

BOTH_WAYS = 2
"""SHUT_RDWR"""


class QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs all messages below error level as debug."""

    last = ""
    """The last message about a failed attempt to connect or the end of a connection."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level == logging.WARNING and str(msg).startswith("Connection "):
            self.last = str(msg) % args if args else str(msg)
        args = tuple("Auth(...)" if isinstance(each, Auth) else each for each in args)
        super().log(level if level > logging.WARNING else min(level, logging.DEBUG), msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


class ConnectTimeoutHandler(SequentialThreadingHandler):
    """Limits the connect timeout: kazoo would wait for a connection for a whole session timeout.

    Connects by TLS if ``tls`` is given.
    """

    def __init__(self, connect_timeout_s: float, tls: ClientTls | None = None) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs["timeout"], self._connect_timeout_s)
        connection: Any = super().create_connection(*args, **kwargs)
        if self._tls is None:
            return connection
        try:
            return client_context(self._tls).wrap_socket(connection, server_hostname=kwargs["hostname"])
        except TlsUnusable as error:
            connection.close()
            raise OSError(0, str(error)) from error
        except TimeoutError as error:
            connection.close()
            raise OSError(0, "the handshake of TLS took too long") from error
        except BaseException:
            connection.close()
            raise

    def select(self, *args: Any, **kwargs: Any) -> Any:
        """Return connections at once whose TLS has content already: the socket beneath may have none left."""
        readable = [one for one in args[0] if isinstance(one, ssl.SSLSocket) and one.pending()]
        return (readable, [], []) if readable else super().select(*args, **kwargs)


class ObservedConnection(ConnectionHandler):
    server = ""
    session_timeout_ms = 0
    """The granted timeout; 0 before the first connection."""
    trying = ""
    _left = ""

    def leave(self) -> None:
        """Disconnect from the current server, and try the others first. Safe on any thread."""
        self._left = self.server
        connection: Any = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):  # it is being closed
                if isinstance(connection, ssl.SSLSocket):  # the state of TLS belongs to kazoo's thread
                    super(ssl.SSLSocket, connection).shutdown(BOTH_WAYS)
                else:
                    connection.shutdown(BOTH_WAYS)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except Exception as error:
            # For example, a response to a request that is not the oldest waiting one. The outcome of the
            # requests on this connection is unknown, as when the connection is lost.
            logger.warning(
                "ZooKeeper server %s sent a malformed response: %r; trying another one",
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
