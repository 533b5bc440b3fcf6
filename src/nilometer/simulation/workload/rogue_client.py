"""A client that claims to be a broker: it sends all requests that only brokers may send.

It has all metadata (ids, epochs, leaders) but not the cluster's secret. Every request must be rejected: the
connection is closed, or the error is CLUSTER_AUTHORIZATION_FAILED. Any other response is a violation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.cluster.cluster_secret import NONCE_BYTES, PROOF_BYTES
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import BrokerId, TopicIdPartition, uuid_from_text
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.world import Host, Program
from nilometer.wire import own_apis
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message, api, encode_request

GAP_S = (0.1, 1.5)
TIMEOUT_MS = 5_000
FAR_OFFSET = 1_000_000


class ClaimedIdentity(msgspec.Struct, frozen=True):
    """The broker that the client claims to be, the one it connects to (``asked``), and a partition."""

    image: ClusterImage
    claimed: int
    claimed_epoch: int
    asked: int
    key: TopicIdPartition
    state: PartitionState


class RogueClient(Program):
    def __init__(self, host: Host, cluster: Cluster) -> None:
        super().__init__("rogue", host)
        self.violations: list[str] = []
        self.tried: Counter[str] = Counter()
        self._cluster = cluster
        self._seen_proofs: list[bytes] = []
        """Proofs that brokers sent earlier, to be replayed and reflected."""

    async def _main(self, runtime: Runtime) -> None:
        attempts = (
            self._stop_broker,
            self._shrink_isr,
            self._forfeit,
            self._take_producer_ids,
            self._fetch_as_follower,
            self._ask_epoch_as_follower,
            self._forward,
            self._prove,
        )
        while not self._stopping:
            await asyncio.sleep(runtime.entropy.uniform(*GAP_S))
            identity = self._claimed_identity(runtime)
            if identity is not None:
                await self._try(runtime, runtime.entropy.choice(attempts), identity)

    def _claimed_identity(self, runtime: Runtime) -> ClaimedIdentity | None:
        image = self._cluster.newest_image
        if image is None:
            return None
        brokers = sorted(self._cluster.nodes)
        asked, claimed = runtime.entropy.choice(brokers), runtime.entropy.choice(brokers)
        epoch = image.broker_epoch(BrokerId(claimed))
        partitions = list(image.partitions_on(BrokerId(claimed)))
        if epoch is None or not partitions:
            return None
        key, state = runtime.entropy.choice(partitions)
        return ClaimedIdentity(image, claimed, epoch, asked, key, state)

    async def _try(
        self,
        runtime: Runtime,
        attempt: Callable[[Connection, ClaimedIdentity, Runtime], Awaitable[int]],
        identity: ClaimedIdentity,
    ) -> None:
        node = self._cluster.nodes.get(identity.asked)
        if node is None:
            return
        client_ids = (
            f"forwarded-by-broker-{identity.claimed}",
            f"broker-{identity.claimed}-fetcher-0",
            "rogue",
        )
        try:
            connection = await Connection.open(
                runtime,
                node.host.name,
                node.port,
                client_id=runtime.entropy.choice(client_ids),
                request_timeout_ms=TIMEOUT_MS,
            )
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return
        name = attempt.__name__.lstrip("_")
        try:
            code = ErrorCode(await attempt(connection, identity, runtime))
        except ConnectionLost:
            code = ErrorCode.cluster_authorization_failed  # the broker closed it, or a network fault did
        except KafkaError as error:  # no response in time
            self.error_counts[error.code.name] += 1
            return
        finally:
            connection.close()
        self.tried[name] += 1
        if code is not ErrorCode.cluster_authorization_failed:
            self.violations.append(
                f"rogue: broker {identity.asked} answered {name} of a client as broker {identity.claimed}: "
                f"{code.name}"
            )

    # ---- the attempts; each returns the error code of the response

    async def _stop_broker(self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime) -> int:
        answer = await connection.send(
            api(ApiKey.BROKER_HEARTBEAT, 1).request(
                broker_id=identity.claimed,
                broker_epoch=identity.claimed_epoch,
                current_metadata_offset=identity.image.number,
                want_fence=False,
                want_shut_down=True,
            )
        )
        return answer.error_code

    async def _shrink_isr(self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime) -> int:
        codec = api(ApiKey.ALTER_PARTITION, 3)
        partition = codec.make_request(
            "PartitionData",
            partition_index=identity.key.partition,
            leader_epoch=identity.state.leader_epoch,
            partition_epoch=identity.state.partition_epoch,
            new_isr_with_epochs=(
                codec.make_request(
                    "BrokerState", broker_id=identity.claimed, broker_epoch=identity.claimed_epoch
                ),
            ),
            leader_recovery_state=0,
        )
        topic = codec.make_request(
            "TopicData", topic_id=uuid_from_text(identity.key.topic_id), partitions=(partition,)
        )
        answer = await connection.send(
            codec.request(broker_id=identity.claimed, broker_epoch=identity.claimed_epoch, topics=(topic,))
        )
        return answer.error_code

    async def _forfeit(self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime) -> int:
        replica = own_apis.ReplicaOfPartition(
            topic_id=identity.key.topic_id, partition=identity.key.partition
        )
        answer: own_apis.ForfeitReplicasResponse = await connection.send(
            own_apis.ForfeitReplicasRequest(
                broker_id=identity.claimed, broker_epoch=identity.claimed_epoch, replicas=(replica,)
            )
        )
        return answer.error_code

    async def _take_producer_ids(
        self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime
    ) -> int:
        answer = await connection.send(
            api(ApiKey.ALLOCATE_PRODUCER_IDS, 0).request(
                broker_id=identity.claimed, broker_epoch=identity.claimed_epoch
            )
        )
        return answer.error_code

    async def _fetch_as_follower(
        self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime
    ) -> int:
        """Fetch as a follower with many more records, or none, which would affect high watermark and ISR."""
        codec = api(ApiKey.FETCH, 17)
        partition = codec.make_request(
            "FetchPartition",
            partition=identity.key.partition,
            current_leader_epoch=identity.state.leader_epoch,
            fetch_offset=runtime.entropy.choice((0, runtime.entropy.below(100), FAR_OFFSET)),
            last_fetched_epoch=-1,
            log_start_offset=0,
            partition_max_bytes=1 << 20,
        )
        topic = codec.make_request(
            "FetchTopic", topic_id=uuid_from_text(identity.key.topic_id), partitions=(partition,)
        )
        state = codec.make_request(
            "ReplicaState", replica_id=identity.claimed, replica_epoch=identity.claimed_epoch
        )
        answer = await connection.send(
            codec.request(replica_state=state, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=(topic,))
        )
        return answer.error_code

    async def _ask_epoch_as_follower(
        self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime
    ) -> int:
        codec = api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
        found = identity.image.topic_by_id(identity.key.topic_id)
        asked = codec.make_request(
            "OffsetForLeaderPartition",
            partition=identity.key.partition,
            current_leader_epoch=identity.state.leader_epoch,
            leader_epoch=identity.state.leader_epoch,
        )
        topic = codec.make_request(
            "OffsetForLeaderTopic", topic="none" if found is None else found.name, partitions=(asked,)
        )
        answer = await connection.send(codec.request(replica_id=identity.claimed, topics=(topic,)))
        return answer.topics[0].partitions[0].error_code

    async def _forward(self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime) -> int:
        """Forward a deletion of the topic, in the name of an authorised user."""
        found = identity.image.topic_by_id(identity.key.topic_id)
        codec = api(ApiKey.DELETE_TOPICS, 5)
        names = () if found is None else (found.name,)
        answer: own_apis.ForwardedResponse = await connection.send(
            own_apis.ForwardedRequest(
                principal_type="User",
                principal_name="admin",
                client_address="192.0.2.1",
                client_port=1,
                listener="PLAINTEXT",
                request=encode_request(1, "rogue", codec.request(topic_names=names, timeout_ms=1_000))[4:],
            )
        )
        return answer.error_code

    async def _prove(self, connection: Connection, identity: ClaimedIdentity, runtime: Runtime) -> int:
        """Start the proof exchange as a broker would, then send a random, reflected or replayed proof."""
        if identity.claimed == identity.asked:
            return ErrorCode.cluster_authorization_failed
        nonce = runtime.entropy.choice((bytes(NONCE_BYTES), runtime.entropy.bytes(NONCE_BYTES)))
        response: own_apis.ProveBrokerResponse = await connection.send(self._hello(identity, nonce))
        if response.error_code:
            return ErrorCode.cluster_authorization_failed
        self._seen_proofs = [*self._seen_proofs[-20:], response.proof]
        guesses = (
            runtime.entropy.bytes(PROOF_BYTES),
            response.proof,
            runtime.entropy.choice(self._seen_proofs),
        )
        proof = runtime.entropy.choice(guesses)
        done: Any = await connection.send(own_apis.ProveBrokerRequest(proof=proof))
        return done.error_code

    def _hello(self, identity: ClaimedIdentity, nonce: bytes) -> Message:
        node = self._cluster.nodes[identity.asked]
        cluster_id = "" if node.broker is None else node.broker.parts.given.store.cluster_id
        return own_apis.ProveBrokerRequest(
            cluster_id=cluster_id,
            broker_id=identity.claimed,
            expected_broker_id=identity.asked,
            secret_number=0,
            nonce=nonce,
        )
