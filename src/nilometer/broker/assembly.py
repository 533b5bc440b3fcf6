"""Makes the parts of a broker and connects them: each part gets the parts it uses, and none is replaced
later.

Nothing is started, read or written here: :mod:`nilometer.broker.broker` does that with the result of
:func:`assemble`. A part is notified of later events by a part it was made from: as a subscriber of the
metadata log, or as a listener of the replica manager or of the log directories.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nilometer.broker import find_coordinator, produce
from nilometer.broker.api import (
    acls,
    between_brokers,
    client_quotas,
    cluster_description,
    configs,
    connections,
    delegation_tokens,
    features,
    fetch,
    metadata,
    offsets,
    placement,
    raft_voters,
    replicas,
    topics,
    users,
)
from nilometer.broker.api.access import Rights
from nilometer.broker.api.controller_requests import ControllerRequests, Parts, api_over
from nilometer.broker.api.dispatcher import RequestDispatcher
from nilometer.broker.api.large_requests import LargeRequests
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.metadata import ResponseCache
from nilometer.broker.api.spec import ApiSpec
from nilometer.broker.api.topics import MissingTopics
from nilometer.broker.audit_log import AuditFiles, AuditLog
from nilometer.broker.authentication.acceptor import Acceptor
from nilometer.broker.authentication.sasl import SaslListener
from nilometer.broker.authorizer import Authorizer, BrokerUsers
from nilometer.broker.cleaning import CleanerReport, LogCleaner
from nilometer.broker.connection_memory import RequestMemory, ResponseMemory
from nilometer.broker.control.broker_peers import BrokerPeers, PeerConnections
from nilometer.broker.control.cluster_changes import ClusterChanges
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_channel import ControllerChannel
from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.control.internal_topics import InternalTopicGrowth, InternalTopics
from nilometer.broker.control.membership import OwnSession
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.control.secret_keeper import SecretKeeper
from nilometer.broker.groups import (
    classic_groups,
    consumer_groups,
    group_administration,
    group_offsets,
    streams_groups,
)
from nilometer.broker.groups.group_coordinator import GroupCoordinator
from nilometer.broker.groups.streams_groups import StreamsTopics
from nilometer.broker.housekeeping import ExpiredTokens, Housekeeping, PreferredLeaderRebalancer
from nilometer.broker.quotas import ClientQuotas, ConnectionAdmission, ConnectionLimits, ConnectionRates
from nilometer.broker.replica_moves import ReplicaMoves
from nilometer.broker.replicas.delayed_requests import ReadyFetches, Releases
from nilometer.broker.replicas.fetch_session import FetchSessionCache
from nilometer.broker.replicas.file_work import CheckpointWriter, GroupCommit, LogDisposal
from nilometer.broker.replicas.hosted_partition import PartitionHost
from nilometer.broker.replicas.isr_changes import IsrLog, IsrRequests
from nilometer.broker.replicas.leader_liveness import LeaderLiveness
from nilometer.broker.replicas.log_directories import LogDirectories
from nilometer.broker.replicas.partition_table import PartitionTable
from nilometer.broker.replicas.record_reading import RecordReading
from nilometer.broker.replicas.remote_reading import RemoteReads
from nilometer.broker.replicas.remote_start import RemoteStarts
from nilometer.broker.replicas.replica_failures import OfflineReplicas, ReplicaFailures
from nilometer.broker.replicas.replica_fetchers import ReplicaFetchers
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.replica_repair import ReplicaRepair
from nilometer.broker.replicas.replication_quota import ReplicationQuotas
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.sharing import share_coordinator, share_fetch, share_groups, share_offsets
from nilometer.broker.sharing.counts import ShareCounts
from nilometer.broker.sharing.dead_letters import DeadLetters
from nilometer.broker.sharing.persister import SharePersister
from nilometer.broker.sharing.share_coordinator import ShareCoordinator
from nilometer.broker.sharing.share_offsets import EndOffsets
from nilometer.broker.sharing.share_partitions import SharePartitions
from nilometer.broker.tasks import Tasks
from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.transactions import markers, transaction_administration, transaction_coordinator
from nilometer.broker.transactions.markers import MarkerSender, MarkerWriter
from nilometer.broker.transactions.producer_ids import ProducerIds
from nilometer.broker.transactions.transaction_coordinator import TransactionCoordinator
from nilometer.broker.transactions.verification import TransactionVerification
from nilometer.broker.turns import Turns
from nilometer.cluster.states import GROUP_METADATA_TOPIC
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import CoordinationStore
from nilometer.identifiers import BrokerId
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import ObjectStore
from nilometer.share.sessions import ShareSessions

if TYPE_CHECKING:
    from nilometer.broker.authentication.known_tokens import KnownTokens


class Prerequisites(msgspec.Struct, frozen=True, kw_only=True):
    """The open resources from which a broker's parts are made."""

    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    directories: LogDirectories
    store: CoordinationStore
    secrets: SecretKeeper
    remote_store: ObjectStore | None
    """Where remote storage is; None if this broker has none."""
    fence: Callable[[str], None]
    """Makes this broker serve nothing any more, for the given reason; see :meth:`Broker.fence`."""


