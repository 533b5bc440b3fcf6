"""Produce and consume over TLS: what encryption costs, in two shapes of those without it."""

from __future__ import annotations

from functools import partial

from . import plays
from .broker_rows import FILL_BYTES, QUICK_FILL_BYTES, fill
from .rows import THROUGHPUT, Load, Numbers, Row
from .secured import CIPHER, TLS_VERSION, check_cipher, secured_systems, security_of
from .systems import System, delete_topic

SHAPES = ((100, 16_384), (1000, 1_000_000))
"""Bytes of a record, bytes of a batch."""
OVER = f"over {TLS_VERSION.replace('v', ' ')}, {CIPHER}"


def _produce(system: System, seconds: float, *, size: int, batch: int) -> Numbers:
    security = security_of(system)
    settings = (*security.client_settings, f"batch.size={batch}")
    return plays.produce(system, seconds, size=size, settings=settings, bootstrap=security.addresses["SSL"])


def _consume(system: System, seconds: float, *, topic: str, size: int, count: int) -> Numbers:
    security = security_of(system)
    return plays.consume(
        system,
        seconds,
        topic=topic,
        size=size,
        count=count,
        settings=security.client_settings,
        bootstrap=security.addresses["SSL"],
    )


def _prepare(system: System, topic: str, size: int, batch: int, count: int) -> None:
    check_cipher(system)
    fill(system, topic, size, batch, count)


def _produce_row(size: int, batch: int) -> Row:
    return Row(
        f"tls-produce-{size}-{batch}",
        f"produce {size} B records, batches of {batch // 1000} kB, acks=all, {OVER}",
        THROUGHPUT,
        Load(partial(_produce, size=size, batch=batch), "records_per_s", prepare=check_cipher),
        systems=secured_systems,
    )


def _consume_row(size: int, batch: int) -> Row:
    return Row(
        f"tls-consume-{size}-{batch}",
        f"consume {size} B records from the start, stored in batches of {batch // 1000} kB, {OVER}",
        THROUGHPUT,
        _consume_load(size, batch, FILL_BYTES),
        quick_load=_consume_load(size, batch, QUICK_FILL_BYTES),
        systems=secured_systems,
    )


def _consume_load(size: int, batch: int, total: int) -> Load:
    topic, count = f"tls-consumed-{size}-{batch}", total // size
    return Load(
        partial(_consume, topic=topic, size=size, count=count),
        "records_per_s",
        prepare=partial(_prepare, topic=topic, size=size, batch=batch, count=count),
        clean=partial(delete_topic, name=topic),
    )


TLS_ROWS: tuple[Row, ...] = (
    *(_produce_row(*shape) for shape in SHAPES),
    *(_consume_row(*shape) for shape in SHAPES),
)
