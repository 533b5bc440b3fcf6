"""The brokers of a local cluster's data folder as processes: their states, their environment, and when all of
them are a cluster.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from nilometer.client.network.client import Client
from nilometer.client.settings.client_settings import COMMON_KEYS, ClientSettings
from nilometer.config import ConfigDefinition
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import KafkaError, MalformedMessage
from nilometer.wire.messages import api, decode_response, encode_request

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
