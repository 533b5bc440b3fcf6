"""UpdateFeatures and the features of ApiVersions as Apache Kafka answers them.

Compared are the features that both have and whose levels both may change: ``transaction.version`` and
``group.version``. ``metadata.version`` and ``kraft.version`` change nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.wire.api_keys import ApiKey
from support.brokers.two_brokers import Plain, Side, differences
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.java

TV, GV = "transaction.version", "group.version"
UP, DOWN, UNSAFE = 1, 2, 3
NEWEST = {TV: 2, GV: 1}


@pytest.fixture(autouse=True)
def restored(sides: tuple[Side, Side]) -> Iterator[None]:
    yield
    for side in sides:
        update(side, 2, *((name, level, UP) for name, level in NEWEST.items()))
        eventually(lambda side=side: finalized(side) == NEWEST, f"{side.name} has its levels again")


def update(side: Side, version: int, *updates: tuple[str, int, int], **fields: object) -> Plain:
    keys = tuple(
        make(
            ApiKey.UPDATE_FEATURES,
            version,
            "FeatureUpdateKey",
            feature=name,
            max_version_level=level,
            **({"upgrade_type": kind} if version else {"allow_downgrade": kind != UP}),
        )
        for name, level, kind in updates
    )
    return side.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=keys, timeout_ms=10_000, **fields)


def features(side: Side, version: int) -> dict[str, dict[str, tuple[int, int]]]:
    answer = side.message(
        ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1"
    )
    assert answer.finalized_features_epoch >= 0
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    levels = {
        each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features
    }
    return {
        "supported": {name: supported[name] for name in (TV, GV) if name in supported},
        "finalized": {name: levels[name] for name in (TV, GV) if name in levels},
    }


def finalized(side: Side) -> dict[str, int]:
    return {name: level for name, (level, _) in features(side, 4)["finalized"].items()}


@pytest.mark.parametrize("version", [3, 4])
def test_features_of_api_versions(sides: tuple[Side, Side], version: int) -> None:
    kafka, nilometer = (features(side, version) for side in sides)
    assert kafka == nilometer
    assert kafka["finalized"] == {TV: (2, 2), GV: (1, 1)}


@pytest.mark.parametrize("version", range(3))
def test_updates(sides: tuple[Side, Side], version: int) -> None:
    conversation: list[tuple[tuple[str, int, int], ...]] = [
        (),
        ((TV, 1, UP),),
        ((TV, 1, DOWN),),
        ((TV, 1, UP),),
        ((TV, 2, DOWN),),
        ((TV, 2, UNSAFE),),
        ((TV, 2, UP),),
        ((TV, 3, UP),),
        ((TV, -1, UP),),
        ((TV, 0, UP),),
        ((TV, 1, 0),),
        ((TV, 1, 7),),
        (("nope", 1, UP),),
        (("nope", 0, DOWN),),
        (("", 1, UP),),
        (("nope", 1, UP), (TV, 1, DOWN)),
        ((TV, 1, DOWN), (TV, 0, DOWN)),
        ((GV, 0, DOWN), (TV, 0, DOWN)),
        ((GV, 1, UP), (TV, 2, UP)),
    ]

    def scenario(side: Side) -> Plain:
        told = [update(side, version, *updates) for updates in conversation]
        if version:
            told += [update(side, version, (TV, 1, kind), validate_only=True) for kind in (UP, DOWN)]
        return told

    found = differences(*(scenario(side) for side in sides))
    assert not found, "\n".join(found)


def test_a_level_that_is_off_is_not_shown(sides: tuple[Side, Side]) -> None:
    for side in sides:
        update(side, 2, (TV, 1, DOWN), (GV, 0, DOWN))
        eventually(lambda side=side: finalized(side) == {TV: 1}, f"{side.name} shows the lower levels")


def test_without_its_feature_the_protocol_of_consumer_groups_is_off(sides: tuple[Side, Side]) -> None:
    for side in sides:
        update(side, 2, (GV, 0, DOWN))

        def is_refused(side: Side = side) -> bool:
            answer = side.message(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="off", member_id="m", member_epoch=0
            )
            return answer.error_code.name == "unsupported_version"

        eventually(is_refused, f"{side.name} refuses it")
