"""The settings of a producer: its configuration keys, with Kafka's names, defaults and limits, and their
values, checked together.
"""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.producer.idempotence import IN_FLIGHT_MAX
from nilometer.client.settings import COMMON_KEYS, INT_MAX, ClientSettings
from nilometer.config import ConfigDefinition, ConfigError, key_table
from nilometer.wire.compression import Codec

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONER_CLASSES = ("default", "round_robin", "uniform_sticky")

ACKS_ALL = -1

PRODUCER_KEYS = (
    *COMMON_KEYS,
    *key_table(
        f"""
acks: string (all|-1|0|1) = all
    Which replicas acknowledge a record. all: the in-sync ones, 1: the leader, 0: none.
batch.size: int 0.. = 16_384
    A batch of one partition is sent at this size, in bytes before compression.
linger.ms: long 0.. = 5
    How long a batch that is not full waits for more records.
buffer.memory: long 0.. = 33_554_432
    The maximum number of bytes of records that are not sent yet. send() waits for room.
max.block.ms: long 0.. = 60_000
    How long send() may wait for metadata or for room in the buffer.
max.request.size: int 0.. = 1_048_576
    The largest request, and so the largest record, in bytes.
delivery.timeout.ms: int 0.. = 120_000
    The time after which a record that is not acknowledged fails.
retries: int 0.. = {INT_MAX}
    How often a batch is sent again after a retriable error.
max.in.flight.requests.per.connection: int 1.. = 5
    The maximum number of in-flight requests per connection.
enable.idempotence: boolean = true
    Number the batches, so that retries neither repeat nor reorder records.
transactional.id: string
    The id of a transactional producer. Starting a producer fences earlier ones with its id.
transaction.timeout.ms: int 1.. = 60_000
    The time after which the coordinator aborts a transaction that is still open.
compression.type: string = none
    The codec that batches are compressed with.
compression.gzip.level: int -1..9 = -1
    The level for gzip; -1 is the codec's own default.
compression.lz4.level: int 1..17 = 9
    The level for lz4.
compression.zstd.level: int -131_072..22 = 3
    The level for zstd.
partitioner.class: string = default
    default: hash of the key, else sticky; uniform_sticky: sticky, keys ignored; round_robin: in turn.
partitioner.ignore.keys: boolean = false
    Do not use keys to choose partitions.
partitioner.adaptive.partitioning.enable: boolean = true
    Send more records to partitions with shorter queues.
allow.auto.create.topics: boolean = true
    Let the broker create a topic that this producer writes to and that does not exist.
""",
        choices={"compression.type": COMPRESSION_TYPES, "partitioner.class": PARTITIONER_CLASSES},
        checks={"transactional.id": lambda value: None if value else "must not be empty"},
    ),
)

PRODUCER_CONFIG_DEFINITION = ConfigDefinition.of("producer", PRODUCER_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    acks: int
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retries: int
    max_in_flight: int
    idempotent: bool
    codec: Codec
    level: int | None
    partitioner: str
    ignore_keys: bool
    adaptive: bool
    transactional_id: str | None
    transaction_timeout_ms: int

    @classmethod
    def of(cls, settings: ClientSettings) -> ProducerConfig:
        """Return the configuration. Raises ConfigError if settings contradict each other."""
        codec = Codec[settings.string("compression.type").upper()]
        acks_text = settings.string("acks")
        acks = ACKS_ALL if acks_text == "all" else int(acks_text)
        named = settings.fields_of(cls)
        named["acks"] = acks
        named["delivery_timeout_ms"] = _delivery_timeout_ms(settings)
        named["transactional_id"] = _transactional_id(settings, acks)
        return cls(
            max_in_flight=settings.integer("max.in.flight.requests.per.connection"),
            idempotent=_is_idempotent(settings, acks),
            codec=codec,
            level=_level(settings, codec),
            partitioner=settings.string("partitioner.class"),
            ignore_keys=settings.boolean("partitioner.ignore.keys"),
            adaptive=settings.boolean("partitioner.adaptive.partitioning.enable"),
            **named,
        )


def _delivery_timeout_ms(settings: ClientSettings) -> int:
    delivery = settings.integer("delivery.timeout.ms")
    least = settings.integer("linger.ms") + settings.integer("request.timeout.ms")
    if delivery >= least:
        return delivery
    if settings.is_given("delivery.timeout.ms"):
        raise ConfigError(
            "delivery.timeout.ms",
            f"delivery.timeout.ms ({delivery}) must be at least linger.ms + request.timeout.ms ({least})",
        )
    return least


def _is_idempotent(settings: ClientSettings, acks: int) -> bool:
    """Whether the producer is idempotent: by default, unless other settings exclude it.

    Raises ConfigError if ``enable.idempotence`` is given explicitly and others exclude it.
    """
    if not settings.boolean("enable.idempotence"):
        return False
    in_flight = settings.integer("max.in.flight.requests.per.connection")
    conflicts = [
        ("acks", acks != ACKS_ALL, "acks must be all"),
        ("retries", settings.integer("retries") == 0, "retries must not be 0"),
        (
            "max.in.flight.requests.per.connection",
            in_flight > IN_FLIGHT_MAX,
            f"max.in.flight.requests.per.connection must be at most {IN_FLIGHT_MAX}",
        ),
    ]
    for key, conflict, demand in conflicts:
        if conflict:
            if settings.is_given("enable.idempotence"):
                raise ConfigError(key, f"{demand} if enable.idempotence is true")
            return False
    return True


def _transactional_id(settings: ClientSettings, acks: int) -> str | None:
    if not settings.is_given("transactional.id"):
        return None
    if not _is_idempotent(settings, acks):
        raise ConfigError(
            "transactional.id",
            "transactional.id needs an idempotent producer: enable.idempotence=true, acks=all, retries "
            f"above 0 and max.in.flight.requests.per.connection of at most {IN_FLIGHT_MAX}",
        )
    return settings.string("transactional.id")


def _level(settings: ClientSettings, codec: Codec) -> int | None:
    """Return the configured compression level; None for the codec's own default."""
    key = f"compression.{codec.name.lower()}.level"
    if codec in (Codec.NONE, Codec.SNAPPY) or not settings.is_given(key):
        return None
    level = settings.integer(key)
    return None if codec is Codec.GZIP and level < 0 else level
