"""One broker: startup from its settings, serving, and shutdown.

Startup opens, in this order: the ports (so that a busy one is found at once), the endpoint of metrics and
health if there is one, the log directories and their logs, the coordination store (before the logs if there
are any: it must know them), the broker's parts (:mod:`nilometer.broker.assembly`), the metadata so far, the
session, the registration; then clients are served. Shutdown moves the leaderships to other brokers, closes
the connections, then flushes and closes the logs with the marker of a clean shutdown, and ends the session
last.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nilometer.broker.assembly import BrokerParts, Prerequisites, assemble
from nilometer.broker.audit_log import FLUSH_INTERVAL_MS
from nilometer.broker.cleaning import CleanerReport
from nilometer.broker.connection import ServedConnection
from nilometer.broker.control.membership import Membership, RegistrationRejected, retry_while_starting
from nilometer.broker.control.metadata_log import why_unreadable
from nilometer.broker.control.secret_keeper import REFRESH_INTERVAL_MS, SecretKeeper
from nilometer.broker.listening import CannotListen, OpenListeners
from nilometer.broker.quorum.member import QuorumMember
from nilometer.broker.replicas.log_directories import EMPTY_FOLDER, FoundLogs, LogDirectories, find_logs
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.listeners import Endpoint, HttpEndpoint
from nilometer.broker.settings.tiering import SYSTEM_ENABLE, URI
from nilometer.broker.tasks import Tasks, describe
from nilometer.broker.turns import Turns
from nilometer.cluster.controller.brokers import BrokerRegistration
from nilometer.cluster.entries import BadEntry
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Endpoint as ClusterEndpoint
from nilometer.coordination.factory import is_moved, make_store
from nilometer.coordination.store import CoordinationError, CoordinationStore, StoreAbsent
from nilometer.identifiers import BrokerEpoch, BrokerId, Incarnation
from nilometer.runtime import LockHeld, Runtime
from nilometer.runtime.handshakes import HandshakeGate
from nilometer.runtime.object_store import ObjectStore
from nilometer.storage.directories.log_manager import NoLogDirectory
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.wire.errors import KafkaError

if TYPE_CHECKING:
    from nilometer.broker.monitoring.endpoint import MonitoringEndpoint

logger = logging.getLogger("nilometer.broker")

CONTROLLED_SHUTDOWN_TIMEOUT_S = 15.0


class StartFailed(Exception):
    """The broker cannot run; the message says why and what to do."""


class Broker:
    def __init__(
        self, config: BrokerConfig, runtime: Runtime, store: CoordinationStore | None = None
    ) -> None:
        """``store``: used instead of the coordination store that the settings name."""
        self._config = config
        self._runtime = runtime
        self.turns = Turns(runtime.clock)
        self._tasks = Tasks(self._on_service_died, self.turns)
        # What the startup has opened so far; stop() closes these.
        self._listeners = OpenListeners(config.listeners, config.tls)
        self._monitoring: MonitoringEndpoint | None = None
        self._directories: LogDirectories | None = None
        self._store = store
        self._quorum = None if config.quorum is None else QuorumMember(config.quorum, runtime, self.turns)
        self._parts: BrokerParts | None = None
        self._stopping = asyncio.Event()
        self._cancel_startup: Callable[[], object] = lambda: None
        self.failure: str | None = None
        self.fenced: str | None = None
        """Why this broker serves nothing until it is restarted; None if it is not fenced."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The listeners of this broker, with the ports that the system chose where 0 is configured."""
        return self._listeners.endpoints

    @property
    def metrics_endpoint(self) -> HttpEndpoint | None:
        """The endpoint of metrics and health; None without ``metrics.listener``."""
        return None if self._monitoring is None else self._monitoring.endpoint

    @property
    def has_parts(self) -> bool:
        """Whether the start has come to where the broker has its parts."""
        return self._parts is not None

    @property
    def parts(self) -> BrokerParts:
        assert self._parts is not None, "the broker has started"
        return self._parts

    @property
    def cleaner_report(self) -> CleanerReport:
        """The statistics of the log cleaner since this broker started."""
        return self.parts.cleaner.report

    async def start(self) -> None:
        """Start the broker; returns when clients are served. Raises StartFailed."""
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
            remote_store = self._open_remote_store()
            await self._listeners.bind(self._runtime, self)
            await self._open_monitoring()
            await self._check_metadata()
            found = await self._find_logs()
            if self._quorum is not None:
                await self._check_no_other_store()
                await self._quorum.identify()
            store = None if found is None else await self._open_store_of(found)
            directories = await self._open_directories()
            store = store or await self._open_store(directories.cluster_id)
            await directories.assign_cluster_id(store.cluster_id)
            parts = await self._assemble(directories, store, remote_store)
            await self._join_cluster(parts)
            self._start_services(parts)
            await parts.acceptor.open(self._tasks)
            await self._listeners.start()
            if self._monitoring is not None:
                self._monitoring.note_serving(True)
        except LockHeld as held:
            holder = f"process {held.holder_pid}" if held.holder_pid else "another process"
            raise StartFailed(
                f"{holder} uses {posixpath.dirname(held.path)}; stop it, or give this broker other log.dirs"
            ) from held
        except (
            RegistrationRejected,
            CoordinationError,
            BadEntry,
            CorruptCheckpoint,
            NoLogDirectory,
            CannotListen,
        ) as error:
            raise StartFailed(str(error)) from error

    async def wait_stopped(self, stop: asyncio.Event) -> None:
        """Wait until ``stop`` is set, or the broker has failed (``failure`` has the reason then)."""
        self.turns.begin()
        waiting = asyncio.ensure_future(stop.wait())
        waiting.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        waiting.cancel()

    async def stop(self) -> None:
        """Shut down cleanly. May be called at any point of the startup."""
        parts = self._parts
        if self._monitoring is not None:
            self._monitoring.note_serving(False)
        if parts is not None:
            await self._announce_shutdown(parts)
            parts.control.controller.note_resigned(f"it stops: {self.failure or 'in an orderly way'}")
        self._end_connections()
        if parts is not None:
            parts.replication.replicas.stop()
            parts.control.channel.close()
            parts.coordinators.connections.close()
        await self._tasks.stop()
        if parts is not None:
            if parts.remote_logs is not None:
                await parts.remote_logs.close()
            await parts.replication.checkpoints.wait_idle()
            if (authorizer := parts.serving.rights.authorizer) is not None:
                await authorizer.audit.flush()
        if self._directories is not None:
            high_watermarks = {} if parts is None else parts.replication.partitions.high_watermarks()
            await self._directories.close(high_watermarks)
        if self._store is not None:
            await self._store.close()
        if self._quorum is not None:
            await self._quorum.close()

    def _end_connections(self) -> None:
        self._listeners.close()
        if self._monitoring is not None:
            self._monitoring.close()
        if self._parts is not None:
            for connection in list(self._parts.dispatcher.connections):
                connection.close()

    def fail(self, reason: str) -> None:
        """Stop this broker because of ``reason``."""
        logger.critical("%s", reason)
        self.failure = self.failure or reason
        self._stopping.set()
        self._cancel_startup()

    def fence(self, reason: str) -> None:
        """Resign all roles, close all connections and stop, since the metadata cannot be updated any more.

        The broker's session ends when it stops, and the other brokers continue without it.
        """
        if self._parts is not None:
            self._parts.replication.replicas.resign_all()
        self._end_connections()
        self.fenced = reason
        self.fail(f"This broker is fenced: {reason}")

    # ── startup ─────────────────────────────────────────────────────────────────────────────────
    async def _open_monitoring(self) -> None:
        endpoint = self._config.metrics_endpoint
        if endpoint is None:
            return
        from nilometer.broker.monitoring.endpoint import MonitoringEndpoint  # few brokers have one

        monitoring = MonitoringEndpoint(self._config, endpoint, self._runtime, self._tasks)
        await monitoring.open()
        self._monitoring = monitoring
        logger.info("Metrics and health on %s", monitoring.endpoint)
        if not endpoint.is_loopback:
            logger.warning("Every client that reaches %s reads the metrics: there is no login", endpoint)

    # Implements Connections: the listeners are bound before any part exists, and started after all do.

    def new_connection(self, endpoint: Endpoint) -> ServedConnection:
        return self.parts.acceptor.new_connection(endpoint)

    def handshakes(self, endpoint: Endpoint) -> HandshakeGate:
        return self.parts.acceptor.handshakes(endpoint)

    async def _check_metadata(self) -> None:
        """Fence this broker if it cannot fold the metadata log. Nothing is changed. Raises StartFailed."""
        setting = self._local_store()
        if self._store is None and setting is not None:
            reason = await why_unreadable(setting, self._runtime)
            if reason is not None:
                self.fence(reason)
                raise StartFailed(reason)

    def _local_store(self) -> str | None:
        """Return the coordination store as ``local:/folder``; None if it is not on this machine."""
        setting = self._config.coordination
        if setting == "local":
            return f"local:{self._default_store_folder}"
        return setting if setting.startswith("local:") else None

    @property
    def _default_store_folder(self) -> str:
        return posixpath.join(self._config.log_dirs[0], ".coordination")

    async def _open_directories(self) -> LogDirectories:
        self._directories = directories = await LogDirectories.open(
            self._config, self._runtime, self._tasks, self.fail
        )
        directories.log_findings()
        await directories.read_broker_epoch()
        return directories

    async def _find_logs(self) -> FoundLogs | None:
        """Return the logs in the directories; nothing is changed. Raises CorruptCheckpoint."""
        disk, config = self._runtime.disk, self._config
        return await disk.offload(lambda: find_logs(disk, config.log_dirs, config.node_id))

    async def _open_store_of(self, found: FoundLogs) -> CoordinationStore:
        """Open the store of the cluster that the logs belong to, which must exist.

        Nothing is changed before that. Raises StartFailed, CorruptCheckpoint, CoordinationError.
        """
        if found.cluster_id is None:
            raise StartFailed(
                f"{found}, but no meta.properties with a cluster.id: it is not known to which cluster they "
                f"belong. Nothing was changed. Restore that file from a copy. {EMPTY_FOLDER}"
            )
        try:
            return await self._open_store(found.cluster_id, create=False)
        except StoreAbsent as absent:
            raise StartFailed(
                f"{found} of cluster {found.cluster_id}, but {absent}: a new cluster would not know them. "
                "Nothing was changed. Set nilometer.coordination or zookeeper.connect to the store of their "
                f"cluster, or restore it from a copy. {EMPTY_FOLDER}; MirrorMaker 2 copies Kafka's topics"
            ) from absent

    async def _open_store(self, cluster_id: str | None, *, create: bool = True) -> CoordinationStore:
        config = self._config
        if self._quorum is not None:
            self._store = store = await self._quorum.open(cluster_id, has_logs=not create)
            await store.open()
            self._quorum.note_cluster_id(store.cluster_id)
            return store
        self._store = store = self._store or make_store(
            config.coordination,
            self._runtime,
            local_folder=self._default_store_folder,
            session_timeout_ms=config.session_timeout_ms,
            cluster_id=cluster_id,
            zookeeper=config.zookeeper,
            create=create,
        )
        await store.open()
        return store

    async def _check_no_other_store(self) -> None:
        """Raise StartFailed if the log directories have the metadata of a cluster without a quorum."""
        folder, disk, quorum = self._default_store_folder, self._runtime.disk, self._config.quorum
        assert quorum is not None, "there is a quorum"
        if await disk.offload(lambda: disk.is_directory(folder) and not is_moved(disk, folder)):
            raise StartFailed(
                f"{folder} has the metadata of this broker's cluster, and the settings choose a metadata "
                "quorum, which does not know it. Nothing was changed. Set nilometer.coordination=local to go "
                f'on with it, copy it with "nilometer metadata copy --from local:{folder} --to '
                f'quorum:{quorum.directory}", or set log.dirs to an empty folder'
            )

    def _open_remote_store(self) -> ObjectStore | None:
        """Open the store that remote storage is in; None if this broker has none. Raises StartFailed."""
        tier, runtime = self._config.tier, self._runtime
        if tier is None:
            return None
        try:
            return runtime.open_object_store(tier.uri, runtime.entropy.uuid().hex)
        except ValueError as error:
            raise StartFailed(f"{URI}: {error}") from error

    async def _assemble(
        self, directories: LogDirectories, store: CoordinationStore, remote_store: ObjectStore | None
    ) -> BrokerParts:
        secrets = SecretKeeper(store, self._runtime)
        await self._retry(secrets.open)
        self._parts = parts = assemble(
            Prerequisites(
                config=self._config,
                runtime=self._runtime,
                tasks=self._tasks,
                turns=self.turns,
                directories=directories,
                store=store,
                secrets=secrets,
                remote_store=remote_store,
                fence=self.fence,
            )
        )
        if self._quorum is not None:
            self._quorum.report_to(parts.replication.leader_liveness)
        if self._monitoring is not None:
            self._monitoring.note_parts(parts)
        authorizer = parts.serving.rights.authorizer
        if self._quorum is not None and authorizer is not None:
            self._quorum.note_rights(authorizer.allows_broker, authorizer.audit.changed)
        return parts

    async def _join_cluster(self, parts: BrokerParts) -> None:
        """Read the metadata, begin the session, and wait until this broker is registered."""
        directories, metadata = parts.given.directories, parts.control.metadata
        await self._retry(metadata.catch_up)
        await metadata.check_reaches(directories.last_registration_number)
        self._check_tiered_topics(metadata.image)
        await directories.resolve_duplicates(metadata.image)
        parts.replication.replicas.find_offline(metadata.image)
        membership = self._membership(parts)
        await self._retry(membership.join)
        self._tasks.service("cluster membership", self._run_membership(membership, parts))
        await self._until_registered(parts)
        await directories.wait_marked()

    def _check_tiered_topics(self, image: ClusterImage) -> None:
        """Raise StartFailed if there are tiered topics, and this broker has no remote storage."""
        tiered = sorted(topic.name for topic in image.topics() if image.is_tiered(topic.name))
        if tiered and self._config.tier is None:
            raise StartFailed(
                f"Set {SYSTEM_ENABLE}=true on every broker, since there are tiered topics: "
                f"{', '.join(tiered[:3])}. Only to end tiered storage cluster-wide, delete all topics with "
                "the property remote.storage.enable=true, while the brokers still have it"
            )

    def _membership(self, parts: BrokerParts) -> Membership:
        directories, offline = parts.given.directories, parts.replication.offline
        return Membership(
            self._registration(directories),
            parts.given.store,
            parts.control.session,
            parts.control.metadata,
            parts.control.controller,
            self._runtime.entropy,
            self._cluster_defaults(),
            self._tasks,
            lambda: self._on_registered(parts),
            lambda registration: replace(
                registration, failed_dirs=directories.failed_count, offline=offline.by_topic()
            ),
        )

    async def _until_registered(self, parts: BrokerParts) -> None:
        """Wait until this broker is registered. Raises StartFailed if it fails meanwhile."""
        registered = asyncio.ensure_future(parts.control.session.wait_registered())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((registered, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            registered.cancel()
            stopping.cancel()
        if self.failure is not None:
            raise StartFailed(self.failure)

    def _on_registered(self, parts: BrokerParts) -> None:
        """Let the replicas take their roles: the metadata log has this broker's registration now."""
        image = parts.control.metadata.image
        broker_epoch = image.broker_epoch(BrokerId(self._config.node_id))
        assert broker_epoch is not None, "a registered broker has an epoch"
        parts.replication.replicas.become_registered(image)
        parts.given.directories.note_registered(broker_epoch)

    def _start_services(self, parts: BrokerParts) -> None:
        config, tasks, replication = self._config, self._tasks, parts.replication
        replication.replicas.rename_strays()
        for folder in parts.given.directories.logs.removable_folders:
            replication.disposal.remove_folder(folder)
        replication.moves.resume()
        parts.housekeeping.start(tasks)
        parts.cleaner.start(tasks)
        if parts.remote_logs is not None:
            parts.remote_logs.start(tasks)
        replication.checkpoints.start(config.integer("replica.high.watermark.checkpoint.interval.ms"))
        parts.rebalancer.start(tasks)
        parts.expired_tokens.start(tasks)
        tasks.service("growth of internal topics", parts.growth.run())
        secrets = parts.given.secrets
        tasks.periodic("rotations of the cluster's secret", REFRESH_INTERVAL_MS, secrets.refresh)
        if (authorizer := parts.serving.rights.authorizer) is not None:
            tasks.periodic("audit log", FLUSH_INTERVAL_MS, authorizer.audit.flush)
        tasks.service("report of offline replicas", replication.offline.run())

    def _registration(self, directories: LogDirectories) -> BrokerRegistration:
        return BrokerRegistration(
            broker_id=BrokerId(self._config.node_id),
            incarnation=Incarnation(""),
            endpoints=self._advertised(),
            cluster_id=directories.cluster_id,
            rack=self._config.rack,
            log_dirs=directories.ids,
            previous_broker_epoch=BrokerEpoch(directories.lossless_broker_epoch),
            features=SUPPORTED_FEATURES,
        )

    def _advertised(self) -> tuple[ClusterEndpoint, ...]:
        bound = {endpoint.name: endpoint.port for endpoint in self.endpoints}
        return tuple(
            ClusterEndpoint(
                each.name, _reachable(each.host), each.port or bound[each.name], each.protocol.value
            )
            for each in self._config.advertised_listeners
        )

    def _cluster_defaults(self) -> dict[str, str]:
        """Return the settings of this broker's file that must be the same on all brokers."""
        names = ("min.insync.replicas", "unclean.leader.election.enable")
        return {name: self._config.texts[name] for name in names if name in self._config.texts}

    async def _run_membership(self, membership: Membership, parts: BrokerParts) -> None:
        def on_lost(_reason: str) -> None:
            """Stop leading and following at once: the session has ended, and other brokers take over."""
            parts.replication.replicas.resign_all()

        try:
            await membership.run(on_lost)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not isinstance(error, (CoordinationError, BadEntry)):
                logger.exception("Cluster membership failed")
            self.fail(f"this broker can no longer take part in its cluster: {error}")

    async def _retry(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step of the startup that needs the store; see :func:`retry_while_starting`."""
        await retry_while_starting(self._runtime.clock, self._config.start_timeout_ms, step)

    def _on_service_died(self, name: str, error: BaseException) -> None:
        self.fail(f"the service {name!r} failed: {describe(error)}")

    # ── shutdown ────────────────────────────────────────────────────────────────────────────────
    async def _announce_shutdown(self, parts: BrokerParts) -> None:
        """Move leaderships away before this broker stops (controlled shutdown).

        If that fails, they move when the session ends.
        """
        control = parts.control
        if self.failure or len(control.metadata.image.live_brokers()) < 2:
            return
        if not control.session.is_registered:
            return  # another process may be registered with this broker id
        if not self._config.boolean("controlled.shutdown.enable"):
            return
        try:
            async with asyncio.timeout(CONTROLLED_SHUTDOWN_TIMEOUT_S):
                await control.link.announce_shutdown()
        except (KafkaError, CoordinationError, TimeoutError) as error:
            logger.warning(
                "Controlled shutdown failed: %r. Other brokers take over when this broker's session ends",
                error,
            )


def _reachable(host: str) -> str:
    """Return the host to advertise: ``localhost`` if the configured one means every address."""
    return "localhost" if host in ("", "0.0.0.0", "::") else host
