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
from nilometer.broker.settings.listener_security import SASL_KEYS, TLS_KEYS
from nilometer.broker.settings.logging_settings import LOG_KEYS
from nilometer.broker.settings.quorum import QUORUM_KEYS
from nilometer.broker.settings.recorder import RECORDER_KEYS
from nilometer.broker.settings.tiering import TIER_KEYS
from nilometer.broker.settings.zookeeper_settings import ZOOKEEPER_SECURITY_KEYS
from nilometer.config import key_table
from nilometer.security.principal import SecurityProtocol

# The broker's settings for topics, their replicas, leaderships and logs: log directories and compaction as
# well.

LONG_MAX = (1 << 63) - 1
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"

TOPICS = key_table(
    """
num.partitions: int 1.. = 1
    Partitions of a topic that is created without a partition count.
default.replication.factor: int 1..32_767 = 1
    Replicas of a topic that is created without a replication factor.
auto.create.topics.enable: boolean = true
    Whether a Metadata request for an unknown topic creates it, if the client allows that.
delete.topic.enable: boolean = true
    Whether topics can be deleted.
"""
)

REPLICATION = key_table(
    f"""
replica.lag.time.max.ms: long 1.. = 10_000
    A follower that has not caught up for this long leaves the ISR.
replica.fetch.max.bytes: int 0.. = 1_048_576
    Bytes that a follower requests for each partition.
replica.fetch.response.max.bytes: int 0.. = 10_485_760
    Bytes that a follower requests in one fetch.
replica.fetch.min.bytes: int 0.. = 1
    Bytes that a follower's fetch waits for at the leader.
replica.fetch.wait.max.ms: int 1.. = 500
    The longest time that a follower's fetch waits at the leader.
replica.fetch.backoff.ms: int 0.. = 1000
    How long a follower waits after an error before it fetches again.
num.replica.fetchers: int 1..64 = 1
    Fetchers, each with a connection, for each other broker.
replica.high.watermark.checkpoint.interval.ms: long 1.. = 5000
    How often high watermarks are checkpointed.
replica.selector.class: string
    How consumers' preferred replica is chosen (KIP-392).
auto.leader.rebalance.enable: boolean = true
    Whether leaderships are moved back to preferred replicas.
leader.imbalance.check.interval.seconds: long 1.. = 300
    How often the controller checks for leaderships to move back to preferred replicas.
leader.imbalance.per.broker.percentage: int 0.. = 10
    The percentage of its preferred leaderships that a broker may lack before they are moved back.
leader.replication.throttled.rate: long 0.. dynamic = {LONG_MAX}
    Bytes a second that this broker sends to throttled replicas.
follower.replication.throttled.rate: long 0.. dynamic = {LONG_MAX}
    Bytes a second that this broker fetches for its throttled replicas.
replica.alter.log.dirs.io.max.bytes.per.second: long 0.. dynamic = {LONG_MAX}
    Bytes a second that this broker copies for replicas that are moved between its log directories (KIP-113).
controlled.shutdown.enable: boolean = true
    Whether a broker that stops first moves its leaderships to other brokers.
""",
    choices={"replica.selector.class": (RACK_AWARE_SELECTOR, LEADER_SELECTOR)},
)


LOGS = key_table(
    f"""
log.dir: string = /tmp/kafka-logs
    The log directory, if log.dirs is not given.
log.dirs: list =
    The log directories.
log.flush.offset.checkpoint.interval.ms: int 0.. = 60_000
    Without effect: recovery points are checkpointed with the high watermarks.
log.flush.start.offset.checkpoint.interval.ms: int 0.. = 60_000
    Without effect: log start offsets are checkpointed with the high watermarks.
log.flush.scheduler.interval.ms: long = {(1 << 63) - 1}
    How long a record may stay unflushed if neither flush.ms nor log.flush.interval.ms is set.
log.roll.hours: int 1..
    log.roll.ms, in hours.
log.roll.jitter.hours: int 0..
    log.roll.jitter.ms, in hours.
log.retention.minutes: int
    log.retention.ms, in minutes; -1: no time limit.
log.retention.hours: int
    log.retention.ms, in hours; -1: no time limit.
log.retention.check.interval.ms: long 1.. = 300_000
    How often logs are checked for segments to delete.
producer.id.expiration.ms: int 1.. = 86_400_000
    How long the state of an idempotent producer is kept after its last write.
"""
)

CLEANER = key_table(
    f"""
log.cleaner.enable: boolean = true
    Whether logs with cleanup.policy=compact are compacted.
log.cleaner.threads: int 0.. = 1
    How many logs are compacted at once.
log.cleaner.io.max.bytes.per.second: double 1.. = 1.7976931348623157e+308
    The maximum bytes a second that compaction reads and writes.
log.cleaner.dedupe.buffer.size: long {1 << 20}.. = {128 << 20}
    Memory of all cleaners together for the newest offset of each key (24 bytes a key); an eighth more
    marks the records that were read.
log.cleaner.io.buffer.size: int 1024.. = {512 << 10}
    Bytes that all cleaners together read and rewrite in one step.
log.cleaner.io.buffer.load.factor: double 0.1..1 = 0.9
    How full the cleaner's table of newest offsets may become, as a share of its size.
log.cleaner.backoff.ms: long 1.. = 15_000
    How often logs are checked for one to compact.
"""
)


