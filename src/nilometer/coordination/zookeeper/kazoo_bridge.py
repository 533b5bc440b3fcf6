"""The bridge to kazoo's threads: calls become awaitables, callbacks run on the event loop.

Peculiarities of kazoo that are handled only here:

- state listeners and watches are called on different threads, in no mutual order: the bridge passes each
  call to the event loop with ``call_soon_threadsafe``, and its own callbacks get no arguments;
- a failed transaction *returns* its exceptions instead of raising them;
- a request made while no server can be reached is queued without a time limit: every call here has one;
- starting and stopping block: they run in a separate thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kazoo import exceptions as kazoo_exceptions
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Auth
from kazoo.protocol.serialization import Connect as ConnectRequest
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from nilometer.coordination.store import StoreRefused
from nilometer.coordination.zookeeper.connect import OPEN, ConnectString, ZooKeeperSecurity
from nilometer.coordination.zookeeper.ensemble import (
    RECONNECT_S,
    AccessDenied,
    BadVersion,
    CheckExists,
    Connect,
    Create,
    Delete,
    Disconnected,
    Node,
    NodeExists,
    NoNode,
    SessionEnded,
    SetVersion,
    Step,
)
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.runtime import Runtime
from nilometer.runtime.tls import ClientTls, TlsUnusable, client_context

# kazoo's connection, extended by features that kazoo lacks.
#
# - It has the timeout that a server granted, and the connected server.
# - An unreachable server does not use up the session timeout: there is time to try the others.
# - A response that cannot be parsed does not end kazoo's thread; without the thread, the client would never
#   connect again.
# - kazoo's own log lines (hundreds, while no server responds) are logged as debug; the bridge logs the
#   important ones. Credentials are left out of them.
# - TLS by this project's settings; the files of keys and certificates are read for each connection.

logger = logging.getLogger("nilometer.coordination.zookeeper.kazoo_connection")

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
        if isinstance(request, ConnectRequest) and outcome[0].time_out > 0:
            self.server, self.session_timeout_ms = self.trying, outcome[0].time_out
            self._left = ""
        return outcome


# kazoo has no type hints: its results get their types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false


UNANSWERED_FRACTION = 1 / 4
"""If a server sends no response for this fraction of the session timeout, the client tries another one."""
DIGEST = "digest"
"""The scheme of ZooKeeper's ACLs for a user with a password."""


def _translated(error: BaseException) -> Exception:
    match error:
        case kazoo_exceptions.NodeExistsError():
            return NodeExists(str(error))
        case kazoo_exceptions.NoNodeError():
            return NoNode(str(error))
        case kazoo_exceptions.BadVersionError():
            return BadVersion(str(error))
        case kazoo_exceptions.SessionExpiredError():
            return SessionEnded("the session has ended")
        case kazoo_exceptions.NoAuthError():
            return AccessDenied("the ACL of a node, or of its parent, does not permit it")
        case _:
            return Disconnected(f"{type(error).__name__} {error}".strip())


def _note_error(future: asyncio.Future[Any]) -> None:
    """Mark the future's error as seen: the waiting task may be cancelled, and asyncio would log the error."""
    if not future.cancelled():
        future.exception()