class ControlParts(msgspec.Struct, frozen=True, kw_only=True):
    """The session, the metadata log, and the connections to the controller and to the other brokers."""

    session: OwnSession
    metadata: MetadataLog
    controller: Controller
    peers: BrokerPeers
    channel: ControllerChannel
    link: ControllerLink
    changes: ClusterChanges


class ReplicaParts(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that this broker hosts, and the work on their logs."""

    partitions: PartitionTable
    replicas: ReplicaManager
    leader_liveness: LeaderLiveness
    quotas: ReplicationQuotas
    checkpoints: CheckpointWriter
    disposal: LogDisposal
    failures: ReplicaFailures
    commit: GroupCommit
    isr_requests: IsrRequests
    offline: OfflineReplicas
    moves: ReplicaMoves


class CoordinatorParts(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinators of groups, of transactions, and of the state of share partitions."""

    producer_ids: ProducerIds
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_coordinator: ShareCoordinator
    persister: SharePersister
    verification: TransactionVerification
    marker_writer: MarkerWriter
    connections: PeerConnections


class ServingParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the handlers of several subjects use, and no other part of the broker."""

    response_memory: ResponseMemory
    listings: Listings
    record_reading: RecordReading
    share_partitions: SharePartitions
    share_sessions: ShareSessions
    fetch_sessions: FetchSessionCache
    ready_fetches: ReadyFetches
    client_quotas: ClientQuotas
    admission: ConnectionAdmission
    rights: Rights
    tokens: KnownTokens | None
    """None: there are no delegation tokens."""
    controller_requests: ControllerRequests


class BrokerParts(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of one broker, from its start until it stops."""

    given: Prerequisites
    control: ControlParts
    replication: ReplicaParts
    coordinators: CoordinatorParts
    serving: ServingParts
    dispatcher: RequestDispatcher
    acceptor: Acceptor
    growth: InternalTopicGrowth
    housekeeping: Housekeeping
    cleaner: LogCleaner
    rebalancer: PreferredLeaderRebalancer
    expired_tokens: ExpiredTokens
    remote_logs: RemoteLogs | None


def assemble(given: Prerequisites) -> BrokerParts:
    """Make all parts of a broker, and subscribe them to each other's events.

    The metadata log calls its subscribers in the order in which they have subscribed, one after another, and
    ``metadata.image`` is the new one for all of them. A subscriber may ask for slices of time: clients are
    served meanwhile, by the new image and by what later subscribers had made of the one before. Two things
    rest on the order:

    - quotas come before replicas: a replica that a new entry makes a follower is throttled from its first
      fetch on;
    - replicas come before coordinators: when these pass the image to their shells, the partitions of a
      registered broker have taken their roles, so that shells which the entry ends or begins are gone or
      there.
    """
    control = _control(given)
    replication = _replication(given, control)
    rights = Rights(
        _authorizer(given, control.metadata),
        accepts_unproved_brokers=given.config.accepts_unproved_brokers,
    )
    coordinators = _coordinators(given, control, replication.replicas, rights)
    growth = InternalTopicGrowth(given.config, control.controller, control.metadata)
    cleaner = _cleaner(given, replication)
    serving = _serving(given, control, replication, coordinators, rights)
    remote_logs = _remote_logs(given, control, replication.replicas)
    apis = _apis(given, control, replication, coordinators, serving, cleaner.report, remote_logs)
    dispatcher = _dispatcher(given, serving, apis)
    return BrokerParts(
        given=given,
        control=control,
        replication=replication,
        coordinators=coordinators,
        serving=serving,
        dispatcher=dispatcher,
        acceptor=_acceptor(given, control, dispatcher, serving),
        growth=growth,
        housekeeping=_housekeeping(given, replication, dispatcher),
        cleaner=cleaner,
        rebalancer=PreferredLeaderRebalancer(given.config, control.controller),
        expired_tokens=ExpiredTokens(given.config, control.controller, given.runtime.clock),
        remote_logs=remote_logs,
    )


def _remote_logs(given: Prerequisites, control: ControlParts, replicas: ReplicaManager) -> RemoteLogs | None:
    config, store = given.config.tier, given.remote_store
    if config is None or store is None:
        return None
    found = RemoteLogs(
        config,
        given.runtime,
        given.tasks,
        replicas,
        control.metadata,
        store,
        given.store.cluster_id,
        BrokerId(given.config.node_id),
        given.turns,
    )
    replicas.remote.reader = found
    return found


def _acceptor(
    given: Prerequisites,
    control: ControlParts,
    dispatcher: RequestDispatcher,
    serving: ServingParts,
) -> Acceptor:
    sasl = {
        name: SaslListener(
            settings,
            lambda: control.metadata.image,
            lambda: given.secrets.secrets.current.key,
            given.runtime,
            serving.tokens,
        )
        for name, settings in given.config.sasl.items()
    }
    frame_bytes_max = given.config.socket_request_max_bytes
    requests = RequestMemory(given.runtime.clock.monotonic_ms, given.config.queued_max_request_bytes)
    return Acceptor(
        dispatcher,
        frame_bytes_max,
        sasl,
        given.config.tls,
        serving.admission,
        given.turns,
        serving.response_memory,
        requests,
    )


def _control(given: Prerequisites) -> ControlParts:
    config, store = given.config, given.store
    node_id = config.node_id
    peers = BrokerPeers(
        node_id,
        store.cluster_id,
        given.runtime,
        given.secrets,
        listener=config.inter_broker_listener.name,
        security=config.inter_broker_security,
        authentication=config.broker_authentication,
    )
    metadata = MetadataLog(store, given.fence, given.turns)
    now_us = given.runtime.clock.monotonic_us
    controller = Controller(node_id, store, metadata, given.tasks, given.turns)
    channel = ControllerChannel(node_id, peers, metadata, given.tasks)
    session = OwnSession()
    changes = ClusterChanges(node_id, session, controller, now_us)
    metadata.subscribe(changes.on_delta, changes.on_reload)
    return ControlParts(
        session=session,
        metadata=metadata,
        controller=controller,
        peers=peers,
        channel=channel,
        link=ControllerLink(node_id, controller, channel, metadata, config.topic_defaults),
        changes=changes,
    )


def _replication(given: Prerequisites, control: ControlParts) -> ReplicaParts:
    config, runtime, tasks, directories = given.config, given.runtime, given.tasks, given.directories
    logs, metadata, link = directories.logs, control.metadata, control.link
    partitions = PartitionTable()
    checkpoints = CheckpointWriter(runtime, logs, tasks, partitions.high_watermarks, directories.fail)
    disposal = LogDisposal(runtime, logs, tasks, checkpoints, directories.fail)
    failures = ReplicaFailures(directories.fail_directory_of)
    commit = GroupCommit(runtime, tasks)
    quotas = ReplicationQuotas(config, runtime.clock)
    leader_liveness = LeaderLiveness(runtime.clock, metadata, BrokerId(config.node_id))
    fetchers = ReplicaFetchers(
        config, runtime, metadata, tasks, quotas.follower, control.peers, leader_liveness, given.turns
    )
    isr_requests = IsrRequests(link, tasks)
    remote = RemoteReads(config.tier, tasks)
    starts = RemoteStarts(BrokerId(config.node_id), tasks, control.peers, remote, fetchers.locate)
    host = PartitionHost(
        clock=runtime.clock,
        is_live=control.session.is_live,
        commit=commit,
        disposal=disposal,
        isr_requests=isr_requests,
        isr_log=IsrLog(),
        failures=failures,
        start_in_tier=starts.begin,
        releases=Releases(given.turns),
    )
    offline = OfflineReplicas(config.node_id, link)
    replicas = ReplicaManager(
        config,
        runtime,
        given.turns,
        logs,
        control.session,
        partitions,
        host,
        disposal,
        fetchers,
        failures,
        offline,
        remote,
    )
    replicas.damaged.add_listener(ReplicaRepair(runtime, tasks, replicas, link).begin)
    directories.add_failure_listener(replicas.on_directory_failed)
    metadata.prepare(replicas.before_entry, replicas.before_reload)
    metadata.subscribe(quotas.on_delta, quotas.on_reload)
    metadata.subscribe(replicas.on_delta, replicas.on_reload)
    return ReplicaParts(
        partitions=partitions,
        replicas=replicas,
        leader_liveness=leader_liveness,
        quotas=quotas,
        checkpoints=checkpoints,
        disposal=disposal,
        failures=failures,
        commit=commit,
        isr_requests=isr_requests,
        offline=offline,
        moves=ReplicaMoves(runtime, tasks, replicas, disposal, checkpoints, quotas.moves, directories.fail),
    )


def _coordinators(
    given: Prerequisites, control: ControlParts, replicas: ReplicaManager, rights: Rights
) -> CoordinatorParts:
    config, runtime, tasks, metadata = given.config, given.runtime, given.tasks, control.metadata
    topics = InternalTopics(config, metadata, control.link, runtime.entropy)
    name = f"transactions-of-broker-{config.node_id}"
    connections = PeerConnections(name, control.peers, metadata)
    share_coordinator = ShareCoordinator(config, runtime, tasks, metadata, replicas, topics)
    persister = SharePersister(
        config.node_id, runtime, tasks, metadata, share_coordinator, connections, given.turns
    )
    groups = GroupCoordinator(config, runtime, tasks, metadata, replicas, topics, persister.carry_out, rights)
    producer_ids = ProducerIds(control.link, tasks)
    marker_writer = MarkerWriter(replicas, {GROUP_METADATA_TOPIC: groups.append_marker})
    marker_sender = MarkerSender(
        config.node_id, runtime, tasks, metadata, marker_writer, connections, given.turns
    )
    transactions = TransactionCoordinator(
        config, runtime, tasks, metadata, replicas, topics, producer_ids, marker_sender
    )
    return CoordinatorParts(
        producer_ids=producer_ids,
        groups=groups,
        transactions=transactions,
        share_coordinator=share_coordinator,
        persister=persister,
        verification=TransactionVerification(config, runtime.clock, metadata, transactions, connections),
        marker_writer=marker_writer,
        connections=connections,
    )


def _apis(
    given: Prerequisites,
    control: ControlParts,
    replication: ReplicaParts,
    coordinators: CoordinatorParts,
    serving: ServingParts,
    compactions: CleanerReport,
    remote_logs: RemoteLogs | None,
) -> tuple[ApiSpec, ...]:
    """Return the APIs of all subjects, each with the parts that its handlers use."""
    config, runtime, tasks, turns = given.config, given.runtime, given.tasks, given.turns
    groups, transactions, cluster_id = coordinators.groups, coordinators.transactions, given.store.cluster_id
    rights, quotas, on_controller = serving.rights, serving.client_quotas, serving.controller_requests
    listings = serving.listings
    quorum = given.store if isinstance(given.store, QuorumStore) else None
    specs = (
        *acls.apis(acls.Parts(runtime, tasks, turns, listings, control.metadata, rights, on_controller)),
        *between_brokers.apis(
            between_brokers.Parts(
                config,
                runtime,
                tasks,
                cluster_id,
                given.secrets,
                serving.admission,
                BrokerUsers(config, serving.rights.authorizer, control.metadata),
                on_controller,
            )
        ),
        *classic_groups.apis(classic_groups.Parts(groups)),
        *client_quotas.apis(client_quotas.Parts(listings, control.metadata, rights, on_controller)),
        *cluster_description.apis(cluster_description.Parts(listings, control.metadata, cluster_id, rights)),
        *configs.apis(
            configs.Parts(config, runtime.loggers, listings, control.metadata, rights, on_controller)
        ),
        *consumer_groups.apis(consumer_groups.Parts(tasks, turns, control.metadata, groups, rights)),
        *delegation_tokens.apis(
            delegation_tokens.Parts(
                runtime, listings, control.metadata, serving.tokens, rights, on_controller
            )
        ),
        *features.apis(
            features.Parts(
                config,
                runtime,
                tasks,
                control.metadata,
                quorum,
                rights,
                on_controller,
            )
        ),
        *fetch.apis(
            fetch.Parts(
                config,
                runtime,
                tasks,
                turns,
                serving.response_memory,
                control.metadata,
                replication.replicas,
                serving.fetch_sessions,
                serving.ready_fetches,
                replication.quotas,
                quotas,
                rights,
            )
        ),
        *find_coordinator.apis(
            find_coordinator.Parts(
                tasks, control.metadata, groups, transactions, coordinators.share_coordinator, rights
            )
        ),
        *group_administration.apis(group_administration.Parts(tasks, turns, listings, groups, rights)),
        *group_offsets.apis(
            group_offsets.Parts(
                tasks,
                turns,
                listings,
                control.metadata,
                replication.replicas,
                groups,
                coordinators.verification,
                rights,
            )
        ),
        *metadata.apis(
            metadata.Parts(
                config,
                tasks,
                listings,
                control.metadata,
                MissingTopics(config, runtime.entropy, control.metadata, control.link),
                replication.leader_liveness,
                ResponseCache(),
                cluster_id,
                quotas,
                rights,
            )
        ),
        *offsets.apis(offsets.Parts(tasks, turns, replication.replicas, serving.record_reading, rights)),
        *placement.apis(placement.Parts(listings, control.metadata, rights, on_controller)),
        *produce.apis(
            produce.Parts(
                runtime,
                tasks,
                turns,
                control.metadata,
                replication.replicas,
                serving.record_reading,
                coordinators.verification,
                serving.ready_fetches,
                quotas,
                rights,
            )
        ),
        *transaction_coordinator.apis(
            transaction_coordinator.Parts(
                tasks,
                turns,
                control.metadata,
                coordinators.producer_ids,
                coordinators.groups.partition_for,
                transactions,
                rights,
            )
        ),
        *raft_voters.apis(raft_voters.Parts(runtime, tasks, quorum, rights)),
        *replicas.apis(
            replicas.Parts(
                config,
                runtime,
                tasks,
                turns,
                listings,
                control.metadata,
                replication.replicas,
                replication.moves,
                compactions,
                cluster_id,
                rights,
                remote_logs,
            )
        ),
        *share_fetch.apis(
            share_fetch.Parts(
                config,
                runtime,
                tasks,
                turns,
                serving.response_memory,
                control.metadata,
                replication.replicas,
                groups,
                serving.share_partitions,
                serving.share_sessions,
                replication.quotas,
                quotas,
                rights,
            )
        ),
        *share_groups.apis(
            share_groups.Parts(
                runtime, tasks, turns, replication.replicas, groups, serving.share_partitions, rights
            )
        ),
        *share_offsets.apis(
            share_offsets.Parts(
                tasks,
                turns,
                listings,
                control.metadata,
                groups,
                coordinators.persister,
                EndOffsets(config.node_id, control.metadata, replication.replicas, coordinators.connections),
                rights,
            )
        ),
        *share_coordinator.apis(share_coordinator.Parts(coordinators.share_coordinator, rights)),
        *streams_groups.apis(
            streams_groups.Parts(
                groups,
                StreamsTopics(runtime, tasks, control.link, config.integer("default.replication.factor")),
                quotas,
                rights,
            )
        ),
        *topics.apis(topics.Parts(config, runtime, control.metadata, rights, on_controller)),
        *transaction_administration.apis(
            transaction_administration.Parts(listings, replication.replicas, transactions, rights)
        ),
        *users.apis(users.Parts(listings, control.metadata, rights, on_controller)),
        *markers.apis(markers.Parts(runtime, turns, coordinators.marker_writer, rights)),
    )
    specs = (*specs, api_over(Parts(tasks, turns), specs))
    return (
        *specs,
        *connections.apis(connections.Parts(config, runtime, control.metadata, cluster_id), specs),
    )


def _serving(
    given: Prerequisites,
    control: ControlParts,
    replication: ReplicaParts,
    coordinators: CoordinatorParts,
    rights: Rights,
) -> ServingParts:
    config, runtime, tasks, turns = given.config, given.runtime, given.tasks, given.turns
    record_reading, share_counts = RecordReading(runtime.disk), ShareCounts()
    groups = coordinators.groups
    client_quotas = ClientQuotas(config, runtime.clock, control.metadata)
    rates = ConnectionRates(config, runtime.clock.monotonic_ms)
    response_memory = ResponseMemory(runtime.clock.monotonic_ms)
    return ServingParts(
        response_memory=response_memory,
        listings=Listings(tasks, turns, response_memory),
        record_reading=record_reading,
        share_partitions=SharePartitions(
            runtime,
            tasks,
            replication.replicas,
            record_reading,
            coordinators.persister,
            DeadLetters(
                config,
                runtime,
                tasks,
                control.metadata,
                control.link,
                replication.replicas,
                record_reading,
                coordinators.connections,
                share_counts,
                groups.share_group_config,
            ),
            share_counts,
            groups.share_group_config,
            turns,
        ),
        share_sessions=ShareSessions(config.integer("group.share.max.share.sessions")),
        fetch_sessions=FetchSessionCache(
            config.integer("max.incremental.fetch.session.cache.slots"), runtime.entropy
        ),
        ready_fetches=ReadyFetches(turns),
        client_quotas=client_quotas,
        admission=ConnectionAdmission(ConnectionLimits(config), rates, client_quotas),
        rights=rights,
        tokens=_known_tokens(given, control.metadata),
        controller_requests=ControllerRequests(
            runtime.clock,
            tasks,
            control.metadata,
            control.controller,
            control.channel,
            client_quotas,
            rights,
        ),
    )


def _dispatcher(given: Prerequisites, serving: ServingParts, apis: Sequence[ApiSpec]) -> RequestDispatcher:
    clock = given.runtime.clock
    return RequestDispatcher(
        apis,
        clock,
        LargeRequests(clock, given.tasks, given.turns, serving.response_memory, serving.client_quotas),
        serving.client_quotas,
        serving.admission,
        partial(share_fetch.end_sessions, serving.share_sessions, serving.share_partitions),
        accepts_unproved_brokers=given.config.accepts_unproved_brokers,
    )


def _known_tokens(given: Prerequisites, metadata: MetadataLog) -> KnownTokens | None:
    secret = given.config.optional_string("delegation.token.secret.key")
    if not secret:
        return None
    from nilometer.broker.authentication.known_tokens import known_tokens  # only imported with a key

    tokens = known_tokens(given.config, secret, lambda: metadata.image, given.runtime.clock)
    metadata.subscribe(tokens.on_delta, tokens.on_reload)
    return tokens


def _authorizer(given: Prerequisites, metadata: MetadataLog) -> Authorizer | None:
    config = given.config
    if not config.string("authorizer.class.name"):
        return None
    files = AuditFiles(
        directory=config.optional_string("nilometer.audit.log.dir")
        or posixpath.join(config.log_dirs[0], ".audit"),
        bytes_max=config.integer("nilometer.audit.log.max.bytes"),
        files_max=config.integer("nilometer.audit.log.files"),
    )
    return Authorizer(config, metadata, AuditLog(given.runtime, files))


def _housekeeping(
    given: Prerequisites, replication: ReplicaParts, dispatcher: RequestDispatcher
) -> Housekeeping:
    return Housekeeping(
        given.config,
        given.runtime,
        replication.replicas,
        dispatcher,
        replication.disposal,
        given.turns,
    )


def _cleaner(given: Prerequisites, replication: ReplicaParts) -> LogCleaner:
    return LogCleaner(
        given.config,
        given.runtime,
        replication.replicas,
        replication.disposal,
        replication.checkpoints,
        given.turns,
    )
