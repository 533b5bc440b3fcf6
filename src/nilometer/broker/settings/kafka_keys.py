"""Kafka's keys of brokers for which there is no setting here: those without effect, and those refused.

A broker starts with a key that has no effect, by the reason below, and names it in the log: a
``server.properties`` written for Kafka, with KRaft or without, can be used as it is. With a refused key it
does not start, since what the key asks for would be missing.
"""

from __future__ import annotations

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
        "initial.broker.registration.timeout.ms",
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
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.manager.task.interval.ms",
        "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.jitter",
        "remote.log.manager.thread.pool.size",
        "remote.log.metadata.custom.metadata.max.bytes",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix",
        "remote.log.metadata.manager.listener.name",
        "remote.log.reader.max.pending.tasks",
        "remote.log.reader.threads",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix",
        "remote.log.storage.system.enable",
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
        "sasl.mechanism.controller.protocol",
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
