"""A cluster of broker processes on this machine, with its data in one folder.

Layout: ``<data>/broker-<id>/`` contains ``server.properties``, ``broker.log`` (the broker's log and standard
error; earlier parts are in ``broker.log.<n>``),
``process.json`` (written by the running broker's launcher), ``status.json`` (written by the broker, while it
does not serve) and ``logs/`` (the partitions); ``<data>/coordination/`` is the coordination store. A process
is identified by its pid *and* its start time, so that a reused pid is never mistaken for a broker.

The folder may be moved or copied: settings are read with the paths of
its present place, processes of the original do not count, and :meth:`LocalCluster.settle` corrects the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from nilometer.broker.settings.listeners import LOOPBACK, PROTOCOL_MAP, Endpoint
from nilometer.broker.settings.quorum import QUORUM, SECRET_FILE
from nilometer.broker.status_file import NOT_READY, BrokerStatusFile
from nilometer.client.network.client import Client
from nilometer.client.settings import COMMON_KEYS, ClientSettings
from nilometer.config import ConfigDefinition, parse_properties
from nilometer.local.private_files import write_private
from nilometer.local.secure_cluster import PROTOCOL, SecureFolder
from nilometer.runtime import Runtime
from nilometer.security.principal import SecurityProtocol
from nilometer.storage.names import CLEAN_SHUTDOWN, META_PROPERTIES
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import KafkaError, MalformedMessage
from nilometer.wire.messages import api, decode_response, encode_request

# The brokers of a local cluster's data folder as processes: their states, their environment, and when all of
# them are a cluster.

# One broker of a local cluster's data folder, as a value, and the environment that its process gets.


class BrokerProcess(msgspec.Struct, frozen=True):
    """One broker of a data folder: its endpoint, process and state."""

    id: int
    host: str
    port: int
    pid: int | None
    state: str
    """``running``, ``fenced`` (its process runs but serves nothing until it is restarted) or ``down``."""
    reason: str | None = None
    """Why it is fenced or down; None while it runs."""
    metrics: str | None = None
    """The URL of its metrics, while it runs and serves them."""


def broker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` for a process that imports a broker: Python may keep its bytecode.

    Containers often set PYTHONDONTWRITEBYTECODE for programs that start once. A broker has some 700 modules;
    to compile those of a checkout takes longer than the rest of its start.
    """
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


# Waits until the brokers of a data folder are a cluster: requests each broker's metadata.
#
# The cluster is ready when each broker runs and the metadata of each broker lists all of them. Brokers on
# other machines do not count.

READY_TIMEOUT_S = 60.0
_ASK_TIMEOUT_S = 5.0
_POLL_S = 0.02
_METADATA_VERSION = 9


class LaunchFailed(Exception):
    """A broker did not start or did not become ready; the message says which, why, and where to look."""


def wait_all_registered(
    look: Callable[[], Sequence[BrokerProcess]], security: Mapping[str, str] | None = None
) -> None:
    """Wait until every broker knows all brokers as registered and not fenced.

    ``look`` returns the brokers with their present states; ``security`` are the settings of a client, for
    brokers whose listeners are not PLAINTEXT. Raises LaunchFailed if one does not run, or after
    ``READY_TIMEOUT_S``.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        brokers = look()
        for one in brokers:
            if one.state != "running":
                raise LaunchFailed(_not_running(one))
        reason = next(
            (reason for one in brokers if (reason := _why_not_ready(one, brokers, security)) is not None),
            None,
        )
        if reason is None:
            return
        if time.monotonic() > deadline:
            raise LaunchFailed(f"the cluster was not ready after {READY_TIMEOUT_S:.0f} s: {reason}")
        time.sleep(_POLL_S)


def _not_running(one: BrokerProcess) -> str:
    if one.state == "down":
        return f"broker {one.id} has ended: {one.reason or 'see its broker.log'}"
    return f"broker {one.id} is {one.state}: {one.reason}"


def _why_not_ready(
    one: BrokerProcess, brokers: Sequence[BrokerProcess], security: Mapping[str, str] | None
) -> str | None:
    try:
        if security:
            known = asyncio.run(_brokers_that_it_knows(one.host, one.port, security))
        else:
            known = _registered_brokers(one.host, one.port)
    except (OSError, MalformedMessage, KafkaError) as error:
        return f"broker {one.id} does not respond on {one.host}:{one.port}: {error!r}"
    missing = sorted({other.id for other in brokers} - known)
    return f"broker {one.id} does not know of broker {missing[0]}" if missing else None


def _registered_brokers(host: str, port: int) -> set[int]:
    """Return the broker ids in the metadata of the broker at ``host:port``.

    Raises OSError, MalformedMessage.
    """
    request = api(ApiKey.METADATA, _METADATA_VERSION).request(topics=(), allow_auto_topic_creation=False)
    with socket.create_connection((host, port), timeout=_ASK_TIMEOUT_S) as connection:
        connection.sendall(encode_request(1, "nilometer-up", request))
        size = int.from_bytes(_receive(connection, 4), "big")
        _, response = decode_response(ApiKey.METADATA, _METADATA_VERSION, _receive(connection, size))
    return {broker.node_id for broker in response.brokers}


async def _brokers_that_it_knows(host: str, port: int, security: Mapping[str, str]) -> set[int]:
    """Return the broker ids in the metadata of one broker, by an authenticated client. Raises KafkaError."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    timeout_ms = str(round(_ASK_TIMEOUT_S * 1000))
    given = {**security, "bootstrap.servers": address, "request.timeout.ms": timeout_ms}
    settings = ClientSettings(ConfigDefinition.of("client", COMMON_KEYS), given)
    async with Client(Runtime.system(), settings) as client:
        return set(client.metadata.brokers)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionResetError("the connection was closed")
        received += part
    return received


