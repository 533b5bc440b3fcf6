"""The share coordinators of one broker: they keep the state of share partitions in ``__share_group_state``.

Which of the topic's partitions keeps a share partition is decided by the text ``group:topic id:partition``.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from nilometer.broker.control.internal_topics import InternalTopics
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinators.shell import CoordinatorKind, CoordinatorShell
from nilometer.broker.coordinators.shells import CoordinatorShells, coordinator_error
from nilometer.broker.replicas.delayed_requests import DelayedRequest, DeleteOutcome
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.states import SHARE_GROUP_STATE_TOPIC
from nilometer.identifiers import topic_id_of, uuid_from_text
from nilometer.runtime import Runtime
from nilometer.share.delivery_state import SharePartitionKey
from nilometer.share.state_records import ShareRecord, decode_record, encode_record
from nilometer.share.state_shard import Prune, ShareStateShard, StateReply, StateRequest
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.share")

Shell: TypeAlias = CoordinatorShell[StateRequest, StateReply, ShareRecord, Prune]
FOLLOWERS_TIMEOUT_MS = 30_000
"""For how long a pruned partition notes when its followers have deleted the records, too."""
INT32 = range(-(2**31), 2**31)


def coordinator_key(key: SharePartitionKey) -> str:
    """Return the text whose hash decides which partition of the topic keeps the share partition."""
    return f"{key.group_id}:{key.topic_id}:{key.partition}"


def parse_coordinator_key(text: str) -> SharePartitionKey:
    """Parse ``group:topic id:partition``, of which the group may contain colons. Raises ValueError."""
    parts = text.rstrip(":").rsplit(":", 2)  # as Java's split, which drops empty texts at the end
    if len(parts) < 3 or not parts[0].strip():
        raise ValueError(f"{text!r} is not of the form group:topic id:partition")
    group_id, topic_id, partition = parts
    number = int(partition) if partition.lstrip("+-").isdecimal() else None
    if number is None or number not in INT32:
        raise ValueError(f"{partition!r} is not the number of a partition")
    return SharePartitionKey(group_id, topic_id_of(uuid_from_text(topic_id)), number)


class ShareCoordinator(CoordinatorShells[StateRequest, StateReply, ShareRecord, Prune]):
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: ReplicaManager,
        topics: InternalTopics,
    ) -> None:
        kind: CoordinatorKind[StateRequest, StateReply, ShareRecord, Prune] = CoordinatorKind(
            name="share",
            subject="share partitions",
            topic=SHARE_GROUP_STATE_TOPIC,
            num_partitions=config.integer("share.coordinator.state.topic.num.partitions"),
            commit_timeout_ms=config.integer("share.coordinator.write.timeout.ms"),
            load_buffer_bytes=config.integer("share.coordinator.load.buffer.size"),
            codec=Codec(config.integer("share.coordinator.state.topic.compression.codec")),
            make_shard=lambda: ShareStateShard(config.share_state, metadata.image),
            encode=encode_record,
            decode=decode_record,
            refuse=lambda request, error: StateReply(request.key, error),
            refuse_for_log=lambda request, error: StateReply(request.key, coordinator_error(error)),
            carry_out=_prune,
        )
        super().__init__(kind, runtime, tasks, metadata, replicas, topics)

    def partition_for_text(self, text: str) -> int:
        """Return the partition of the topic that keeps the share partition named ``text``. Raises
        ValueError."""
        return self.partition_for(coordinator_key(parse_coordinator_key(text)))


def _prune(shell: Shell, action: Prune) -> None:
    """Delete the records that are redundant, as DeleteRecords does; if that fails, the next pruning deletes
    them with others."""
    partition = shell.partition
    offset = shell.first_loaded_offset + action.records
    if offset <= partition.log.log_start_offset:
        return
    no_request = DelayedRequest(lambda: None)
    try:
        partition.delete_records(offset, DeleteOutcome(partition.key.partition), no_request)
    except KafkaError as refused:
        level = logging.INFO if refused.code is ErrorCode.not_leader_or_follower else logging.WARNING
        logger.log(level, "Redundant records of %s were not deleted: %s", partition, refused)
    else:
        logger.debug("Records of %s below offset %d were redundant", partition, offset)
    no_request.start_timer(FOLLOWERS_TIMEOUT_MS)
