"""A user with a password: it logs in to any broker, and sends requests that it may or may not send.

An answer counts as allowed if it succeeded, and as refused if it is TOPIC_AUTHORIZATION_FAILED. Any other
error says nothing, as a broker may find it first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from nilometer.client.network.connection import Connection
from nilometer.client.settings.client_security import ClientSecurity
from nilometer.runtime import Entropy, Runtime
from nilometer.security.plain import PLAIN
from nilometer.simulation.checkers.rights import Judged, RightsLedger
from nilometer.simulation.cluster import BrokerNode, Cluster, guest_password
from nilometer.simulation.workload.rights.grantor import PREFIX, TOPICS
from nilometer.simulation.world import Host, Process
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message, api
from nilometer.wire.records import BatchBuilder

GAP_S = (0.02, 0.6)
TIMEOUT_MS = 5_000
REQUESTS_OF_A_CONNECTION = 15
PAUSE_S = (0.0, 0.4)
READERS_SHARE = 0.4
"""How often a connection is used for one fetch session only."""
TOPIC_CONFIG = 2
SET = 0
REFUSED = ErrorCode.topic_authorization_failed


@dataclass(slots=True)
class _Session:
    """A connection, and its fetch session."""

    connection: Connection
    runtime: Runtime
    fetch_id: int = 0
    fetch_epoch: int = 0
    fetched: str = ""
    """The topic of the fetch session."""


_Ask = Callable[["_Session", str], Awaitable["ErrorCode | None"]]


class Guest:
    def __init__(self, user: str, host: Host, cluster: Cluster, ledger: RightsLedger) -> None:
        self.name = user
        self.error_counts: Counter[str] = Counter()
        self.process: Process | None = None
        self._host = host
        self._cluster = cluster
        self._ledger = ledger
        self._stopping = False
        security = ClientSecurity(mechanism=PLAIN, user=user, password=guest_password(user))
        self._security = security
        self._requests: dict[str, tuple[_Ask, bool]] = {
            "WRITE": (_produce, False),
            "READ": (_fetch, False),
            "DESCRIBE": (_metadata, False),
            "ALTER_CONFIGS": (_alter_configs, True),
            "CREATE": (_create, True),
        }
        """By operation: the request, and whether the controller decides it."""

    def start(self) -> Process:
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        self._stopping = True

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            chance = runtime.entropy
            await asyncio.sleep(chance.uniform(*GAP_S))
            node = chance.choice(list(self._cluster.nodes.values()))
            await self._use(runtime, node, self._random_requests(chance))

    def _random_requests(self, chance: Entropy) -> list[tuple[str, str]]:
        count = 1 + chance.below(REQUESTS_OF_A_CONNECTION)
        if chance.uniform(0, 1) < READERS_SHARE:
            return [("READ", chance.choice(TOPICS))] * count
        return [(chance.choice(list(self._requests)), chance.choice(TOPICS)) for _ in range(count)]

    async def ask_every_broker(self, runtime: Runtime) -> None:
        """Send each request to each broker, at rest."""
        wanted = [(operation, name) for operation in self._requests for name in TOPICS]
        for node in self._cluster.nodes.values():
            await self._use(runtime, node, wanted)

    async def _use(self, runtime: Runtime, node: BrokerNode, wanted: Sequence[tuple[str, str]]) -> None:
        """Log in to a broker, and send requests: each an operation and a topic."""
        try:
            connection = await Connection.open(
                runtime,
                node.host.name,
                node.guest_port,
                client_id=self.name,
                request_timeout_ms=TIMEOUT_MS,
                security=self._security,
            )
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return
        session = _Session(connection, runtime)
        try:
            for operation, name in wanted:
                await self._ask(session, node, operation, name)
                await asyncio.sleep(runtime.entropy.uniform(*PAUSE_S))
        except KafkaError as error:  # no response in time, or no connection any more
            self.error_counts[error.code.name] += 1
        finally:
            connection.close()

    async def _ask(self, session: _Session, node: BrokerNode, operation: str, name: str) -> None:
        request, is_forwarded = self._requests[operation]
        if operation == "CREATE":
            name = f"{PREFIX}{session.runtime.entropy.below(1000)}-new"
        image = node.image
        if image is None:
            return
        first, incarnation = image.number, node.incarnations
        if is_forwarded:
            first = min(self._known_numbers())
        code = await request(session, name)
        if code not in (ErrorCode.none, REFUSED):
            return
        image = node.image
        if is_forwarded or image is None or node.incarnations != incarnation:
            last = self._last_entry()
        else:
            last = image.number
        is_allowed = code is not REFUSED
        self._ledger.note(Judged(self.name, operation, name, is_allowed, first, last, node.name))

    def _last_entry(self) -> int:
        """The number of the last entry: a broker that has crashed since may have been the only one that had
        applied it."""
        return max([self._cluster.store.entry_count() - 1, *self._known_numbers()])

    def _known_numbers(self) -> list[int]:
        images = [node.image for node in self._cluster.known.values()]
        return [image.number for image in images if image is not None]


# ── the requests: each returns the error code of the topic, None if the response does not show it ───


async def _produce(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.PRODUCE, 9)
    builder = BatchBuilder()
    builder.append(session.runtime.clock.wall_ms(), None, b"of a guest")
    partition = codec.make_request("PartitionProduceData", index=0, records=builder.build())
    topic = codec.make_request("TopicProduceData", name=name, partition_data=(partition,))
    answer = await session.connection.send(
        codec.request(acks=1, timeout_ms=TIMEOUT_MS // 2, topic_data=(topic,))
    )
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def _fetch(session: _Session, name: str) -> ErrorCode | None:
    """Begin a fetch session, or go on with the one of the connection, whose partition is cached."""
    codec = api(ApiKey.FETCH, 12)
    topics: tuple[Message, ...] = ()
    goes_on = session.fetch_id > 0 and session.fetched == name
    if not goes_on:
        session.fetch_id = session.fetch_epoch = 0
        partition = codec.make_request(
            "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1000, log_start_offset=-1
        )
        topics = (codec.make_request("FetchTopic", topic=name, partitions=(partition,)),)
    answer = await session.connection.send(
        codec.request(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=10_000,
            session_id=session.fetch_id,
            session_epoch=session.fetch_epoch,
            topics=topics,
        )
    )
    if answer.error_code != ErrorCode.none:
        session.fetch_id = 0
        return None
    session.fetch_id, session.fetched = answer.session_id, name
    session.fetch_epoch += 1
    if answer.responses:
        return ErrorCode(answer.responses[0].partitions[0].error_code)
    return ErrorCode.none if goes_on else None  # an error would be there


async def _metadata(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.METADATA, 9)
    asked = codec.make_request("MetadataRequestTopic", name=name)
    answer = await session.connection.send(codec.request(topics=(asked,), allow_auto_topic_creation=False))
    return ErrorCode(answer.topics[0].error_code)


async def _alter_configs(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
    config = codec.make_request("AlterableConfig", name="retention.ms", config_operation=SET, value="-1")
    resource = codec.make_request(
        "AlterConfigsResource", resource_type=TOPIC_CONFIG, resource_name=name, configs=(config,)
    )
    answer = await session.connection.send(codec.request(resources=(resource,), validate_only=True))
    return ErrorCode(answer.responses[0].error_code)


async def _create(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.CREATE_TOPICS, 7)
    topic = codec.make_request("CreatableTopic", name=name, num_partitions=1, replication_factor=1)
    answer = await session.connection.send(
        codec.request(topics=(topic,), timeout_ms=TIMEOUT_MS // 2, validate_only=True)
    )
    return ErrorCode(answer.topics[0].error_code)
