"""Metadata, the cluster and its APIs, described as Apache Kafka describes them, in every version.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import BAD_NAMES, NOWHERE, each_version, same, versions
from support.brokers.served_apis import APIS
from support.brokers.topic_requests import by_name, metadata
from support.brokers.two_brokers import Plain, Side
from support.wire.wire_peer import make

pytestmark = pytest.mark.java


def by_id(version: int, topic_id: UUID | None, name: str | None = None) -> object:
    return make(ApiKey.METADATA, version, "MetadataRequestTopic", name=name, topic_id=topic_id)


@each_version(ApiKey.METADATA)
def test_metadata(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"metadata-{version}", 3)
        told = {
            "known": metadata(side, version, by_name(version, name)),
            "twice": metadata(side, version, by_name(version, name), by_name(version, name)),
        }
        if version >= 4:
            # Before version 4 a client cannot say that it wants nothing created.
            told["unknown"] = metadata(side, version, by_name(version, "nowhere"))
            told["both"] = metadata(side, version, by_name(version, "nowhere"), by_name(version, name))
            told |= {f"bad {bad}": metadata(side, version, by_name(version, bad)) for bad in BAD_NAMES}
        if version >= 8:
            told["operations"] = metadata(
                side, version, by_name(version, name), include_topic_authorized_operations=True
            )
        return told

    same(sides, scenario, version)


@each_version(ApiKey.METADATA)
def test_metadata_of_all_and_of_none(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"all-{version}", 2)
        everything = side.message(ApiKey.METADATA, version, topics=None if version else ())
        named = [topic for topic in everything.topics if topic.name == name]
        nothing = metadata(side, version) if version else "not to be said in version 0"
        return {"all": side.plain(named), "brokers": len(everything.brokers), "none": nothing}

    same(sides, scenario, version)


@pytest.mark.parametrize("version", range(12, versions(ApiKey.METADATA).stop))
def test_metadata_by_id(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"by-id-{version}", 1)
        return {
            "known": metadata(side, version, by_id(version, side.topic_ids[name])),
            "unknown": metadata(side, version, by_id(version, NOWHERE)),
            "with an empty name": metadata(side, version, by_id(version, side.topic_ids[name], "")),
            "unknown, with an empty name": metadata(side, version, by_id(version, NOWHERE, "")),
        }

    same(sides, scenario, version)


@pytest.mark.parametrize("version", range(10, versions(ApiKey.METADATA).stop))
def test_metadata_by_name_and_by_id(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        first, second = side.create(f"first-{version}"), side.create(f"second-{version}")
        known, other = (by_id(version, side.topic_ids[name]) for name in (first, second))
        named, missing = by_name(version, first), by_name(version, f"missing-{version}")
        unknown, nothing = by_id(version, NOWHERE), by_id(version, None)
        requests = {
            "names and ids": (named, missing, other, unknown),
            "ids and names": (other, unknown, missing, named),
            "a name and an unknown id": (named, unknown),
            "an id and nothing": (known, nothing),
            "a name with an id": (by_id(version, side.topic_ids[second], first),),
            "a missing name with an id": (by_id(version, side.topic_ids[second], "missing"),),
            "an id": (known,),
            "an id twice": (known, known, other),
        }
        if version < 12:  # later versions of Kafka fail: NullPointerException
            requests |= {"nothing": (nothing,), "a name and nothing": (named, nothing)}
        return {
            f"{what}, create {create}": metadata(side, version, *topics, create=create)
            for what, topics in requests.items()
            for create in (False, True)
        }

    same(sides, scenario, version)


@pytest.mark.parametrize("version", range(12, versions(ApiKey.METADATA).stop))
def test_metadata_of_a_topic_without_name_and_id_is_rejected(nilometer: Side, version: int) -> None:
    found = metadata(nilometer, version, by_name(version, "nowhere"), by_id(version, None))
    assert [(each["name"], each["error_code"]) for each in found["topics"]] == [
        ("", "invalid_request"),
        ("nowhere", "invalid_request"),
    ]
    assert found.get("error_code", "invalid_request") == "invalid_request"


@each_version(ApiKey.METADATA)
def test_metadata_creates_topics(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = f"created-{version}"
        first = side.message(
            ApiKey.METADATA, version, topics=(by_name(version, name),), allow_auto_topic_creation=True
        ).topics[0]
        # Kafka says that it is not there yet, Nilometer waits until it is.
        assert first.error_code in (
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.leader_not_available,
        )
        side.wait_leaders(name, 1)
        return {
            "then": metadata(side, version, by_name(version, name), create=True),
            "bad name": metadata(side, version, by_name(version, "a b"), create=True),
        }

    same(sides, scenario, version)


def test_describe_topic_partitions(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, version: int) -> Plain:
        first, second = side.create("pages-a", 3), side.create("pages-b", 2)
        key = ApiKey.DESCRIBE_TOPIC_PARTITIONS

        def ask(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Plain:
            where = cursor and make(key, 0, "Cursor", topic_name=cursor[0], partition_index=cursor[1])
            return side.ask(
                key,
                0,
                topics=tuple(make(key, 0, "TopicRequest", name=name) for name in names),
                response_partition_limit=limit,
                cursor=where,
            )

        return {
            "both": ask(second, first),
            "unknown": ask("nowhere", first),
            "bad": ask("a b"),
            "one": ask(first, second, limit=1),
            "three": ask(first, second, limit=3),
            "four": ask(first, second, limit=4),
            "zero": ask(first, second, limit=0),
            "second page": ask(first, second, limit=3, cursor=(first, 2)),
            "behind the end": ask(first, second, cursor=(first, 3)),
            "far behind the end": ask(first, second, cursor=(first, 30)),
            "second topic": ask(first, second, cursor=(second, 1)),
            "topic that is not": ask(first, second, cursor=("pages-aa", 0)),
            "negative": ask(first, second, cursor=(first, -1)),
        }

    same(sides, scenario, 0)


@each_version(ApiKey.DESCRIBE_CLUSTER)
def test_describe_cluster(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        told = {"plain": side.ask(ApiKey.DESCRIBE_CLUSTER, version)}
        if version >= 1:
            told["of nonsense"] = side.ask(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=7)
            told["of controllers"] = side.ask(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=2)
        if version >= 2:
            told["fenced"] = side.ask(ApiKey.DESCRIBE_CLUSTER, version, include_fenced_brokers=True)
        told["operations"] = side.ask(
            ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True
        )
        return told

    same(sides, scenario, version)


@each_version(ApiKey.API_VERSIONS)
def test_api_versions(sides: tuple[Side, Side], version: int) -> None:
    def ask(side: Side, software: str, number: str) -> Plain:
        told = side.ask(
            ApiKey.API_VERSIONS, version, client_software_name=software, client_software_version=number
        )
        served = {int(key) for key in APIS}
        keys = [(one["api_key"], one["min_version"]) for one in told["api_keys"] if one["api_key"] in served]
        return {"error": told["error_code"], "keys": keys}

    names = ("nilometer", "1.0") if version < 3 else ("", "1.0")
    kafka, nilometer = (ask(side, *names) for side in sides)
    assert nilometer["error"] == kafka["error"]
    good = [ask(side, "some-client", "1.2.3") for side in sides]
    assert good[0]["error"] == good[1]["error"] == "none"
    theirs, ours = dict(good[0]["keys"]), dict(good[1]["keys"])
    assert {key for key in ours if key not in theirs} <= {int(key) for key in NilometerApiKey}
    assert {key: low for key, low in ours.items() if key in theirs} == {
        k: v for k, v in theirs.items() if k in ours
    }


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_api_versions_that_no_broker_serves(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        side.hang_up()
        header = ApiKey.API_VERSIONS.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
        side.peer.tell_bytes(header + b"\x00\x00\x00\x07\xff\xff\x00")
        answer = side.peer.receive()
        side.hang_up()
        return answer[:6]

    same(sides, scenario, version)