# How many replicas the topics of a cluster have by default, by the number of its brokers.

REPLICATION_FACTOR_MAX = 3


def replication_settings(brokers: int) -> dict[str, str]:
    """Return broker settings for a cluster of ``brokers``: up to three replicas."""
    replicas = min(REPLICATION_FACTOR_MAX, brokers)
    return {
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
    }


# A data folder that was moved or copied: where it was before, and the paths in its files corrected.
#
# The files that `nilometer up` writes have absolute paths of the folder. After a move these lead nowhere, and
# after a copy to the data of the original: brokers of the copy would serve that.
#
# Paths outside the folder are left as they are. The former place shows in ``server.properties``: its
# ``log.dirs`` end in ``broker-<id>/logs``, below a folder that is not this one.

SETTINGS = "server.properties"
COORDINATION = "coordination"


class CannotSettle(Exception):
    """The files of a moved or copied data folder cannot be corrected; the message says what to do."""


def former_place(data_dir: Path, broker_ids: Sequence[int]) -> Path | None:
    """Return the absolute path that the folder had when its brokers were configured; None: its present one.

    ``data_dir`` is absolute.
    """
    for broker_id in broker_ids:
        text = (data_dir / f"broker-{broker_id}" / SETTINGS).read_text(encoding="utf-8")
        written = re.search(rf"^log\.dirs=(/.*)/broker-{broker_id}/logs$", text, re.MULTILINE)
        if written is None:
            continue
        place = Path(written[1])
        if place == data_dir or (place.exists() and place.samefile(data_dir)):
            continue
        has_store = f"\nnilometer.coordination=local:{place / COORDINATION}\n" in text
        if has_store or (data_dir / f"broker-{broker_id}" / "logs" / META_PROPERTIES).exists():
            return place
    return None


def corrected(text: str, former: Path, data_dir: Path) -> str:
    """Return the text of a properties file with the paths below ``former`` replaced by those below
    ``data_dir``."""
    return re.sub(rf"(?<![\w./-]){re.escape(str(former))}(?=/)", lambda _: str(data_dir), text)


def correct_paths(data_dir: Path, former: Path, broker_ids: Sequence[int]) -> None:
    """Correct the paths in all files, and forget the processes of the former place.

    Raises CannotSettle, before anything is changed.
    """
    missing = list(_missing(data_dir, former, broker_ids))
    if missing:
        raise CannotSettle(
            f"{data_dir} has the settings of the cluster in {former}, but not all of its data: "
            f"{', '.join(missing)} is missing. Copy the whole folder, with its brokers stopped"
        )
    for broker_id in broker_ids:
        for name in ("process.json", "status.json"):
            (data_dir / f"broker-{broker_id}" / name).unlink(missing_ok=True)
    for path in sorted(data_dir.glob("security/*.properties")) + sorted(
        data_dir.glob(f"broker-*/{SETTINGS}")
    ):
        write_private(path, corrected(path.read_text(encoding="utf-8"), former, data_dir))


