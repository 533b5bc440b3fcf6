"""One broker: startup from its settings, serving, and shutdown.

Startup, in this order: the port (so that a busy one is found at once), the log directories and their logs,
the coordination store and the metadata so far, the session, the registration; then clients are served.
Shutdown: clients first, then the logs, flushed and closed, with the marker of a clean shutdown; the session
last.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from uuid import UUID

from nilometer.broker import broker_epoch_marker
from nilometer.broker.api.dispatcher import RequestDispatcher
from nilometer.broker.api.registry import ranges
from nilometer.broker.cleaning.cleaner_report import CleanerReport
from nilometer.broker.cleaning.log_cleaner import LogCleaner
from nilometer.broker.connection import Connection, Reserve
from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_channel import ControllerChannel
from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.control.internal_topics import InternalTopicGrowth, InternalTopics
from nilometer.broker.control.membership import Membership, RegistrationRefused
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.control.peer_connections import PeerConnections
from nilometer.broker.control.preferred_leader_rebalancer import PreferredLeaderRebalancer
from nilometer.broker.control.producer_ids import ProducerIds
from nilometer.broker.control.secret_keeper import REFRESH_INTERVAL_MS, SecretKeeper
from nilometer.broker.control.startup_retry import retry_while_starting
from nilometer.broker.fetching.fetch_session import FetchSessionCache
from nilometer.broker.groups.coordinator import GroupCoordinator
from nilometer.broker.housekeeping import Housekeeping
from nilometer.broker.replicas.checkpoint_writer import CheckpointWriter
from nilometer.broker.replicas.group_commit import GroupCommit
from nilometer.broker.replicas.isr_requests import IsrRequests
from nilometer.broker.replicas.log_disposal import LogDisposal
from nilometer.broker.replicas.offline_replicas import OfflineReplicas
from nilometer.broker.replicas.partition_host import LocalPartitionHost
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.replicas.replica_fetchers import ReplicaFetchers
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.replica_repair import ReplicaRepair
from nilometer.broker.replicas.replication_quota import ReplicationQuotas
from nilometer.broker.services import Services
from nilometer.broker.settings.config import BrokerConfig, Endpoint
from nilometer.broker.tasks import Tasks, describe
from nilometer.broker.transactions.coordinator import TransactionCoordinator
from nilometer.broker.transactions.marker_sender import MarkerSender
from nilometer.broker.transactions.markers import MarkerWriter
from nilometer.broker.transactions.verification import TransactionVerification
from nilometer.cluster.controller.brokers import BrokerRegistration
from nilometer.cluster.entries import BadEntry
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.identifiers import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, Incarnation
from nilometer.cluster.records import Endpoint as ClusterEndpoint
from nilometer.cluster.topic import GROUP_METADATA_TOPIC
from nilometer.coordination import CoordinationError, CoordinationStore, make_store
from nilometer.runtime import Listener, LockHeld, Runtime
from nilometer.storage import CorruptCheckpoint, DamageKind, Log, LogConfig
from nilometer.storage.directories.log_manager import (
    LoadingProgress,
    LogManager,
    ManagerOptions,
    NoLogDirectory,
)
from nilometer.storage.names import TopicPartition
from nilometer.wire.errors import KafkaError

logger = logging.getLogger("nilometer.broker")

PROGRESS_EVERY_MS = 1_000
CONTROLLED_SHUTDOWN_TIMEOUT_S = 15.0


class StartFailed(Exception):
    """The broker cannot run; the message says why and what to do."""


class Broker:
    def __init__(
        self, config: BrokerConfig, runtime: Runtime, store: CoordinationStore | None = None
    ) -> None:
        """``store`` replaces the one that the settings name."""
        self._config = config
        self._runtime = runtime
        self._store = store
        self._tasks = Tasks(self._on_service_died)
        self._listener: Listener | None = None
        self._dispatcher: RequestDispatcher | None = None
        self._logs: LogManager | None = None
        self._replicas: ReplicaManager | None = None
        self._metadata: MetadataLog | None = None
        self._services: Services | None = None
        self._channel: ControllerChannel | None = None
        self._peer_connections: PeerConnections | None = None
        self._link: ControllerLink | None = None
        self._membership: Membership | None = None
        self._checkpoints: CheckpointWriter | None = None
        self._cleaner: LogCleaner | None = None
        self._marking: asyncio.Task[None] | None = None
        self._lossless_broker_epoch = NO_BROKER_EPOCH
        """The broker epoch that a clean shutdown may record as free of loss: the registered one or, until
        then, the one of the data found at startup. Never another process's, even one with the same id."""
        self._marked_epoch: int | None = None
        """The last registered broker epoch before this start, as far as its marker could be read."""
        self._receive_reserve = Reserve()
        self._stopping = asyncio.Event()
        self._cancel_startup: Callable[[], object] = lambda: None
        self._last_progress_ms = 0
        self.failure: str | None = None
        self.fenced: str | None = None
        """Why this broker serves nothing until it is restarted; its process keeps running."""

    @property
    def endpoint(self) -> Endpoint:
        """Where this broker listens; the port is the real one."""
        configured = self._config.listeners[0]
        port = self._listener.port if self._listener is not None else configured.port
        return Endpoint(configured.name, configured.host, port)

    @property
    def services(self) -> Services:
        assert self._services is not None, "the broker has started"
        return self._services

    @property
    def cleaner_report(self) -> CleanerReport | None:
        """What the log cleaner has done; None before it was started."""
        return None if self._cleaner is None else self._cleaner.report

    async def start(self) -> None:
        """Start; returns when clients are served. Raises StartFailed."""
        startup = asyncio.ensure_future(self._run_startup())
        self._cancel_startup = startup.cancel
        try:
            await startup
        except asyncio.CancelledError:
            if self.failure is None:
                raise
            raise StartFailed(self.failure) from None
        if self.failure is not None:
            raise StartFailed(self.failure)

    async def _run_startup(self) -> None:
        try:
            await self._listen()
            logs = await self._open_logs()
            await self._join_cluster(logs)
        except LockHeld as held:
            holder = f"process {held.holder_pid}" if held.holder_pid else "another process"
            raise StartFailed(
                f"{holder} uses {posixpath.dirname(held.path)}; stop it, or give this broker other log.dirs"
            ) from held
        except (
            RegistrationRefused,
            CoordinationError,
            BadEntry,
            CorruptCheckpoint,
            NoLogDirectory,
        ) as error:
            raise StartFailed(str(error)) from error

    async def wait_stopped(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set, or the broker cannot go on (``failure`` then says why)."""
        waiting = asyncio.ensure_future(stop.wait())
        waiting.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        waiting.cancel()

    async def stop(self) -> None:
        """Shut down cleanly. Safe at any point of the startup."""
        await self._announce_shutdown()
        self._end_connections()
        if self._replicas is not None:
            self._replicas.stop()
        if self._channel is not None:
            self._channel.close()
        if self._peer_connections is not None:
            self._peer_connections.close()
        await self._tasks.stop()
        if self._checkpoints is not None:
            await self._checkpoints.wait_idle()
        await self._close_logs(self._lossless_broker_epoch)
        if self._store is not None:
            await self._store.close()

    def _end_connections(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._dispatcher is not None:
            for connection in list(self._dispatcher.connections):
                connection.close()

    def fail(self, reason: str) -> None:
        """Stop this broker because of ``reason``."""
        logger.critical("%s", reason)
        self.failure = self.failure or reason
        self._stopping.set()
        self._cancel_startup()

    def fence(self, reason: str) -> None:
        """This broker leads nothing, follows nothing and serves no client from here on: its metadata is
        outdated and cannot be brought up to date. Its session ends when it stops, and the other brokers
        continue without it."""
        if self._replicas is not None:
            self._replicas.resign_all()
        self._end_connections()
        self.fenced = reason
        self.fail(f"This broker is fenced: {reason}")

    # ── startup ─────────────────────────────────────────────────────────────────────────────────
    async def _listen(self) -> None:
        endpoint = self._config.listeners[0]
        try:
            self._listener = await self._runtime.network.listen(
                self._new_connection, endpoint.host, endpoint.port
            )
        except OSError as error:
            raise _cannot_listen(endpoint, error) from error

    def _new_connection(self) -> Connection:
        assert self._dispatcher is not None, "connections are accepted once they can be served"
        return Connection(
            self._dispatcher, self._config.socket_request_max_bytes, logger.info, self._receive_reserve
        )

    async def _open_logs(self) -> LogManager:
        options = ManagerOptions(
            node_id=self._config.node_id,
            directories=self._config.log_dirs,
            entropy=self._runtime.entropy,
            config_for=lambda _: LogConfig.parse({}, self._config.topic_defaults()),
            producer_expiration_ms=self._config.integer("producer.id.expiration.ms"),
            on_progress=self._report_progress,
        )
        disk, wall_ms = self._runtime.disk, self._runtime.clock.wall_ms()
        self._logs = logs = await disk.offload(lambda: LogManager.open(disk, options, wall_ms=wall_ms))
        logs.on_directory_failed = self._on_directory_failed
        for directory in logs.directories:
            if directory.failure is not None:
                logger.error("Log directory %s failed, taken offline: %s", directory.path, directory.failure)
        for damage in logs.damages:
            logger.error("Damage found: %s", damage)
        self._lossless_broker_epoch = await self._read_lossless_broker_epoch(logs)
        return logs

    async def _read_lossless_broker_epoch(self, logs: LogManager) -> int:
        """The broker epoch of the previous incarnation, if it is certain that it lost no records."""
        disk, folder = self._runtime.disk, self._config.log_dirs[0]
        may_have_lost_records = self._has_failed_directory() or _lost_records(logs) or bool(logs.duplicates)

        def look() -> int | None:
            self._marked_epoch = broker_epoch_marker.read_broker_epoch(disk, folder)
            if may_have_lost_records:
                # The next start may find a working directory, and will not find the damage: it is cut off
                # now.
                broker_epoch_marker.mark_possible_loss(disk, folder)
            return broker_epoch_marker.read_lossless_broker_epoch(disk, folder)

        try:
            lossless_epoch = await disk.offload(look)
        except OSError as error:  # changes nothing where the directory has failed already
            self._on_directory_failure(folder, error)
            return NO_BROKER_EPOCH
        if may_have_lost_records:
            return NO_BROKER_EPOCH
        if logs.previous_broker_epoch is not None:
            return logs.previous_broker_epoch
        return NO_BROKER_EPOCH if lossless_epoch is None else lossless_epoch

    def _report_progress(self, progress: LoadingProgress) -> None:
        now_ms = self._runtime.clock.monotonic_ms()
        if now_ms - self._last_progress_ms >= PROGRESS_EVERY_MS:
            self._last_progress_ms = now_ms
            logger.info(
                "Opening logs of %s: %d of %d, now %s (segment %d of %d)",
                progress.directory,
                progress.logs_done,
                progress.logs_total,
                progress.log,
                progress.segments_done,
                progress.segments_total,
            )

    async def _join_cluster(self, logs: LogManager) -> None:
        config, runtime = self._config, self._runtime
        self._store = store = self._store or make_store(
            config.coordination,
            runtime,
            local_folder=posixpath.join(config.log_dirs[0], ".coordination"),
            session_timeout_ms=config.session_timeout_ms,
            cluster_id=next((d.identity.cluster_id for d in logs.directories if d.identity.cluster_id), None),
        )
        await store.open()
        failed = await runtime.disk.offload(lambda: logs.assign_cluster_id(store.cluster_id))
        self._on_directory_failures(failed)
        secrets = SecretKeeper(store, runtime)
        await retry_while_starting(runtime.clock, config.session_timeout_ms, secrets.open)
        unproved = config.accepts_unproved_brokers
        peers = BrokerPeers(config.node_id, store.cluster_id, runtime, secrets, accept_unproved=unproved)
        self._metadata = metadata = MetadataLog(store)
        metadata.on_blocked = self.fence
        controller = Controller(config.node_id, store, metadata, self._tasks)
        self._checkpoints = checkpoints = CheckpointWriter(
            runtime, logs, self._tasks, self._on_directory_failure
        )
        disposal = LogDisposal(runtime, logs, self._tasks, checkpoints, self._on_directory_failure)
        failures = ReplicaFailures(self._on_log_failure)
        commit = GroupCommit(runtime, self._tasks, failures)
        self._channel = channel = ControllerChannel(config.node_id, peers, metadata)
        self._link = link = ControllerLink(config.node_id, controller, channel, metadata)
        quotas = ReplicationQuotas(config, runtime.clock)
        fetchers = ReplicaFetchers(config, runtime, metadata, self._tasks, quotas.follower, failures, peers)
        isr_requests = IsrRequests(link, self._tasks, failures)
        host = LocalPartitionHost(
            runtime, logs, disposal, commit, isr_requests, fetchers, checkpoints, failures
        )
        offline = OfflineReplicas(config.node_id, link)
        self._replicas = replicas = ReplicaManager(
            config, runtime, logs, host, disposal, fetchers, failures, offline
        )
        failures.on_broken = replicas.fence
        checkpoints.high_watermarks = replicas.high_watermarks
        replicas.on_damage = ReplicaRepair(runtime, self._tasks, replicas, link, host).begin
        metadata.prepare(replicas.before_entry, replicas.before_reload)
        metadata.subscribe(quotas.on_delta, quotas.on_reload)
        metadata.subscribe(replicas.on_delta, replicas.on_reload)
        topics = InternalTopics(config, metadata, link, runtime.entropy)
        groups = GroupCoordinator(config, runtime, self._tasks, metadata, replicas, topics)
        producer_ids = ProducerIds(link)
        self._peer_connections = connections = PeerConnections(
            f"transactions-of-broker-{config.node_id}", peers, metadata
        )
        marker_writer = MarkerWriter(replicas, {GROUP_METADATA_TOPIC: groups.append_marker})
        markers = MarkerSender(config.node_id, runtime, self._tasks, metadata, marker_writer, connections)
        transactions = TransactionCoordinator(
            config, runtime, self._tasks, metadata, replicas, topics, producer_ids, markers
        )
        verification = TransactionVerification(config, metadata, transactions, connections)
        growth = InternalTopicGrowth(config, controller, metadata)
        self._services = services = Services(
            config=config,
            runtime=runtime,
            tasks=self._tasks,
            metadata=metadata,
            controller=controller,
            controller_channel=channel,
            controller_link=link,
            replicas=replicas,
            producer_ids=producer_ids,
            groups=groups,
            transactions=transactions,
            verification=verification,
            marker_writer=marker_writer,
            fetch_sessions=FetchSessionCache(
                config.integer("max.incremental.fetch.session.cache.slots"), runtime.entropy
            ),
            replication_quotas=quotas,
            cluster_id=store.cluster_id,
            secrets=secrets,
            advertised=ranges(for_brokers=unproved),
            advertised_to_brokers=ranges(for_brokers=True),
        )
        self._dispatcher = RequestDispatcher(services, config.integer("max.connections"))
        await retry_while_starting(runtime.clock, config.session_timeout_ms, metadata.catch_up)
        await metadata.check_reaches(self._last_registration_number(logs))
        await self._resolve_duplicates(logs, metadata)
        replicas.find_offline(metadata.image)
        self._membership = membership = Membership(
            self._registration(logs),
            store,
            metadata,
            controller,
            runtime.entropy,
            self._cluster_defaults(),
            self._tasks,
            self._on_registered,
            lambda registration: replace(
                registration,
                failed_dirs=sum(each.failure is not None for each in logs.directories),
                offline=offline.by_topic(),
            ),
        )
        host.is_live = membership.is_live
        await membership.join()
        replicas.incarnation = lambda: membership.incarnation
        self._tasks.service("cluster membership", self._run_membership(membership))
        await self._until_registered(membership)
        if self._marking is not None:
            await self._marking
        replicas.remove_strays()
        for folder in logs.removable_folders:
            disposal.remove_folder(folder)
        Housekeeping(
            config,
            runtime,
            replicas,
            self._dispatcher,
            disposal,
            commit.request,
            self._on_directory_failure,
            failures,
        ).start(self._tasks)
        self._cleaner = cleaner = LogCleaner(config, runtime, replicas, disposal, checkpoints, commit.request)
        cleaner.start(self._tasks)
        checkpoints.start(config.integer("replica.high.watermark.checkpoint.interval.ms"))
        PreferredLeaderRebalancer(config, controller).start(self._tasks)
        self._tasks.service("growth of internal topics", growth.run())
        self._tasks.periodic("rotations of the cluster's secret", REFRESH_INTERVAL_MS, secrets.refresh)
        self._tasks.service("report of offline replicas", offline.run())
        await self._serve()

    async def _resolve_duplicates(self, logs: LogManager, metadata: MetadataLog) -> None:
        """Resolve folders that were in an offline directory while their partitions got new ones."""

        def topic_id(name: TopicPartition) -> UUID | None:
            topic = metadata.image.topic(name.topic)
            return None if topic is None else topic.uuid

        if not logs.duplicates:
            return
        wall_ms = self._runtime.clock.wall_ms()
        settled = await self._runtime.disk.offload(lambda: logs.resolve_duplicates(topic_id, wall_ms=wall_ms))
        for stale in settled.stale_folders:
            logger.warning("%s", stale)
        self._on_directory_failures(settled.failures)

    async def _until_registered(self, membership: Membership) -> None:
        """Raises StartFailed when this broker fails meanwhile."""
        registered = asyncio.ensure_future(membership.wait_registered())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((registered, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            registered.cancel()
            stopping.cancel()
        if self.failure is not None:
            raise StartFailed(self.failure)

    def _on_registered(self) -> None:
        """The metadata log has this broker's registration: roles are valid from here on."""
        assert self._replicas is not None and self._metadata is not None
        self._lossless_broker_epoch = self._broker_epoch()
        self._replicas.become_registered(self._metadata.image)
        self._marking = self._tasks.spawn(
            self._write_broker_epoch_marker(self._marking), name="broker epoch marker"
        )

    async def _write_broker_epoch_marker(self, earlier: asyncio.Task[None] | None) -> None:
        """One write at a time: an older broker epoch never replaces a newer one."""
        if earlier is not None:
            await asyncio.wait([earlier])
        disk, folder, epoch = self._runtime.disk, self._config.log_dirs[0], self._broker_epoch()
        assert self._logs is not None
        may_have_lost_records, is_offline = self._has_failed_directory(), self._logs.is_offline(folder)

        def write() -> None:
            with suppress(OSError) if is_offline else nullcontext():  # a success is not needed, but useful
                broker_epoch_marker.write(disk, folder, epoch, may_have_lost_records=may_have_lost_records)

        try:
            await disk.offload(write)
        except OSError as error:
            self._on_directory_failure(folder, error)

    def _has_failed_directory(self) -> bool:
        assert self._logs is not None
        return any(directory.failure is not None for directory in self._logs.directories)

    async def _serve(self) -> None:
        assert self._listener is not None
        try:
            await self._listener.start()
        except OSError as error:
            raise _cannot_listen(self._config.listeners[0], error) from error

    def _registration(self, logs: LogManager) -> BrokerRegistration:
        advertised = self._config.advertised_listeners[0]
        port = advertised.port or self.endpoint.port
        return BrokerRegistration(
            broker_id=BrokerId(self._config.node_id),
            incarnation=Incarnation(""),
            endpoints=(ClusterEndpoint(advertised.name, _reachable(advertised.host), port),),
            cluster_id=next((d.identity.cluster_id for d in logs.directories if d.identity.cluster_id), None),
            rack=self._config.rack,
            log_dirs=tuple(d.identity.directory_id for d in logs.directories if d.identity.directory_id),
            previous_broker_epoch=BrokerEpoch(self._lossless_broker_epoch),
            features=SUPPORTED_FEATURES,
        )

    def _last_registration_number(self, logs: LogManager) -> int:
        """The number of the entry that last registered this broker, as far as its log directories know."""
        known = (self._marked_epoch, logs.previous_broker_epoch)
        return max((epoch for epoch in known if epoch is not None), default=NO_BROKER_EPOCH)

    def _cluster_defaults(self) -> dict[str, str]:
        """Settings that all brokers must agree on, as far as this broker's file gives them."""
        names = ("min.insync.replicas", "unclean.leader.election.enable")
        return {name: self._config.texts[name] for name in names if name in self._config.texts}

    async def _run_membership(self, membership: Membership) -> None:
        try:
            await membership.run(self._on_session_lost)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not isinstance(error, (CoordinationError, BadEntry)):
                logger.exception("Cluster membership failed")
            self.fail(f"this broker can no longer take part in its cluster: {error}")

    # ── failures ────────────────────────────────────────────────────────────────────────────────
    def _on_session_lost(self, reason: str) -> None:
        """The other brokers consider this broker dead: stop leading and following at once."""
        if self._replicas is not None:
            self._replicas.resign_all()

    def _on_service_died(self, name: str, error: BaseException) -> None:
        self.fail(f"the service {name!r} cannot go on: {describe(error)}")

    def _on_log_failure(self, log: Log, error: OSError) -> None:
        """``log`` could not be written; the error of a log that was deleted meanwhile does not fail its
        directory."""
        assert self._logs is not None
        if self._logs.get(log.topic_partition) is log:
            self._on_directory_failure(self._logs.directory_of(log.topic_partition), error)

    def _on_directory_failure(self, path: str, error: Exception) -> None:
        assert self._logs is not None
        self._logs.fail_directory(path, error)

    def _on_directory_failures(self, failures: Mapping[str, OSError]) -> None:
        for path, error in failures.items():
            self._on_directory_failure(path, error)

    def _on_directory_failed(self, path: str, error: Exception, affected: Sequence[TopicPartition]) -> None:
        """A log directory went offline; the broker continues with the others, if there are any."""
        assert self._logs is not None
        logger.error("Log directory %s failed, taken offline: %s", path, error)
        is_last = all(directory.failure is not None for directory in self._logs.directories)
        if self._replicas is not None:
            if is_last:
                self._replicas.offline.stop_reporting()
            self._replicas.on_logs_failed(affected, f"the log directory {path} failed: {error}")
        if self._marking is not None:
            self._marking = self._tasks.spawn(
                self._write_broker_epoch_marker(self._marking), name="broker epoch marker"
            )
        if is_last:
            self.fail(f"no log directory is usable any more: {error}")

    # ── shutdown ────────────────────────────────────────────────────────────────────────────────
    async def _announce_shutdown(self) -> None:
        """Controlled shutdown: move leaderships before this broker stops. If it fails, the end of the session
        does."""
        image = self._metadata.image if self._metadata is not None else None
        if image is None or self._link is None or self.failure or len(image.live_brokers()) < 2:
            return
        if self._membership is None or not self._membership.is_registered:
            return  # the broker registered under this id is another process
        if not self._config.boolean("controlled.shutdown.enable"):
            return
        try:
            async with asyncio.timeout(CONTROLLED_SHUTDOWN_TIMEOUT_S):
                await self._link.announce_shutdown()
        except (KafkaError, CoordinationError, TimeoutError) as error:
            logger.warning(
                "Controlled shutdown failed: %r. Other brokers take over when this broker's session ends",
                error,
            )

    def _broker_epoch(self) -> int:
        if self._metadata is None:
            return NO_BROKER_EPOCH
        epoch = self._metadata.image.broker_epoch(BrokerId(self._config.node_id))
        return NO_BROKER_EPOCH if epoch is None else epoch

    async def _close_logs(self, broker_epoch: int) -> None:
        logs = self._logs
        if logs is None:
            return
        high_watermarks = self._replicas.high_watermarks() if self._replicas is not None else {}
        wall_ms = self._runtime.clock.wall_ms()
        failures = await self._runtime.disk.offload(
            lambda: logs.close(high_watermarks, broker_epoch=broker_epoch, wall_ms=wall_ms)
        )
        for failure in failures:
            logger.error("A log could not be closed cleanly; the next start recovers it: %s", failure)


def _lost_records(logs: LogManager) -> bool:
    """Whether recovery cut off more than the torn tail that a killed process leaves, or will have to."""
    return any(damage.kind is not DamageKind.TORN for damage in logs.damages) or logs.has_gaps


def _reachable(host: str) -> str:
    """The advertised host where the listener binds to every address."""
    return "localhost" if host in ("", "0.0.0.0", "::") else host


def _cannot_listen(endpoint: Endpoint, error: OSError) -> StartFailed:
    return StartFailed(
        f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror or error}; "
        "stop what uses the port, or choose another one with listeners="
    )
