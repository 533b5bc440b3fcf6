"""DescribeClientQuotas and AlterClientQuotas, answered as Apache Kafka answers them.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import each_version, same
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.wire.wire_peer import make

EXACT, DEFAULT, SPECIFIED = range(3)
DESCRIBE, ALTER = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS
Names = dict[str, str | None]
Changes = Sequence[tuple[str, float | None]]
Component = tuple[str, int, str | None]


def describe(side: Side, version: int, *components: Component, strict: bool = False) -> Plain:
    """Return the error, and the entities with their quotas; their order is that of a Java map."""
    asked = tuple(
        make(DESCRIBE, version, "ComponentData", entity_type=kind, match_type=how, match=name)
        for kind, how, name in components
    )
    answer = side.message(DESCRIBE, version, components=asked, strict=strict)
    if answer.entries is None:
        return answer.error_code.name, None
    return answer.error_code.name, sorted(
        (names_of(entry), sorted((each.key, each.value) for each in entry.values)) for entry in answer.entries
    )


def alter(side: Side, version: int, *entries: tuple[Names, Changes], validate_only: bool = False) -> Plain:
    """Return the error of each entity; their order is that of a Java map."""
    answer = side.message(
        ALTER,
        version,
        entries=tuple(entry_of(version, names, changes) for names, changes in entries),
        validate_only=validate_only,
    )
    return sorted((names_of(entry), entry.error_code.name) for entry in answer.entries)


def entry_of(version: int, names: Names, changes: Changes) -> Any:
    return make(
        ALTER,
        version,
        "EntryData",
        entity=tuple(
            make(ALTER, version, "EntityData", entity_type=kind, entity_name=name)
            for kind, name in names.items()
        ),
        ops=tuple(
            make(ALTER, version, "OpData", key=key, value=value or 0.0, remove=value is None)
            for key, value in changes
        ),
    )


def names_of(entry: Any) -> list[tuple[str, str]]:
    return sorted((each.entity_type, each.entity_name or "<default>") for each in entry.entity)


@pytest.mark.java
@each_version(DESCRIBE)
def test_filters_of_quotas(sides: tuple[Side, Side], version: int) -> None:
    asked: tuple[tuple[Component, ...], ...] = (
        (("user", EXACT, "x"),),
        (("user", EXACT, None),),
        (("client-id", SPECIFIED, None),),
        (("client-id", SPECIFIED, "x"),),
        (("ip", DEFAULT, None),),
        (("ip", DEFAULT, "127.0.0.1"),),
        (("planet", EXACT, "x"),),
        (("", EXACT, "x"),),
        (("user", 9, None),),
        (("user", EXACT, "x"), ("user", EXACT, "y")),
        (("user", EXACT, "x"), ("ip", SPECIFIED, None)),
        (("user", DEFAULT, None), ("client-id", EXACT, "c")),
    )

    def scenario(side: Side) -> Plain:
        return [describe(side, version, *components) for components in asked]

    same(sides, scenario)


@pytest.mark.java
@each_version(ALTER)
def test_quotas_are_set_and_removed(sides: tuple[Side, Side], version: int) -> None:
    user, client = f"user-{version}", f"client-{version}"
    both: Names = {"user": user, "client-id": client}

    def scenario(side: Side) -> Plain:
        told: list[Plain] = []

        def step(*entries: tuple[Names, Changes], leaves: int) -> None:
            told.append(alter(side, version, *entries))
            mine = ("user", EXACT, user)
            eventually(lambda: len(describe(side, 1, mine)[1]) == leaves, f"{side.name} has {leaves}")
            told.append(describe(side, version, mine))

        step(({"user": user}, [("producer_byte_rate", 1000.0), ("request_percentage", 1.5)]), leaves=1)
        step((both, [("consumer_byte_rate", 2.0)]), leaves=2)
        step(({"user": user, "client-id": None}, [("controller_mutation_rate", 0.5)]), leaves=3)
        told.append(describe(side, version, ("user", EXACT, user), ("client-id", EXACT, client)))
        told.append(describe(side, version, ("user", EXACT, user), strict=True))
        told.append(alter(side, version, (both, [("consumer_byte_rate", 3.0)]), validate_only=True))
        told.append(alter(side, version, (both, [("request_percentage", None)])))
        told.append(alter(side, version, (both, [("nothing", None)])))
        step((both, [("consumer_byte_rate", None)]), leaves=2)
        step(
            ({"user": user, "client-id": None}, [("controller_mutation_rate", None)]),
            ({"user": user}, [("producer_byte_rate", None), ("request_percentage", None)]),
            leaves=0,
        )
        return told

    same(sides, scenario)


@pytest.mark.java
@each_version(ALTER)
def test_invalid_quotas(sides: tuple[Side, Side], version: int) -> None:
    rate = [("producer_byte_rate", 1.0)]
    refused: tuple[tuple[Names, Changes], ...] = (
        ({}, rate),
        ({"planet": "mars"}, rate),
        ({"user": ""}, rate),
        ({"user": "a", "ip": "127.0.0.1"}, rate),
        ({"ip": "127.0.0.1"}, rate),
        ({"ip": "256.0.0.1 "}, [("connection_creation_rate", 1.0)]),
        ({"ip": "127.0.0.1"}, [("connection_creation_rate", 1.5)]),
        ({"ip": "127.0.0.1"}, [("connection_creation_rate", 2.0**31)]),
        ({"user": "a"}, [("connection_creation_rate", 1.0)]),
        ({"user": "a"}, [("producer_byte_rate", 0.0)]),
        ({"user": "a"}, [("producer_byte_rate", -1.0)]),
        ({"user": "a"}, [("producer_byte_rate", 1.5)]),
        ({"user": "a"}, [("producer_byte_rate", 1e19)]),
        ({"user": "a"}, [("speed", 1.0)]),
        ({"user": "a"}, [("speed", 1.0), ("producer_byte_rate", 1.0)]),
        ({"user": "a"}, [*rate, *rate]),
    )

    def scenario(side: Side) -> Plain:
        told = [alter(side, version, one, validate_only=True) for one in refused]
        twice = ({"user": "twice"}, rate), ({"user": "twice"}, [("producer_byte_rate", 2.0)])
        told.append(alter(side, version, *twice, ({"user": "once"}, rate), validate_only=True))
        return told

    same(sides, scenario)
    [(_, error)] = alter(sides[1], version, refused[0], validate_only=True)
    assert error == ErrorCode.invalid_request.name
