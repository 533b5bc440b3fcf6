"""Random but valid messages of any schema, made from the seed given and nothing else."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from nilometer.wire.errors import ErrorCode
from nilometer.wire.schema import FieldShape, shape_of

_BITS = {
    "int8": (8, True),
    "uint8": (8, False),
    "int16": (16, True),
    "uint16": (16, False),
    "int32": (32, True),
    "uint32": (32, False),
    "int64": (64, True),
    "uint64": (64, False),
}
_ERRORS = list(ErrorCode)
_LETTERS = "abcxyz019._-äß水𝄞"


def random_message(entity: type[Any], chance: random.Random, length_max: int = 3) -> Any:
    """An instance of ``entity`` with random values; arrays have at most ``length_max`` elements."""
    return entity(**{field.name: _value(field, chance, length_max) for field in shape_of(entity).fields})


def _value(field: FieldShape, chance: random.Random, length_max: int) -> Any:
    if field.has_default and chance.random() < 0.2:
        return field.default
    if field.nullable and field.tag is None and chance.random() < 0.2:
        return None
    if field.is_array:
        count = chance.choice((0, 1, length_max))
        return tuple(_item(field, chance, length_max) for _ in range(count))
    return _item(field, chance, length_max)


def _item(field: FieldShape, chance: random.Random, length_max: int) -> Any:
    if field.entity is not None:
        return random_message(field.entity, chance, length_max)
    if field.kafka_type in _BITS:
        return _whole_number(*_BITS[field.kafka_type], chance)
    match field.kafka_type:
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.uniform(-1e9, 1e9)
        case "error_code":
            return chance.choice(_ERRORS)
        case "string":
            return "".join(chance.choice(_LETTERS) for _ in range(chance.choice((0, 1, 5, 150))))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 20, 300)))
        case "uuid":
            return UUID(int=chance.getrandbits(128) | 1)
        case "timedelta_i32":
            return timedelta(milliseconds=_whole_number(32, True, chance))
        case "timedelta_i64":
            return timedelta(milliseconds=_whole_number(40, True, chance))
        case "datetime_i64":
            return datetime.fromtimestamp(chance.randrange(2**31), UTC)
    raise AssertionError(f"no random value for {field.kafka_type}")


def _whole_number(bits: int, signed: bool, chance: random.Random) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return chance.choice((0, 1, -1 if signed else 2, low, high, chance.randint(low, high)))
