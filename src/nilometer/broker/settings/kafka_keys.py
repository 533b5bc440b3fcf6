"""Kafka's keys that a broker starts with and that have no effect here, by the reason.

They are named in the log where they are given: a ``server.properties`` written for Kafka, with KRaft or
without, can be used as it is.
"""

from __future__ import annotations

KRAFT_KEYS = frozenset(
    {
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
        "controller.quorum.append.linger.ms",
        "controller.quorum.auto.join.enable",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "controller.quorum.voters",
        "controller.socket.timeout.ms",
        "early.start.listeners",
        "initial.broker.registration.timeout.ms",
        "metadata.log.dir",
        "metadata.log.max.record.bytes.between.snapshots",
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
"""Brokers agree through the coordination store (``nilometer.coordination``)."""

SHARE_GROUP_KEYS = frozenset(
    {
        "group.share.assignment.interval.ms",
        "group.share.assignors",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.initialize.retry.interval.ms",
        "group.share.max.assignment.interval.ms",
        "group.share.max.delivery.count.limit",
        "group.share.max.heartbeat.interval.ms",
        "group.share.max.partition.max.record.locks",
        "group.share.max.record.lock.duration.ms",
        "group.share.max.session.timeout.ms",
        "group.share.max.share.sessions",
        "group.share.max.size",
        "group.share.min.assignment.interval.ms",
        "group.share.min.delivery.count.limit",
        "group.share.min.heartbeat.interval.ms",
        "group.share.min.partition.max.record.locks",
        "group.share.min.record.lock.duration.ms",
        "group.share.min.session.timeout.ms",
        "group.share.partition.max.record.locks",
        "group.share.persister.class.name",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "share.coordinator.append.linger.ms",
        "share.coordinator.cached.buffer.max.bytes",
        "share.coordinator.cold.partition.snapshot.interval.ms",
        "share.coordinator.load.buffer.size",
        "share.coordinator.snapshot.update.records.per.snapshot",
        "share.coordinator.state.topic.compression.codec",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.prune.interval.ms",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.threads",
        "share.coordinator.write.timeout.ms",
        "share.fetch.purgatory.purge.interval.requests",
    }
)
"""There are no share groups."""

STREAMS_GROUP_KEYS = frozenset(
    {
        "group.streams.assignment.interval.ms",
        "group.streams.heartbeat.interval.ms",
        "group.streams.initial.rebalance.delay.ms",
        "group.streams.max.assignment.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
        "group.streams.max.session.timeout.ms",
        "group.streams.max.size",
        "group.streams.max.standby.replicas",
        "group.streams.min.assignment.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.num.standby.replicas",
        "group.streams.session.timeout.ms",
    }
)
"""Kafka Streams uses the classic protocol of groups."""

SIZING_KEYS = frozenset(
    {
        "delete.records.purgatory.purge.interval.requests",
        "fetch.purgatory.purge.interval.requests",
        "producer.purgatory.purge.interval.requests",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
"""What waits is not kept in purgatories; sockets have the system's buffers and the time-outs of requests."""

ZOOKEEPER_KEYS = frozenset(
    {
        "zookeeper.clientCnxnSocket",
        "zookeeper.connection.timeout.ms",
        "zookeeper.max.in.flight.requests",
    }
)
"""The client of ZooKeeper is not Java's: it needs no class for TLS, and waits for two session timeouts."""

KAFKA_KEYS_WITHOUT_EFFECT = KRAFT_KEYS | SHARE_GROUP_KEYS | STREAMS_GROUP_KEYS | SIZING_KEYS | ZOOKEEPER_KEYS
