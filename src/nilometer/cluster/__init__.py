"""The cluster's metadata: the records of the metadata log, the image, and the controller's decisions.

The *metadata log* is a sequence of numbered entries; an entry has records, each of which describes one
change. The *image* is the metadata after these changes. Every broker reads the same entries and *folds* them,
that is, applies them in order to its image::

    image = ClusterImage()                                  # or from_snapshot(decode_snapshot(bytes))
    delta = image.apply_entry(number, decode_entry(bytes))  # the changes; empty if it was not accepted

The holder of ``/controller`` turns requests and events into records. A change is only in force once its entry
is folded and accepted::

    entry = controllership_entry(image, broker_id, incarnation, entropy)  # append, fold; then controller
    decision = decide_create_topics(image, topics, ...)                   # the image is unchanged
    for entry in entries_of(decision.units, image.controllership): ...    # append each, fold each
    decision.reply                                                        # send it once all were accepted

``records`` defines the possible changes, ``image`` the state, ``controller`` decides the changes. No clock,
no I/O; randomness is an argument. The coordination store keeps the entries.
"""

from nilometer.cluster.delta import BrokerTransition, ConfigResource, ImageDelta, PartitionTransition
from nilometer.cluster.entries import (
    ENTRY_BYTES_MAX,
    ENTRY_BYTES_TARGET,
    NO_CONTROLLERSHIP,
    BadEntry,
    Controllership,
    Entry,
    EntryFromTheFuture,
    ImageSnapshot,
    Unit,
    UnitTooLarge,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    entries_of,
)
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    FORMAT_VERSION,
    ConfigResourceType,
    Election,
    Endpoint,
    Record,
    RecoveryState,
    Replicas,
)
from nilometer.cluster.states import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    Broker,
    PartitionState,
    Topic,
    why_invalid_name,
)
from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EntryNumber,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
    topic_id_of,
    uuid_from_text,
    uuid_to_text,
)

__all__ = [
    "ENTRY_BYTES_MAX",
    "ENTRY_BYTES_TARGET",
    "FORMAT_VERSION",
    "GROUP_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "NO_BROKER_EPOCH",
    "NO_CONTROLLERSHIP",
    "NO_LEADER",
    "TRANSACTION_STATE_TOPIC",
    "BadEntry",
    "Broker",
    "BrokerEpoch",
    "BrokerId",
    "BrokerTransition",
    "ClusterImage",
    "ConfigResource",
    "ConfigResourceType",
    "ControllerEpoch",
    "Controllership",
    "Election",
    "Endpoint",
    "Entry",
    "EntryFromTheFuture",
    "EntryNumber",
    "ImageDelta",
    "ImageSnapshot",
    "Incarnation",
    "LeaderEpoch",
    "PartitionEpoch",
    "PartitionState",
    "PartitionTransition",
    "Record",
    "RecoveryState",
    "Replicas",
    "Topic",
    "TopicId",
    "TopicIdPartition",
    "Unit",
    "UnitTooLarge",
    "decode_entry",
    "decode_snapshot",
    "encode_entry",
    "encode_snapshot",
    "entries_of",
    "topic_id_of",
    "uuid_from_text",
    "uuid_to_text",
    "why_invalid_name",
]
