"""Generates random but valid messages of any schema, determined by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from nilometer.wire.building import FieldShape, shape_of
from nilometer.wire.errors import ErrorCode

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


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Meaningful values, such as existing topics, used for half of the fields of their kind.

    With an empty vocabulary messages are valid but contain only random values.
    """

    strings: Sequence[str] = ()
    uuids: Sequence[UUID] = ()
    numbers: Sequence[int] = ()
    records: Sequence[bytes] = ()
    duration_ms_max: int | None = None
    """The maximum of durations, so that no request waits for weeks; None: no limit."""


NOTHING_IN_PARTICULAR = Vocabulary()


def random_message(
    entity: type[Any],
    chance: random.Random,
    length_max: int = 3,
    vocabulary: Vocabulary = NOTHING_IN_PARTICULAR,
) -> Any:
    """Return an instance of ``entity`` with random values; arrays have at most ``length_max`` elements."""
    maker = _Maker(chance, length_max, vocabulary)
    return maker.message(entity)


@dataclass(frozen=True, slots=True)
class _Maker:
    chance: random.Random
    length_max: int
    vocabulary: Vocabulary

    def message(self, entity: type[Any]) -> Any:
        return entity(**{field.name: self._value(field) for field in shape_of(entity).fields})

    def _value(self, field: FieldShape) -> Any:
        chance = self.chance
        if field.has_default and chance.random() < 0.2:
            return field.default
        if field.nullable and field.tag is None and chance.random() < 0.2:
            return None
        if field.is_array:
            return tuple(self._item(field) for _ in range(chance.choice((0, 1, self.length_max))))
        return self._item(field)

    def _item(self, field: FieldShape) -> Any:
        if field.entity is not None:
            return self.message(field.entity)
        known = self._known(field.kafka_type)
        if known and self.chance.random() < 0.5:
            return self.chance.choice(known)
        if field.kafka_type in _BITS:
            return self._whole_number(*_BITS[field.kafka_type])
        return self._other(field.kafka_type)

    def _known(self, kafka_type: str) -> Sequence[Any]:
        match kafka_type:
            case "string":
                return self.vocabulary.strings
            case "uuid":
                return self.vocabulary.uuids
            case "records":
                return self.vocabulary.records
            case _ if kafka_type in _BITS:
                low, high = _range(*_BITS[kafka_type])
                return [number for number in self.vocabulary.numbers if low <= number <= high]
            case _:
                return ()

    def _other(self, kafka_type: str) -> Any:
        chance = self.chance
        match kafka_type:
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
                return self._duration(32)
            case "timedelta_i64":
                return self._duration(40)
            case "datetime_i64":
                return datetime.fromtimestamp(chance.randrange(2**31), UTC)
            case _:
                raise AssertionError(f"no random value for {kafka_type}")

    def _duration(self, bits: int) -> timedelta:
        maximum = self.vocabulary.duration_ms_max
        if maximum is not None:
            return timedelta(milliseconds=self.chance.randint(0, maximum))
        return timedelta(milliseconds=self._whole_number(bits, True))

    def _whole_number(self, bits: int, signed: bool) -> int:
        low, high = _range(bits, signed)
        return self.chance.choice((0, 1, -1 if signed else 2, low, high, self.chance.randint(low, high)))


def _range(bits: int, signed: bool) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
