"""The configuration keys of a producer, with Kafka's names, defaults and limits; any other is rejected."""

from __future__ import annotations

from nilometer.client.settings.common_keys import COMMON_KEYS
from nilometer.client.settings.key_kinds import INT_MAX, boolean_key, choice_key, int_key, long_key
from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONER_CLASSES = ("default", "round_robin", "uniform_sticky")

ACKS_ALL = -1

PRODUCER_KEYS: tuple[ConfigKey, ...] = (
    *COMMON_KEYS,
    choice_key(
        "acks",
        "all",
        ("all", "-1", "0", "1"),
        "Which replicas acknowledge a record. all: the in-sync ones, 1: the leader, 0: none.",
    ),
    int_key(
        "batch.size", 16_384, "A batch of one partition is sent at this size, in bytes before compression."
    ),
    long_key("linger.ms", 5, "How long a batch that is not full waits for more records."),
    long_key(
        "buffer.memory",
        33_554_432,
        "The maximum number of bytes of records that are not sent yet. send() waits for room.",
    ),
    long_key("max.block.ms", 60_000, "How long send() may wait for metadata or for room in the buffer."),
    int_key("max.request.size", 1_048_576, "The largest request, and so the largest record, in bytes."),
    int_key("delivery.timeout.ms", 120_000, "The time after which a record that is not acknowledged fails."),
    int_key("retries", INT_MAX, "How often a batch is sent again after a retriable error."),
    int_key(
        "max.in.flight.requests.per.connection",
        5,
        "The maximum number of in-flight requests per connection.",
        1,
    ),
    boolean_key(
        "enable.idempotence", True, "Number the batches, so that retries neither repeat nor reorder records."
    ),
    ConfigKey(
        name="transactional.id",
        kind=ConfigKind.STRING,
        default=None,
        doc="The id of a transactional producer. Starting a producer fences earlier ones with its id.",
        validate=lambda value: None if value else "must not be empty",
    ),
    int_key(
        "transaction.timeout.ms",
        60_000,
        "The time after which the coordinator aborts a transaction that is still open.",
        1,
    ),
    choice_key("compression.type", "none", COMPRESSION_TYPES, "The codec that batches are compressed with."),
    int_key("compression.gzip.level", -1, "The level for gzip; -1 is the codec's own default.", -1, 9),
    int_key("compression.lz4.level", 9, "The level for lz4.", 1, 17),
    int_key("compression.zstd.level", 3, "The level for zstd.", -131_072, 22),
    choice_key(
        "partitioner.class",
        "default",
        PARTITIONER_CLASSES,
        "default: hash of the key, else sticky; uniform_sticky: sticky, keys ignored; round_robin: in turn.",
    ),
    boolean_key("partitioner.ignore.keys", False, "Do not use keys to choose partitions."),
    boolean_key(
        "partitioner.adaptive.partitioning.enable",
        True,
        "Send more records to partitions with shorter queues.",
    ),
    boolean_key(
        "allow.auto.create.topics",
        True,
        "Let the broker create a topic that this producer writes to and that does not exist.",
    ),
)

PRODUCER_CONFIG_DEFINITION = ConfigDefinition.of("producer", PRODUCER_KEYS)