def _missing(data_dir: Path, former: Path, broker_ids: Sequence[int]) -> Iterator[str]:
    """Yield what the settings name below the former place, and is not here."""
    for broker_id in broker_ids:
        folder = data_dir / f"broker-{broker_id}"
        text = corrected((folder / SETTINGS).read_text(encoding="utf-8"), former, data_dir)
        if not (folder / "logs" / META_PROPERTIES).exists() and f"\nlog.dirs={folder / 'logs'}\n" in text:
            yield str(folder / "logs" / META_PROPERTIES)
        store = data_dir / COORDINATION
        if not store.exists() and f"\nnilometer.coordination=local:{store}\n" in text:
            yield str(store)


CONTROLLER = "CONTROLLER"
"""The name of the listener by which the nodes of a metadata quorum reach each other."""
VOTERS_MAX = 3
PORTS_APART = 1_000
"""A voter's port for the others is its port for clients and so much."""


def voters_of(ports: Mapping[int, int]) -> str:
    """Return ``controller.quorum.voters`` of a new cluster, of which the first brokers vote.

    ``ports``: those of the brokers for clients, by id.
    """
    first = sorted(ports)[:VOTERS_MAX]
    return ",".join(f"{one}@{LOOPBACK}:{ports[one] + PORTS_APART}" for one in first)


def quorum_properties(
    broker_id: int, listener: str, voters: str, security: SecureFolder | None = None
) -> dict[str, str]:
    """Return the settings of a broker in a metadata quorum on this machine: a voter if ``voters`` name it.
    ``listener``: for clients; ``security``: of a secure cluster, whose nodes reach each other by TLS, and
    know each other by a key."""
    own = next((one for one in voters.split(",") if one.startswith(f"{broker_id}@")), None)
    settings = {
        "nilometer.coordination": QUORUM,
        "process.roles": "broker" if own is None else "broker,controller",
        "controller.quorum.voters": voters,
        "controller.listener.names": CONTROLLER,
    }
    if own is not None:
        settings["listeners"] = f"{listener},{CONTROLLER}://{own.partition('@')[2]}"
    if security is not None:
        protocols = {PROTOCOL.value: PROTOCOL, CONTROLLER: SecurityProtocol.SSL}
        settings[PROTOCOL_MAP] = ",".join(f"{name}:{protocol.value}" for name, protocol in protocols.items())
        settings[SECRET_FILE] = str(security.quorum_key_path)
    return settings


LOG_FILE = "nilometer.log.file"
STOP_TIMEOUT_S = 60.0


class _Record(msgspec.Struct, frozen=True):
    pid: int
    started: str
    host: str
    port: int
    metrics: str | None = None


