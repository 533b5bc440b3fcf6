"""One scenario held with both brokers: what they answer must be the same.

A difference that is meant is taken out by the scenario, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from nilometer.wire.api_keys import ApiKey
from support.brokers.served_apis import APIS

from .recordings import Kafka, as_json
from .two_brokers import Plain, Side, differences

NOWHERE = UUID(int=0xDEAD << 64 | 0xBEEF)
"""An id that no topic has."""
BAD_NAMES = ("", ".", "..", "a b", "ä", "x" * 250, "a/b")
"""Names that no topic may have."""


def versions(key: ApiKey) -> range:
    """Return the versions of an API that Nilometer serves."""
    low, high = APIS[key].versions
    return range(low, high + 1)


def each_version(key: ApiKey) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", versions(key))


def same(sides: tuple[Side | Kafka, Side], scenario: Callable[..., Plain], *arguments: object) -> None:
    """Assert that ``scenario(side, *arguments)`` returns the same on both sides."""
    kafka, nilometer = sides
    if isinstance(kafka, Kafka):
        expected = kafka.answer(lambda side: scenario(side, *arguments))
        answer = as_json(scenario(nilometer, *arguments))
    else:
        expected, answer = scenario(kafka, *arguments), scenario(nilometer, *arguments)
    found = differences(expected, answer)
    assert not found, "\n".join(found)
