"""The worst legal requests of each API: each array of a request in turn filled with distinct elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey, api_name
from nilometer.wire.building import FieldShape, implicit_default, shape_of

from ..brokers.served_apis import APIS

NOT_SENT = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""Without SASL they cost nothing."""

Path_ = tuple[str, ...]


class Case(NamedTuple):
    api: ApiKey
    version: int
    filled: str
    frame: bytes


def cases(size: int, only: Sequence[str] = ()) -> Iterator[Case]:
    """Yield a case of about ``size`` bytes for each array of each API that clients may send."""
    for key, spec in APIS.items():
        if key > max(ApiKey) or spec.between_brokers or spec.key in NOT_SENT:
            continue
        if only and api_name(key) not in only:
            continue
        version = spec.versions[1]
        codec = messages.api(key, version)
        for path in array_paths(codec.request_type):
            yield Case(ApiKey(key), version, ".".join(path), filled_frame(codec, path, size))


def array_paths(entity: type[Any]) -> Iterator[Path_]:
    """Yield the path of each array, from the outermost on."""
    for field in shape_of(entity).fields:
        if field.is_array:
            yield (field.name,)
            if field.entity is not None:
                for inner in array_paths(field.entity):
                    yield (field.name, *inner)


def filled_frame(codec: messages.Api, path: Path_, size: int) -> bytes:
    """Return a request of about ``size`` bytes whose array at ``path`` has distinct elements."""
    few = len(encoded(codec, path, 1_000))
    per_element = max(1.0, (len(encoded(codec, path, 2_000)) - few) / 1_000)
    count = int((size - few) / per_element) + 1_000
    return encoded(codec, path, max(1, count - int(count * 0.02)))


def encoded(codec: messages.Api, path: Path_, count: int) -> bytes:
    return messages.encode_request(1, "cost", entity(codec.request_type, path, count, 0))


def entity(kind: type[Any], path: Path_, count: int, number: int) -> Any:
    values: dict[str, Any] = {}
    for field in shape_of(kind).fields:
        if field.is_array:
            values[field.name] = array(field, path, count)
        elif field.entity is not None:
            values[field.name] = None if field.nullable else entity(field.entity, (), 0, 0)
        else:
            values[field.name] = value(field, number)
    return kind(**values)


def array(field: FieldShape, path: Path_, count: int) -> Any:
    if not path or path[0] != field.name:
        return ()
    inner = path[1:]
    if inner:
        assert field.entity is not None
        return (entity(field.entity, inner, count, 0),)
    if field.entity is not None:
        return tuple(entity(field.entity, (), 0, number) for number in range(count))
    return tuple(value(field, number) for number in range(count))


def value(field: FieldShape, number: int) -> Any:
    kind = field.kafka_type
    if kind == "string":
        return "timeout" if field.name == "transactional_id" and not number else f"{number:x}"
    if field.name in _VALUES:
        return _VALUES[field.name]
    if kind.startswith(("int", "uint")) and kind not in ("int8", "uint8", "int16", "uint16"):
        return number
    if kind in ("int8", "uint8"):
        return _SMALL.get(field.name, 1)
    if kind in ("int16", "uint16"):
        return _SMALL.get(field.name, number % 30_000)
    if kind == "bool":
        return False
    if kind == "uuid":
        return UUID(int=number + 1)
    if kind == "bytes":
        return b"x"
    if kind.startswith("timedelta"):
        return timedelta(seconds=60)
    return field.default if field.has_default else implicit_default(field)


_VALUES = {"session_epoch": -1, "max_wait_ms": 0, "replica_id": -1, "replica_epoch": -1}
"""Of a consumer's fetch without a session."""
_SMALL = {
    "resource_type": 2,
    "key_type": 0,
    "coordinator_type": 0,
    "resource_type_filter": 2,
    "replication_factor": 7,
    "acks": 1,
}