def _process_started(pid: int) -> str | None:
    """Return the start time of process ``pid``, which a reuse of the pid changes; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        pass
    listing = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )  # systems without /proc
    return listing.stdout.strip() or None


@contextlib.contextmanager
def _signals_held() -> Generator[None, None, None]:
    """Delay Ctrl-C and SIGTERM until the block ends.

    An exception between the start of a process and the creation of its object would leave the process running
    without an owner.
    """
    received: list[int] = []
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda got, _frame: received.append(got)) for number in both]
    try:
        yield
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)
    for number in received[:1]:
        signal.raise_signal(number)


class LocalCluster:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self.security = SecureFolder(data_dir)

    def broker_dir(self, broker_id: int) -> Path:
        return self.data_dir / f"broker-{broker_id}"

    def broker_ids(self) -> list[int]:
        """Return the ids of all brokers that are configured in this folder."""
        if not self.data_dir.is_dir():
            return []
        names = [
            path.name for path in self.data_dir.glob("broker-*") if (path / "server.properties").is_file()
        ]
        return sorted(int(number) for name in names if (number := name.removeprefix("broker-")).isdigit())

    def brokers(self) -> list[BrokerProcess]:
        return [self.broker(broker_id) for broker_id in self.broker_ids()]

    def former_place(self) -> Path | None:
        """Return where the folder was when its files were written, if it was moved or copied since."""
        return former_place(self.data_dir, self.broker_ids())

    def settle(self) -> Path | None:
        """Correct the files of a folder that was moved or copied; return where it was before.

        Raises CannotSettle.
        """
        former = self.former_place()
        if former is not None:
            if running := [str(one.id) for one in self.brokers() if one.pid is not None]:
                raise CannotSettle(
                    f"{self.data_dir} was moved from {former} while brokers {', '.join(running)} ran, and "
                    f"they still do. Stop them first: nilometer down --data-dir {self.data_dir}"
                )
            correct_paths(self.data_dir, former, self.broker_ids())
        return former

    def broker(self, broker_id: int) -> BrokerProcess:
        former = self.former_place()
        is_copy = former is not None and former.exists()  # then the processes are those of the original
        record = None if is_copy else self._read_record(broker_id)
        host, port = self._configured_endpoint(broker_id)
        status = BrokerStatusFile(self.status_path(broker_id)).read()
        reason = None if status is None else status.reason
        if record is not None and _process_started(record.pid) == record.started:
            state = "running" if status is None else status.state
            at = (record.host, record.port, record.pid)
            return BrokerProcess(broker_id, *at, state, reason, record.metrics)
        reason = reason or self._why_down(broker_id, was_started=record is not None)
        return BrokerProcess(broker_id, host, port, None, "down", reason)

    def _why_down(self, broker_id: int, *, was_started: bool) -> str:
        """Return why a broker without a process has none, if the broker itself wrote no reason."""
        if not was_started:
            return "it has not been started"
        folder = self.broker_dir(broker_id)
        directories = self.setting(broker_id, "log.dirs").split(",")
        if (folder / directories[0].strip() / CLEAN_SHUTDOWN).exists():
            return "it was stopped"
        return f"its process was killed, or the machine was; see {folder / 'broker.log'}"

    def status_path(self, broker_id: int) -> Path:
        """Return the path of the status file, which the broker writes."""
        return self.broker_dir(broker_id) / "status.json"

    @property
    def coordination(self) -> str:
        """The coordination store next to the brokers' data, as a value of ``nilometer.coordination``."""
        return f"local:{self.data_dir / 'coordination'}"

    def configured_coordination(self) -> str | None:
        """Return the coordination store that the folder's brokers have; None if there are no brokers."""
        for broker_id in self.broker_ids():
            return self.settings(broker_id).get("nilometer.coordination", self.coordination)
        return None

    def settings(self, broker_id: int) -> dict[str, str]:
        """Return the broker's ``server.properties``. Raises ConfigError."""
        return parse_properties(self._text(broker_id), str(self.broker_dir(broker_id) / "server.properties"))

    def new_settings(
        self, broker_id: int, endpoint: Endpoint, properties: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the ``server.properties`` of a new broker; in a secure cluster they contain passwords."""
        return {
            "node.id": str(broker_id),
            "listeners": str(endpoint),
            "log.dirs": str(self.broker_dir(broker_id) / "logs"),
            "nilometer.coordination": self.coordination,
            **properties,
            **(self.security.broker_settings(broker_id) if self.security.exists else {}),
        }

    def configure(self, broker_id: int, settings: Mapping[str, str]) -> None:
        """Write a new broker's ``server.properties``; an existing one is left as it is."""
        folder = self.broker_dir(broker_id)
        path = folder / "server.properties"
        if path.exists():
            return
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        write_private(path, "".join(f"{key}={value}\n" for key, value in settings.items()))

    def start(
        self,
        broker_ids: Sequence[int],
        overrides: dict[str, str],
        own: Mapping[int, Mapping[str, str]] | None = None,
    ) -> list[BrokerProcess]:
        """Start brokers in parallel; return when all brokers of the folder are ready.

        Ready means that each runs, and that each knows all the others as registered and not fenced.
        ``overrides`` are settings of all of them for this start, ``own`` those of one broker, by its id.
        Raises LaunchFailed after stopping the started brokers.
        """
        launches: list[_Launch] = []
        try:
            with _signals_held():
                for broker_id in broker_ids:
                    settings = {**overrides, **(own or {}).get(broker_id, {})}
                    launches.append(_Launch(self, broker_id, settings))
            for launch in launches:
                launch.wait_ready()
            wait_all_registered(self.brokers, self.security.admin_settings() if self.security.exists else {})
        except BaseException:
            for launch in launches:
                launch.abandon()
            raise
        return [self.broker(broker_id) for broker_id in broker_ids]

    def stop(self, brokers: Sequence[BrokerProcess], stuck: Callable[[BrokerProcess], None]) -> bool:
        """Stop brokers with SIGTERM and wait up to ``STOP_TIMEOUT_S``; return whether all have stopped.

        ``stuck`` is called for each broker that has not.
        """
        records = {broker.id: self._read_record(broker.id) for broker in brokers}
        for broker in brokers:
            record = records[broker.id]
            if record is not None and _process_started(record.pid) == record.started:
                os.kill(record.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        alive = list(brokers)
        while alive and time.monotonic() < deadline:
            alive = [b for b in alive if (r := records[b.id]) and _process_started(r.pid) == r.started]
            if alive:
                time.sleep(_POLL_S)
        for broker in alive:
            stuck(broker)
        return not alive

    def write_record(self, broker_id: int, pid: int, host: str, port: int, metrics: str | None) -> None:
        started = _process_started(pid)
        if started is None:
            return
        path = self.broker_dir(broker_id) / "process.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(_Record(pid, started, host, port, metrics))), encoding="utf-8")
        temporary.replace(path)

    def _read_record(self, broker_id: int) -> _Record | None:
        try:
            return _Record(
                **json.loads((self.broker_dir(broker_id) / "process.json").read_text(encoding="utf-8"))
            )
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _first_listener(self, broker_id: int) -> str:
        return self.setting(broker_id, "listeners").split(",")[0]

    def _configured_endpoint(self, broker_id: int) -> tuple[str, int]:
        host, separator, port = self._first_listener(broker_id).partition("://")[2].rpartition(":")
        return (host.strip("[]"), int(port)) if separator else ("", 0)

    def setting(self, broker_id: int, key: str) -> str:
        """Return a value of the broker's ``server.properties``; empty if it is not set there."""
        for line in self._text(broker_id).splitlines():
            name, separator, value = line.partition("=")
            if separator and name.strip() == key:
                return value.strip()
        return ""

    def _text(self, broker_id: int) -> str:
        """Return the broker's ``server.properties``, with the paths of the folder's present place."""
        text = (self.broker_dir(broker_id) / "server.properties").read_text(encoding="utf-8")
        former = self.former_place()
        return text if former is None else corrected(text, former, self.data_dir)


class _Launch:
    """One broker process that is starting; through a pipe it reports that it is ready, or that it has ended.

    A broker whose pipe is closed before it is ready stops, because no record of it was written.
    """

    def __init__(self, cluster: LocalCluster, broker_id: int, overrides: dict[str, str]) -> None:
        self._cluster = cluster
        self._id = broker_id
        folder = cluster.broker_dir(broker_id)
        self._log_path = folder / "broker.log"
        command = [sys.executable, "-m", "nilometer.broker", "--config", str(folder / "server.properties")]
        if not (LOG_FILE in overrides or cluster.setting(broker_id, LOG_FILE)):
            overrides = {**overrides, LOG_FILE: str(self._log_path)}
        for key, value in overrides.items():
            command += ["--override", f"{key}={value}"]
        status_path = cluster.status_path(broker_id)
        read_end, write_end = os.pipe()
        self._ready_fd = read_end
        self._log_start = self._log_path.stat().st_size if self._log_path.exists() else 0
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-fd", str(write_end), "--status-file", str(status_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=broker_environment(os.environ),
                pass_fds=(write_end,),
                start_new_session=True,
            )
        os.close(write_end)

    def wait_ready(self) -> None:
        os.set_blocking(self._ready_fd, False)
        deadline = time.monotonic() + READY_TIMEOUT_S
        seen = b""
        while not seen.endswith(b"\n"):
            try:
                part = os.read(self._ready_fd, 256)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LaunchFailed(
                        f"broker {self._id} was not ready after {READY_TIMEOUT_S:.0f} s; see {self._log_path}"
                    ) from None
                time.sleep(_POLL_S / 4)
                continue
            if not part:
                raise LaunchFailed(f"broker {self._id} did not start: {self._reason()}")
            seen += part
        os.close(self._ready_fd)
        said = seen.decode().strip()
        if said.startswith(NOT_READY):
            raise LaunchFailed(f"broker {self._id} is not ready: {said.removeprefix(NOT_READY)}")
        address, _, metrics = said.partition(" ")
        host, _, port = address.rpartition(":")
        self._cluster.write_record(self._id, self._process.pid, host, int(port), metrics or None)

    def abandon(self) -> None:
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)

    def _reason(self) -> str:
        self._process.wait(5)
        with open(self._log_path, "rb") as log:
            is_whole = os.fstat(log.fileno()).st_size >= self._log_start  # else it was renamed meanwhile
            log.seek(self._log_start if is_whole else 0)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
        said = next((line for line in reversed(lines) if line.strip()), "no output")
        return f"{said} (exit code {self._process.returncode}; see {self._log_path})"
