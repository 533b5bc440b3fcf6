"""The broker's settings: every key of ``server.properties`` that Nilometer knows, under Kafka's names.

Keys that have defaults for topics (``log.segment.bytes``, …) are derived from the topic keys in ``storage``;
the keys here are the broker's own. Keys beginning with ``nilometer.``, and those of :data:`MONITORING`, do
not exist in Kafka.
"""

from __future__ import annotations

from nilometer.broker.settings.authorizer_config_keys import AUTHORIZER_KEYS
from nilometer.broker.settings.broker_authentication import BROKER_AUTHENTICATION_KEYS
from nilometer.broker.settings.group_config_keys import GROUP_KEYS, GROUP_KEYS_WITHOUT_EFFECT
from nilometer.broker.settings.kafka_keys_without_effect import KAFKA_KEYS_WITHOUT_EFFECT
from nilometer.broker.settings.log_settings import LOG_KEYS
from nilometer.broker.settings.quota_config_keys import QUOTA_KEYS
from nilometer.broker.settings.security_config_keys import SASL_KEYS, TLS_KEYS
from nilometer.broker.settings.transaction_config_keys import TRANSACTION_KEYS
from nilometer.broker.settings.zookeeper_settings import ZOOKEEPER_SECURITY_KEYS
from nilometer.config import ConfigKey, ConfigKind
from nilometer.security.protocol import SecurityProtocol

_BOOLEAN, _INT, _LONG = ConfigKind.BOOLEAN, ConfigKind.INT, ConfigKind.LONG
_STRING, _LIST, _DOUBLE = ConfigKind.STRING, ConfigKind.LIST, ConfigKind.DOUBLE

LONG_MAX = (1 << 63) - 1
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"


def _key(
    name: str,
    kind: ConfigKind,
    default: bool | int | float | str | tuple[str, ...] | None,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
) -> ConfigKey:
    return ConfigKey(
        name=name,
        kind=kind,
        default=default,
        doc=doc,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        dynamic=dynamic,
    )


IDENTITY = [
    _key("node.id", _INT, -1, "The id of this broker, unique in its cluster.", minimum=-1),
    _key("broker.id", _INT, -1, "The older name of node.id.", minimum=-1),
    _key(
        "process.roles",
        _LIST,
        (),
        "The roles of the process: broker, with or without controller, which any broker may become.",
        choices=("broker", "controller"),
    ),
    _key("broker.rack", _STRING, None, "The rack of this broker; replicas are spread over racks."),
]

NETWORK = [
    _key(
        "listeners",
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where to listen, as NAME://host:port,…; one listener for each name.",
    ),
    _key(
        "advertised.listeners",
        _LIST,
        (),
        "The addresses that clients connect to, by listener name; by default the listeners.",
    ),
    _key(
        "listener.security.protocol.map",
        _LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "The security protocol of each listener, as LISTENER:PROTOCOL.",
    ),
    _key(
        "inter.broker.listener.name",
        _STRING,
        None,
        "The name of the listener by which brokers connect to each other; by default the one named "
        "PLAINTEXT, or the only one.",
    ),
    _key(
        "controller.listener.names",
        _LIST,
        (),
        "The listeners of controllers. They are not opened: any broker may become the controller.",
    ),
    _key(
        "security.inter.broker.protocol",
        _STRING,
        "PLAINTEXT",
        "The name of the listener between brokers, if it is named after its security protocol.",
        choices=tuple(protocol.value for protocol in SecurityProtocol),
    ),
    _key(
        "socket.request.max.bytes",
        _INT,
        104_857_600,
        "The largest request accepted; a connection that sends a larger one is closed.",
        minimum=1,
    ),
    _key(
        "connections.max.idle.ms",
        _LONG,
        600_000,
        "A connection that is idle for this long is closed; -1: never.",
        minimum=-1,
    ),
    _key(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "The maximum number of incremental fetch sessions (KIP-227).",
        minimum=0,
    ),
    _key(
        "fetch.max.bytes",
        _INT,
        57_671_680,
        "The maximum bytes of records in one fetch response.",
        minimum=1024,
    ),
]

LOGS = [
    _key("log.dir", _STRING, "/tmp/kafka-logs", "The log directory, if log.dirs is not given."),
    _key("log.dirs", _LIST, (), "The log directories."),
    _key(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "Without effect: recovery points are checkpointed with the high watermarks.",
        minimum=0,
    ),
    _key(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "Without effect: log start offsets are checkpointed with the high watermarks.",
        minimum=0,
    ),
    _key(
        "log.flush.scheduler.interval.ms",
        _LONG,
        (1 << 63) - 1,
        "How long a record may stay unflushed if neither flush.ms nor log.flush.interval.ms is set.",
    ),
    _key("log.roll.hours", _INT, None, "log.roll.ms, in hours.", minimum=1),
    _key("log.roll.jitter.hours", _INT, None, "log.roll.jitter.ms, in hours.", minimum=0),
    _key("log.retention.minutes", _INT, None, "log.retention.ms, in minutes; -1: no time limit."),
    _key("log.retention.hours", _INT, None, "log.retention.ms, in hours; -1: no time limit."),
    _key(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        "How often logs are checked for segments to delete.",
        minimum=1,
    ),
    _key(
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        "How long the state of an idempotent producer is kept after its last write.",
        minimum=1,
    ),
]

