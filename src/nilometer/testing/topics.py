"""Topics of a test cluster: creates one and waits until it can be used; finds a leader."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeVar

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.network.cluster_metadata import PartitionMetadata, metadata_request, read_metadata
from nilometer.client.network.connection import Connection
from nilometer.client.settings.client_security import SECURITY_KEYS, ClientSecurity, client_security
from nilometer.client.settings.client_settings import ClientSettings
from nilometer.config.definition import ConfigDefinition
from nilometer.runtime import Runtime
from nilometer.testing.errors import ClusterError
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

REPLICATION_FACTOR_DEFAULT = -1
TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 30_000
_POLL_S = 0.01


class Servers(NamedTuple):
    """The addresses of the running brokers, by id, and the settings by which clients connect to them."""

    addresses: Mapping[int, str]
    connection: Mapping[str, str]

    @property
    def security(self) -> ClientSecurity:
        definition = ConfigDefinition.of("client", SECURITY_KEYS)
        return client_security(ClientSettings(definition, self.connection))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in a thread of its own, since the caller's thread may have a running event loop."""
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


async def create_topic(
    servers: Servers,
    name: str,
    partitions: int,
    replication_factor: int | None,
    configs: Mapping[str, str],
) -> None:
    """Create a topic; return when, for each of ``servers``, all replicas on ``servers`` are in sync.

    Raises KafkaError, or ClusterError after 30 s.
    """
    factor = REPLICATION_FACTOR_DEFAULT if replication_factor is None else replication_factor
    config = {
        **servers.connection,
        "bootstrap.servers": ",".join(servers.addresses.values()),
        "default.api.timeout.ms": TIMEOUT_MS,
    }
    async with Admin(Runtime.system(), config) as admin:
        await admin.create_topic(NewTopic(name, partitions, factor, configs))
    for server in servers.addresses.values():
        await _wait_in_sync(servers, server, name, partitions)


async def _wait_in_sync(servers: Servers, server: str, topic: str, partitions: int) -> None:
    running, security = servers.addresses.keys(), servers.security
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while True:
                known = await _partitions(server, topic, security)
                if len(known) == partitions and all(_is_in_sync(one, running) for one in known):
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ClusterError(
            f"the replicas of {topic} are not in sync after {TIMEOUT_MS // 1000} s, as {server} reports"
        ) from None


def _is_in_sync(partition: PartitionMetadata, running: Set[int]) -> bool:
    return partition.leader_id in running and set(partition.replicas) & running <= set(
        partition.in_sync_replicas
    )


async def find_leader(servers: Servers, topic: str, partition: int) -> int:
    """Return a partition's leader, as the first of ``servers`` reports it; it is one of them.

    Raises KafkaError, and ClusterError after 30 s.
    """
    addresses = servers.addresses
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while True:
                known = await _partitions(next(iter(addresses.values())), topic, servers.security)
                if not 0 <= partition < len(known):
                    raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}")
                if known[partition].leader_id in addresses:
                    return known[partition].leader_id
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ClusterError(f"{topic}-{partition} has no leader after {TIMEOUT_MS // 1000} s") from None


async def _partitions(server: str, topic: str, security: ClientSecurity) -> Sequence[PartitionMetadata]:
    """Return a topic's partitions in one broker's metadata; none if it does not know the topic."""
    host, _, port = server.rpartition(":")
    connection = await Connection.open(
        Runtime.system(),
        host,
        int(port),
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        setup_timeout_ms=REQUEST_TIMEOUT_MS,
        security=security,
    )
    try:
        response = await connection.request(ApiKey.METADATA, lambda api: metadata_request(api, [topic]))
    finally:
        connection.close()
    known = read_metadata(response).metadata.topics.get(topic)
    return known.partitions if known is not None else ()
