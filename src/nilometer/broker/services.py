"""The parts of the broker that request handlers may use, without its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from nilometer.broker.authorization.authorizer import Authorizer, BrokerUsers
from nilometer.broker.cleaning import CleanerReport
from nilometer.broker.connection_memory import ResponseMemory
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_link import ControllerChannel, ControllerLink, ProducerIds
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.control.secret_keeper import SecretKeeper
from nilometer.broker.coordinators.groups import GroupCoordinator
from nilometer.broker.coordinators.markers import MarkerWriter
from nilometer.broker.coordinators.share import ShareCoordinator
from nilometer.broker.coordinators.streams_topics import StreamsTopics
from nilometer.broker.coordinators.transactions import TransactionCoordinator
from nilometer.broker.coordinators.verification import TransactionVerification
from nilometer.broker.fetching.fetch_session import FetchSessionCache
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.replica_moves import ReplicaMoves
from nilometer.broker.replicas.delayed_requests import ReadyFetches
from nilometer.broker.replicas.leader_liveness import LeaderLiveness
from nilometer.broker.replicas.record_reading import RecordReading
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.replication_quota import ReplicationQuotas
from nilometer.broker.response_cache import ResponseCache
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.sharing.end_offsets import EndOffsets
from nilometer.broker.sharing.persister import SharePersister
from nilometer.broker.sharing.share_partitions import SharePartitions
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.cluster.controller.topics import TopicDefaults
from nilometer.cluster.image import ClusterImage
from nilometer.config import ConfigValue
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.runtime import Runtime
from nilometer.share.sessions import ShareSessions

if TYPE_CHECKING:
    from nilometer.broker.authentication.known_tokens import KnownTokens


class Services(msgspec.Struct, kw_only=True):
    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    response_memory: ResponseMemory
    metadata: MetadataLog
    controller: Controller
    controller_channel: ControllerChannel
    controller_link: ControllerLink
    replicas: ReplicaManager
    replica_moves: ReplicaMoves
    record_reading: RecordReading
    leader_liveness: LeaderLiveness
    metadata_responses: ResponseCache
    compactions: CleanerReport
    producer_ids: ProducerIds
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_state: ShareCoordinator
    persister: SharePersister
    share_partitions: SharePartitions
    share_sessions: ShareSessions
    end_offsets: EndOffsets
    streams_topics: StreamsTopics
    verification: TransactionVerification
    marker_writer: MarkerWriter
    fetch_sessions: FetchSessionCache
    ready_fetches: ReadyFetches
    replication_quotas: ReplicationQuotas
    cluster_id: str
    secrets: SecretKeeper
    client_quotas: ClientQuotas
    quorum: QuorumStore | None
    """None: the metadata is in another coordination store."""
    authorizer: Authorizer | None
    """None: every client has every right."""
    tokens: KnownTokens | None
    """None: there are no delegation tokens."""
    broker_users: BrokerUsers
    advertised: Mapping[int, tuple[int, int]]
    """By API key, the lowest and highest version that is advertised to clients."""
    advertised_to_brokers: Mapping[int, tuple[int, int]]

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    @property
    def topic_defaults(self) -> TopicDefaults:
        """The partition count and replication factor for topics created without them."""
        return TopicDefaults(
            num_partitions=self.config.integer("num.partitions"),
            replication_factor=self.config.integer("default.replication.factor"),
        )

    @property
    def static_topic_defaults(self) -> dict[str, ConfigValue]:
        """The defaults that this broker's file sets for topics, by topic key."""
        return self.config.topic_defaults()

    @property
    def broker_id(self) -> int:
        return self.config.node_id
