"""The settings of a producer, as one validated value; also checks that they do not contradict each other."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.producer.idempotence import IN_FLIGHT_MAX
from nilometer.client.producer.producer_keys import ACKS_ALL
from nilometer.client.settings.client_settings import ClientSettings
from nilometer.config import ConfigError
from nilometer.wire.compression import Codec


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
        return cls(
            acks=acks,
            batch_size=settings.integer("batch.size"),
            linger_ms=settings.integer("linger.ms"),
            buffer_memory=settings.integer("buffer.memory"),
            max_block_ms=settings.integer("max.block.ms"),
            max_request_size=settings.integer("max.request.size"),
            delivery_timeout_ms=_delivery_timeout_ms(settings),
            request_timeout_ms=settings.integer("request.timeout.ms"),
            retries=settings.integer("retries"),
            max_in_flight=settings.integer("max.in.flight.requests.per.connection"),
            idempotent=_is_idempotent(settings, acks),
            transactional_id=_transactional_id(settings, acks),
            transaction_timeout_ms=settings.integer("transaction.timeout.ms"),
            codec=codec,
            level=_level(settings, codec),
            partitioner=settings.string("partitioner.class"),
            ignore_keys=settings.boolean("partitioner.ignore.keys"),
            adaptive=settings.boolean("partitioner.adaptive.partitioning.enable"),
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
