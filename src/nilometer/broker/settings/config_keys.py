"""The broker's settings: every key of ``server.properties`` that Nilometer knows, under Kafka's names.

Keys that have defaults for topics (``log.segment.bytes``, …) are derived from the topic keys in ``storage``;
the keys here are the broker's own. Keys beginning with ``nilometer.``, and those of :data:`MONITORING`, do
not exist in Kafka.
"""

from __future__ import annotations

from nilometer.broker.settings.access_config_keys import AUTHORIZER_KEYS, QUOTA_KEYS, TOKEN_KEYS
from nilometer.broker.settings.broker_authentication import BROKER_AUTHENTICATION_KEYS
from nilometer.broker.settings.coordinators import (
    DEAD_LETTER_KEYS,
    GROUP_KEYS,
    GROUP_KEYS_WITHOUT_EFFECT,
    SHARE_STATE_KEYS,
    TRANSACTION_KEYS,
)
from nilometer.broker.settings.kafka_keys import KAFKA_KEYS_WITHOUT_EFFECT
from nilometer.broker.settings.listener_security import SASL_KEYS, TLS_KEYS
from nilometer.broker.settings.log_settings import LOG_KEYS
from nilometer.broker.settings.quorum import QUORUM_KEYS
from nilometer.broker.settings.replication_config_keys import CLEANER, LOGS, REPLICATION, TOPICS
from nilometer.broker.settings.zookeeper_settings import ZOOKEEPER_SECURITY_KEYS
from nilometer.config import key_table
from nilometer.security.protocol import SecurityProtocol

IDENTITY = key_table(
    """
node.id: int -1.. = -1
    The id of this broker, unique in its cluster.
broker.id: int -1.. = -1
    The older name of node.id.
process.roles: list (broker|controller) =
    The roles of the process: broker, or broker and controller, which may vote in a metadata quorum. Without a
    quorum any broker may become the controller.
broker.rack: string
    The rack of this broker; replicas are spread over racks.
"""
)

_PROTOCOLS = ",".join(f"{one.value}:{one.value}" for one in SecurityProtocol)

NETWORK = key_table(
    f"""
listeners: list = PLAINTEXT://127.0.0.1:9092
    Where to listen, as NAME://host:port,…; one listener for each name.
advertised.listeners: list =
    The addresses that clients connect to, by listener name; by default the listeners.
listener.security.protocol.map: list = {_PROTOCOLS}
    The security protocol of each listener, as LISTENER:PROTOCOL.
inter.broker.listener.name: string
    The name of the listener by which brokers connect to each other; by default the one named PLAINTEXT,
    or the only one.
controller.listener.names: list =
    The listeners by which the nodes of a metadata quorum reach each other; clients do not use them. Without
    a quorum they are not opened.
security.inter.broker.protocol: string = PLAINTEXT
    The name of the listener between brokers, if it is named after its security protocol.
socket.request.max.bytes: int 1.. = 104_857_600
    The largest request accepted; a connection that sends a larger one is closed.
queued.max.request.bytes: long -1.. = {128 * 1024 * 1024}
    The memory for clients' requests that have not been handled yet. Once it is used up, connections that
    hold a part of it are not read on. At least socket.request.max.bytes; -1, the default of Apache Kafka:
    no limit.
connections.max.idle.ms: long -1.. = 600_000
    A connection that is idle for this long is closed; -1: never.
max.incremental.fetch.session.cache.slots: int 0.. = 1000
    The maximum number of incremental fetch sessions (KIP-227).
fetch.max.bytes: int 1024.. = 57_671_680
    The maximum bytes of records in one fetch response.
""",
    choices={"security.inter.broker.protocol": tuple(protocol.value for protocol in SecurityProtocol)},
)

COORDINATION = key_table(
    """
nilometer.coordination: string = local
    The coordination store: local (a folder in the first log directory), local:/path,
    zookeeper://host:port,…, or quorum, which is the default with controller.quorum.voters or
    controller.quorum.bootstrap.servers.
zookeeper.connect: string
    ZooKeeper as host:port,…; the older form of nilometer.coordination.
zookeeper.session.timeout.ms: int 100.. = 6000
    A broker whose session has no heartbeat for this long is fenced.
"""
)

MONITORING = key_table(
    """
metrics.listener: string
    Where metrics and health are served over HTTP, as host:port, or as a port on 127.0.0.1; by default
    nowhere. Paths: /metrics, /healthz, /readyz.
metrics.per.partition.enable: boolean = false
    Whether /metrics has series of single partitions: about ten for each replica.
"""
)

OWN_KEYS = [
    *SASL_KEYS,
    *TLS_KEYS,
    *IDENTITY,
    *NETWORK,
    *LOGS,
    *CLEANER,
    *TOPICS,
    *REPLICATION,
    *COORDINATION,
    *QUORUM_KEYS,
    *ZOOKEEPER_SECURITY_KEYS,
    *BROKER_AUTHENTICATION_KEYS,
    *MONITORING,
    *GROUP_KEYS,
    *LOG_KEYS,
    *SHARE_STATE_KEYS,
    *DEAD_LETTER_KEYS,
    *TRANSACTION_KEYS,
    *AUTHORIZER_KEYS,
    *QUOTA_KEYS,
    *TOKEN_KEYS,
]

IGNORED_KEYS = frozenset(
    {
        "num.network.threads",
        "num.io.threads",
        "num.recovery.threads.per.data.dir",
        "background.threads",
        "queued.max.requests",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "socket.listen.backlog.size",
        "num.replica.alter.log.dirs.threads",
        "log.preallocate",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        *GROUP_KEYS_WITHOUT_EFFECT,
        *KAFKA_KEYS_WITHOUT_EFFECT,
    }
)
"""Kafka's keys that size threads and buffers which a single event loop does not have, or that belong to
missing features. They are accepted, so that a broker starts with a server.properties written for Kafka, and
listed in the log as without effect."""

KNOWN_KEYS_WITHOUT_EFFECT = frozenset(
    {
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
    }
)
"""Keys whose values are checked but have no effect; given ones are named in the log. Recovery points and log
start offsets are checkpointed with the high watermarks."""