class KazooBridge:
    """An ``Ensemble`` of real servers; ``ensemble.py`` describes its methods."""

    def __init__(
        self,
        where: ConnectString,
        timeout_ms: int,
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
        security: ZooKeeperSecurity = OPEN,
    ) -> None:
        self.protects = security.set_acl
        self._chroot = where.chroot
        self._asked_timeout_ms = timeout_ms
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log = QuietLogger(logging.getLogger("kazoo"))
        self._answers = 0
        self._own_acls: list[Any] | None = None
        """What protects nodes: everything for the user, and nothing for others. None before it is known."""
        self._client: Any = KazooClient(
            hosts=",".join(where.servers),
            timeout=timeout_ms / 1000,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.25},
            handler=ConnectTimeoutHandler(timeout_ms / 1000 / 2 / len(where.servers), security.tls),
            logger=self._log,
            auth_data=[("digest", security.credentials)] if security.credentials else None,
            default_acl=CREATOR_ALL_ACL if security.set_acl else None,
        )
        self._connection = ObservedConnection(self._client, self._client._conn_retry.copy(), logger=self._log)
        self._client._connection = self._connection

    @property
    def session_id(self) -> int:
        identity: tuple[int, bytes] | None = self._client.client_id
        return identity[0] if identity else 0

    @property
    def session_timeout_ms(self) -> int:
        return self._connection.session_timeout_ms or self._asked_timeout_ms

    @property
    def server(self) -> str:
        return self._connection.server

    async def start(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._client.add_listener(self._on_state)
        try:
            await self._loop.run_in_executor(self._threads, lambda: self._client.start(timeout=timeout_s))
        except Exception as error:
            await self.stop()
            why = f" ({self._log.last})" if self._log.last else ""
            raise Disconnected(f"no server responded within {timeout_s:g} s{why}") from error

    async def stop(self) -> None:
        assert self._loop is not None
        self._client.remove_listener(self._on_state)
        stopping = self._loop.run_in_executor(self._threads, self._stop_client)
        timeout_s = self._asked_timeout_ms / 1000 * UNANSWERED_FRACTION
        # For a server that hangs, kazoo waits two thirds of the granted timeout, which may be minutes.
        while not (await asyncio.wait((stopping,), timeout=timeout_s))[0]:
            self._connection.leave()
        self._threads.shutdown(wait=False)
        await stopping

    def _stop_client(self) -> None:
        try:
            self._client.stop()
        except kazoo_exceptions.WriterNotClosedException as error:
            logger.warning("The connection to ZooKeeper could not be closed: %s", error)
        else:
            self._client.close()

    # ---- calls

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        data, stat = await self._ask(self._client.get_async, self._at(path), self._watcher(watch))
        return Node(data, stat.version, stat.czxid, stat.ephemeralOwner)

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        stat = await self._ask(self._client.exists_async, self._at(path), self._watcher(watch))
        return Node(b"", stat.version, stat.czxid, stat.ephemeralOwner) if stat is not None else None

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        return sorted(await self._ask(self._client.get_children_async, self._at(path), self._watcher(watch)))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._call(lambda: self._client.create_async(self._at(path), data, ephemeral=ephemeral))

    async def ensure(self, path: str) -> None:
        shared = self._chroot.rpartition("/")[0]
        if shared:
            await self._call(self._client.ensure_path_async, shared, OPEN_ACL_UNSAFE)
        await self._call(self._client.ensure_path_async, self._at(path))

    async def is_protected(self, path: str) -> bool:
        found = await self._acls(path)
        if self._own_acls is None:
            self._own_acls = await self._learned_acls(path)
            self._client.default_acl = self._own_acls
        return found == self._own_acls

    async def protect(self, path: str) -> None:
        acls = self._own_acls or CREATOR_ALL_ACL
        await self._call(self._client.set_acls_async, self._at(path), acls)

    async def _learned_acls(self, path: str) -> list[Any]:
        """Protect a node, and return the ACLs of the user that it then has.

        How a user is named is decided by the server: the algorithm of the digest is one of its settings. It
        adds the identity of the client's certificate, which is not that of other brokers.
        """
        await self._call(self._client.set_acls_async, self._at(path), CREATOR_ALL_ACL)
        found = await self._acls(path)
        own = [acl for acl in found if acl.id.scheme == DIGEST] or found
        if own != found:
            await self._call(self._client.set_acls_async, self._at(path), own)
        return own

    async def _acls(self, path: str) -> list[Any]:
        acls, _ = await self._ask(self._client.get_acls_async, self._at(path))
        return sorted(acls)

    async def set(self, path: str, data: bytes, version: int) -> None:
        await self._call(self._client.set_async, self._at(path), data, version)

    async def delete(self, path: str) -> None:
        await self._call(self._client.delete_async, self._at(path))

    async def commit(self, steps: Sequence[Step]) -> None:
        transaction = self._client.transaction()
        for step in steps:
            match step:
                case Create(path, data, ephemeral):
                    transaction.create(self._at(path), data, ephemeral=ephemeral)
                case SetVersion(path, version, data):
                    transaction.set_data(self._at(path), data, version)
                case CheckExists(path, version):
                    transaction.check(self._at(path), version)
                case Delete(path):
                    transaction.delete(self._at(path))
        for outcome in await self._call(transaction.commit_async):
            told = (kazoo_exceptions.RolledBackError, kazoo_exceptions.RuntimeInconsistency)
            if isinstance(outcome, Exception) and not isinstance(outcome, told):
                raise _translated(outcome)

    def _at(self, path: str) -> str:
        """Return the path with the chroot. (kazoo supports a chroot, but cannot create one of two levels.)"""
        return self._chroot + path if path != "/" else self._chroot or "/"

    async def _ask(self, start: Callable[..., Any], *arguments: Any) -> Any:
        """Send a read; repeat it in the next session if the session ends meanwhile.

        Raises Disconnected after a session timeout.
        """
        timeout_s = self.session_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._call(start, *arguments)
                    except SessionEnded:
                        await asyncio.sleep(RECONNECT_S)
        except TimeoutError as error:
            raise Disconnected(f"no new session within {timeout_s:g} s") from error

    async def _call(self, start: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(_note_error)

        def settle(outcome: Any, error: BaseException | None) -> None:
            self._answers += 1
            if future.done():
                return  # the caller no longer waits
            if error is not None:
                future.set_exception(_translated(error))
            else:
                future.set_result(outcome)

        def on_thread(result: Any) -> None:
            outcome = result.value if result.exception is None else None
            self._on_loop(settle, outcome, result.exception)

        try:
            start(*arguments).rawlink(on_thread)
        except kazoo_exceptions.KazooException as error:
            raise _translated(error) from error
        return await self._answer_to(future)

    async def _answer_to(self, future: asyncio.Future[Any]) -> Any:
        """Wait for the response; try another server if this one sends nothing.

        Raises Disconnected after a session timeout.
        """
        timeout_s, before = self.session_timeout_ms / 1000, self._answers
        await asyncio.wait((future,), timeout=timeout_s * UNANSWERED_FRACTION)
        if not future.done() and self._answers == before and self._client.connected:
            logger.warning("ZooKeeper server %s does not respond: trying another one", self.server)
            self._connection.leave()
        await asyncio.wait((future,), timeout=timeout_s * (1 - UNANSWERED_FRACTION))
        if not future.done():
            future.cancel()
            raise Disconnected(f"no answer within {timeout_s:g} s")
        return future.result()

    # ---- from kazoo's threads to the loop

    def _watcher(self, watch: Callable[[], None] | None) -> Callable[[Any], None] | None:
        return (lambda event: self._on_loop(watch)) if watch is not None else None

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            logger.info(
                "Connected to ZooKeeper server %s: session 0x%x, timeout %d ms",
                self.server,
                self.session_id,
                self.session_timeout_ms,
            )
            self._on_loop(self._on_connected)
        elif state == KazooState.LOST:
            logger.warning(
                "ZooKeeper server %s says that session 0x%x has expired",
                self._connection.trying,
                self.session_id,
            )
            self._on_loop(self._on_lost)
        else:
            logger.warning(
                "Lost the connection to ZooKeeper server %s: %s; trying another one",
                self.server,
                self._log.last or "closed",
            )

    def _on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed
            logger.debug("A ZooKeeper event came after the event loop was closed")


# A store in ZooKeeper whose client is kazoo, for brokers and tools that run outside a simulation.
#
# It alone imports the bridge to kazoo: a broker with another store starts without that library.


def zookeeper_store(
    runtime: Runtime, where: ConnectString, security: ZooKeeperSecurity, **options: Any
) -> ZooKeeperStore:
    """Return the store at ``where``, not open yet; :class:`ZooKeeperStore` describes the options.

    Raises StoreRefused if the credentials cannot be used.
    """
    return ZooKeeperStore(runtime, str(where), connector(where, security), **options)


def connector(where: ConnectString, security: ZooKeeperSecurity) -> Connect:
    """Return what connects to the servers with these credentials.

    Raises StoreRefused if keys or certificates cannot be used.
    """
    if security.set_acl and not where.chroot:
        raise StoreRefused(
            f"zookeeper.set.acl needs a chroot, as in {where}/nilometer: the root of ZooKeeper's tree, "
            "which others use too, keeps its own ACL"
        )
    try:
        if security.tls is not None:
            client_context(security.tls)
    except TlsUnusable as error:
        raise StoreRefused(f"the connection to ZooKeeper has TLS, but {error}") from None
    return lambda timeout_ms, on_connected, on_lost: KazooBridge(
        where, timeout_ms, on_connected, on_lost, security
    )