CLEANER = [
    _key("log.cleaner.enable", _BOOLEAN, True, "Whether logs with cleanup.policy=compact are compacted."),
    _key("log.cleaner.threads", _INT, 1, "How many logs are compacted at once.", minimum=0),
    _key(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        1.7976931348623157e308,
        "The maximum bytes a second that compaction reads and writes.",
        minimum=1,
    ),
    _key(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        128 << 20,
        "Memory of all cleaners together for the newest offset of each key (24 bytes a key);"
        " an eighth more marks the records that were read.",
        minimum=1 << 20,
    ),
    _key(
        "log.cleaner.io.buffer.size",
        _INT,
        512 << 10,
        "Bytes that all cleaners together read and rewrite in one step.",
        minimum=1024,
    ),
    _key(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        "How full the cleaner's table of newest offsets may become, as a share of its size.",
        minimum=0.1,
        maximum=1,
    ),
    _key(
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        "How often logs are checked for one to compact.",
        minimum=1,
    ),
]

TOPICS = [
    _key(
        "num.partitions",
        _INT,
        1,
        "Partitions of a topic that is created without a partition count.",
        minimum=1,
    ),
    _key(
        "default.replication.factor",
        _INT,
        1,
        "Replicas of a topic that is created without a replication factor.",
        minimum=1,
        maximum=32767,
    ),
    _key(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether a Metadata request for an unknown topic creates it, if the client allows that.",
    ),
    _key("delete.topic.enable", _BOOLEAN, True, "Whether topics can be deleted."),
]

REPLICATION = [
    _key(
        "replica.lag.time.max.ms",
        _LONG,
        10_000,
        "A follower that has not caught up for this long leaves the ISR.",
        minimum=1,
    ),
    _key(
        "replica.fetch.max.bytes",
        _INT,
        1_048_576,
        "Bytes that a follower requests for each partition.",
        minimum=0,
    ),
    _key(
        "replica.fetch.response.max.bytes",
        _INT,
        10_485_760,
        "Bytes that a follower requests in one fetch.",
        minimum=0,
    ),
    _key(
        "replica.fetch.min.bytes",
        _INT,
        1,
        "Bytes that a follower's fetch waits for at the leader.",
        minimum=0,
    ),
    _key(
        "replica.fetch.wait.max.ms",
        _INT,
        500,
        "The longest time that a follower's fetch waits at the leader.",
        minimum=1,
    ),
    _key(
        "replica.fetch.backoff.ms",
        _INT,
        1_000,
        "How long a follower waits after an error before it fetches again.",
        minimum=0,
    ),
    _key(
        "num.replica.fetchers",
        _INT,
        1,
        "Fetchers, each with a connection, for each other broker.",
        minimum=1,
        maximum=64,
    ),
    _key(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5_000,
        "How often high watermarks are checkpointed.",
        minimum=1,
    ),
    _key(
        "replica.selector.class",
        _STRING,
        None,
        "How consumers' preferred replica is chosen (KIP-392).",
        choices=(RACK_AWARE_SELECTOR, LEADER_SELECTOR),
    ),
    _key(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        "Whether leaderships are moved back to preferred replicas.",
    ),
    _key(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        "How often the controller checks for leaderships to move back to preferred replicas.",
        minimum=1,
    ),
    _key(
        "leader.imbalance.per.broker.percentage",
        _INT,
        10,
        "The percentage of its preferred leaderships that a broker may lack before they are moved back.",
        minimum=0,
    ),
    _key(
        "leader.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Bytes a second that this broker sends to throttled replicas.",
        minimum=0,
        dynamic=True,
    ),
    _key(
        "follower.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Bytes a second that this broker fetches for its throttled replicas.",
        minimum=0,
        dynamic=True,
    ),
    _key(
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        "Whether a broker that stops first moves its leaderships to other brokers.",
    ),
]

COORDINATION = [
    _key(
        "nilometer.coordination",
        _STRING,
        "local",
        "The coordination store: local (a folder in the first log directory), local:/path, or zookeeper://host:port,…",
    ),
    _key(
        "zookeeper.connect",
        _STRING,
        None,
        "ZooKeeper as host:port,…; the older form of nilometer.coordination.",
    ),
    _key(
        "zookeeper.session.timeout.ms",
        _INT,
        6_000,
        "A broker whose session has no heartbeat for this long is fenced.",
        minimum=100,
    ),
]

MONITORING = [
    _key(
        "metrics.listener",
        _STRING,
        None,
        "Where metrics and health are served over HTTP, as host:port, or as a port on 127.0.0.1; by default "
        "nowhere. Paths: /metrics, /healthz, /readyz.",
    ),
    _key(
        "metrics.per.partition.enable",
        _BOOLEAN,
        False,
        "Whether /metrics has series of single partitions: about ten for each replica.",
    ),
]

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
    *ZOOKEEPER_SECURITY_KEYS,
    *BROKER_AUTHENTICATION_KEYS,
    *MONITORING,
    *GROUP_KEYS,
    *LOG_KEYS,
    *TRANSACTION_KEYS,
    *AUTHORIZER_KEYS,
    *QUOTA_KEYS,
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