# Kafka's keys of brokers for which there is no setting here: those without effect, and those refused.
#
# A broker starts with a key that has no effect, by the reason below, and names it in the log: a
# ``server.properties`` written for Kafka, with KRaft or without, can be used as it is. With a refused key it
# does not start, since what the key asks for would be missing.

KRAFT_KEYS = frozenset(
    {
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
        "controller.quorum.append.linger.ms",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "controller.socket.timeout.ms",
        "early.start.listeners",
        "metadata.log.max.snapshot.interval.ms",
        "metadata.log.segment.bytes",
        "metadata.log.segment.ms",
        "metadata.max.idle.interval.ms",
        "metadata.max.retention.bytes",
        "metadata.max.retention.ms",
        "server.max.startup.time.ms",
        "unclean.leader.election.interval.ms",
    }
)
"""Of Kafka's controllers and their log; those that have an effect are in
:mod:`nilometer.broker.settings.quorum`."""

SHARE_GROUP_KEYS = frozenset(
    {
        "group.share.assignor.offload.enable",
        "group.share.dlq.manager.class.name",
        "group.share.initialize.retry.interval.ms",
        "group.share.persister.class.name",
        "share.coordinator.append.linger.ms",
        "share.coordinator.cached.buffer.max.bytes",
        "share.coordinator.threads",
        "share.fetch.purgatory.purge.interval.requests",
    }
)
"""Share groups have no such settings here, or none yet: one event loop needs neither threads nor buffers."""

STREAMS_GROUP_KEYS = frozenset(
    {
        "group.streams.assignor.offload.enable",
        "group.streams.max.warmup.replicas",
        "group.streams.num.warmup.replicas",
    }
)
"""Assignments are computed on a thread of their own whenever they are large. Warm-up tasks are not given."""

SIZING_KEYS = frozenset(
    {
        "delete.records.purgatory.purge.interval.requests",
        "fetch.purgatory.purge.interval.requests",
        "group.consumer.assignor.offload.enable",
        "producer.purgatory.purge.interval.requests",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
"""What waits is not kept in purgatories; sockets have the system's buffers and the time-outs of requests;
large target assignments are always computed beside the event loop."""

ZOOKEEPER_KEYS = frozenset(
    {
        "zookeeper.clientCnxnSocket",
        "zookeeper.connection.timeout.ms",
        "zookeeper.max.in.flight.requests",
    }
)
"""The client of ZooKeeper is not Java's: it needs no class for TLS, and waits for two session timeouts."""

KAFKA_KEYS_WITHOUT_EFFECT = KRAFT_KEYS | SHARE_GROUP_KEYS | STREAMS_GROUP_KEYS | SIZING_KEYS | ZOOKEEPER_KEYS

REFUSED_KEYS = frozenset(
    {
        "alter.config.policy.class.name",
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "client.quota.callback.class",
        "config.providers",
        "cordoned.log.dirs",
        "create.topic.policy.class.name",
        "follower.fetch.last.tiered.offset.enable",
        "group.consumer.regex.refresh.interval.ms",
        "group.streams.topology.description.plugin.class",
        "internal.metadata.delete.delay.millis",
        "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "log.dir.failure.timeout.ms",
        "log.initial.task.delay.ms",
        "log.remote.copy.lag.bytes",
        "log.remote.copy.lag.ms",
        "max.request.partition.size.limit",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "principal.builder.class",
        "producer.id.expiration.check.interval.ms",
        "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.jitter",
        "remote.log.manager.thread.pool.size",
        "remote.log.metadata.custom.metadata.max.bytes",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix",
        "remote.log.metadata.manager.listener.name",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "request.timeout.ms",
        "sasl.client.callback.handler.class",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.allow.unverified.audience",
        "sasl.oauthbearer.allow.unverified.issuer",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file",
        "sasl.oauthbearer.jwt.retriever.class",
        "security.providers",
        "ssl.allow.dn.changes",
        "ssl.allow.san.changes",
        "ssl.cipher.suites",
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "telemetry.max.bytes",
        "transaction.two.phase.commit.enable",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    }
)


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
    *TIER_KEYS,
    *TOPICS,
    *REPLICATION,
    *COORDINATION,
    *QUORUM_KEYS,
    *ZOOKEEPER_SECURITY_KEYS,
    *BROKER_AUTHENTICATION_KEYS,
    *MONITORING,
    *GROUP_KEYS,
    *LOG_KEYS,
    *RECORDER_KEYS,
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
