"""Starts real ZooKeeper servers on loopback, from Debian's package: one, or an ensemble."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..brokers.nilometer_broker import Place
from ..ports import free_ports

JARS = Path("/usr/share/java")
CLASSPATH = [JARS / "zookeeper.jar", JARS / "slf4j-log4j12.jar", JARS / "log4j-1.2.jar"]
JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A fast start and little memory."""
NETTY = [
    JARS / f"netty-{part}.jar"
    for part in (
        *("common", "buffer", "transport", "handler", "codec", "resolver"),
        *("transport-native-epoll", "transport-native-unix-common"),
    )
]
"""What serves TLS."""
START_PATIENCE_S = 60

LOG4J = """log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} %m%n
"""


@dataclass(frozen=True)
class ServerTls:
    """The PEM files of a server with TLS; ``client_auth`` is ``none`` or ``need``."""

    key: Path
    trusted: Path
    client_auth: str = "none"


def is_installed() -> bool:
    return all(jar.exists() for jar in CLASSPATH)


class ZooKeeperServer:
    """One server process. Killed and started again, it keeps its port and its data."""

    def __init__(
        self,
        folder: Path,
        number: int,
        port: int,
        members: dict[int, tuple[str, int, int]],
        host: str = "127.0.0.1",
        entered: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        sync_limit: int = 10,
        session_timeouts_ms: tuple[int, int] = (400, 60_000),
        tls: ServerTls | None = None,
        jvm: Sequence[str] = JVM,
    ) -> None:
        """``members`` are host and the two ports between servers of each server, by number.

        ``entered`` makes a context manager in which the process is started. ``sync_limit`` is the number of
        ticks of 200 ms without its leader after which a follower stops serving. ``session_timeouts_ms`` are
        the minimum and maximum session timeout. With ``tls`` the server has a port for it, too.
        """
        self._folder = folder
        self._entered = entered
        self._jvm = jvm
        self.host = host
        self.port = port
        self.tls_port = free_ports(1)[0] if tls is not None else 0
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "myid").write_text(str(number))
        (folder / "log4j.properties").write_text(LOG4J)
        lines = [
            "tickTime=200",
            f"minSessionTimeout={session_timeouts_ms[0]}",
            f"maxSessionTimeout={session_timeouts_ms[1]}",
            "initLimit=25",
            f"syncLimit={sync_limit}",
            f"dataDir={folder}/data",
            f"clientPort={self.port}",
            f"clientPortAddress={host}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
        ]
        if tls is not None:
            lines += [
                f"secureClientPort={self.tls_port}",
                f"secureClientPortAddress={host}",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={tls.key}",
                f"ssl.trustStore.location={tls.trusted}",
                f"ssl.clientAuth={tls.client_auth}",
            ]
        if len(members) > 1:
            lines += [f"server.{id}={at}:{peer}:{vote}" for id, (at, peer, vote) in sorted(members.items())]
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        parts = [*CLASSPATH, *(NETTY if self.tls_port else ()), self._folder]
        classpath = ":".join(map(str, parts))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with self._entered(), (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *self._jvm, "-cp", classpath, main, str(self._folder / "zoo.cfg")],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ask(self, word: str) -> str:
        """Return the response to a four-letter command; empty if the server does not respond."""
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    @property
    def mode(self) -> str:
        """The server's mode: standalone, leader or follower; empty while it does not serve."""
        return next((line[6:] for line in self.ask("srvr").splitlines() if line.startswith("Mode: ")), "")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_PATIENCE_S
        while not self.mode:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    "ZooKeeper did not start:\n" + (self._folder / "server.log").read_text()[-4000:]
                )
            time.sleep(0.05)

    @property
    def is_running(self) -> bool:
        """Whether the process exists, even if it is stopped by SIGSTOP."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


class ZooKeeperEnsemble:
    def __init__(
        self,
        folder: Path,
        size: int,
        host: str = "127.0.0.1",
        places: Sequence[Place] | None = None,
        **options: Any,
    ) -> None:
        """``places`` are those of the servers, if they differ; ``options`` are those of every server."""
        at = places or [Place(host)] * size
        ports = free_ports(3 * size)
        members = {i + 1: (at[i].host, ports[size + 2 * i], ports[size + 2 * i + 1]) for i in range(size)}
        self.servers = [
            ZooKeeperServer(
                folder / str(number),
                number,
                ports[number - 1],
                members,
                place.host,
                entered=place.entered,
                **options,
            )
            for number, place in zip(members, at, strict=True)
        ]

    @property
    def hosts(self) -> str:
        return ",".join(f"{server.host}:{server.port}" for server in self.servers)

    @property
    def tls_hosts(self) -> str:
        return ",".join(f"{server.host}:{server.tls_port}" for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()

    def followers(self) -> list[ZooKeeperServer]:
        return [server for server in self.servers if server.mode == "follower"]

    def leader(self) -> ZooKeeperServer:
        return next(server for server in self.servers if server.mode in ("leader", "standalone"))

    def heal(self) -> None:
        """Continue or start all servers, and wait until they are ready."""
        for server in self.servers:
            if server.is_running:
                server.signal(signal.SIGCONT)
            else:
                server.start()
        for server in self.servers:
            server.wait_ready()

    def stop(self) -> None:
        for server in self.servers:
            server.kill()


@contextlib.contextmanager
def running_ensemble(size: int = 1, **options: Any) -> Iterator[ZooKeeperEnsemble]:
    with tempfile.TemporaryDirectory(prefix="nilometer-zookeeper-") as folder:
        ensemble = ZooKeeperEnsemble(Path(folder), size, **options)
        try:
            ensemble.start()
            yield ensemble
        finally:
            ensemble.stop()
