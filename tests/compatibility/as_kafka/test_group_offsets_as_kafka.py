"""Offsets of groups, and groups listed, described and deleted, answered as Apache Kafka answers them.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from nilometer.wire.api_keys import ApiKey
from support.brokers.comparison import NOWHERE, each_version, same
from support.brokers.two_brokers import Plain, Side
from support.groups.classic_groups import describe, members, stable
from support.groups.group_requests import (
    commit_fields,
    fetch_fields,
    wait_for_coordinator,
)
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded
FIRST_COMMIT_BY_ID = FIRST_FETCH_BY_ID = 10


@each_version(ApiKey.OFFSET_COMMIT)
def test_commit(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"commit-{version}", 2)
        group = f"commit-{version}"
        by_id = version >= FIRST_COMMIT_BY_ID
        topic: str | UUID = side.topic_ids[name] if by_id else name

        def ask(offsets: dict[int, int], where: str | UUID = topic, **fields: object) -> Plain:
            given: dict[str, object] = {"group": group, **fields}
            return side.ask(
                ApiKey.OFFSET_COMMIT,
                version,
                **commit_fields(version, topic=where, offsets=offsets, **given),  # type: ignore[arg-type]
            )

        with members(side, group, "one") as (one,):
            told = {
                "without a member": ask({0: 10}),
                "two partitions": ask({0: 11, 1: 12}),
                "unknown partition": ask({0: 13, 7: 1}),
                "unknown partitions only": ask({7: 1}),
                "unknown topic": ask({0: 1}, NOWHERE if by_id else "nowhere"),
                "with metadata": ask({0: 14}, metadata="as far as page 3"),
                "null metadata": ask({1: 14}, metadata=None),
                "too much metadata": ask({0: 15}, metadata="m" * 4097),
                "as much as may be": ask({1: 15}, metadata="m" * 4096),
                "negative": ask({0: -1}),
                "a generation of nothing": ask({0: 1}, generation=3),
                "a member of nothing": ask({0: 1}, generation=3, member_id="none-such"),
                "unknown group": ask({0: 1}, group="unseen", generation=3, member_id="none-such"),
                "no group": ask({0: 3}, group=""),
            }
            one.join()
            told["before the sync"] = ask({0: 20}, generation=one.generation, member_id=one.id)
            one.sync({one.id: b"all"})
            told["of a member"] = ask({0: 21}, generation=one.generation, member_id=one.id)
            told["unknown member"] = ask({0: 22}, generation=one.generation, member_id="none-such")
            told["old generation"] = ask({0: 23}, generation=one.generation - 1, member_id=one.id)
            told["not of a member"] = ask({0: 24})
            told["fetched"] = fetch(side, 7, group, None)
            return told

    same(sides, scenario)


def fetch(side: Side, version: int, group: str, topics: dict[str | UUID, tuple[int, ...]] | None) -> Plain:
    return side.ask(ApiKey.OFFSET_FETCH, version, **fetch_fields(version, {group: topics}))


@each_version(ApiKey.OFFSET_FETCH)
def test_fetch(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"fetched-{version}", 3)
        other = side.create(f"fetched-too-{version}")
        group = f"fetch-{version}"
        wait_for_coordinator(side, group)
        by_id = version >= FIRST_FETCH_BY_ID
        topic: str | UUID = side.topic_ids[name] if by_id else name
        unknown: str | UUID = NOWHERE if by_id else "nowhere"
        for where, offsets in ((name, {0: 10, 1: 11}), (other, {0: 5})):
            fields = commit_fields(8, group, where, offsets, metadata=f"of {where}")
            side.ask(ApiKey.OFFSET_COMMIT, 8, **fields)
        told = {
            "committed": fetch(side, version, group, {topic: (0, 1)}),
            "not committed": fetch(side, version, group, {topic: (2, 7)}),
            "nothing": fetch(side, version, group, {topic: ()}),
            "unknown topic": fetch(side, version, group, {unknown: (0, 1)}),
            "known and unknown": fetch(side, version, group, {unknown: (0,), topic: (1,)}),
            "unknown group": fetch(side, version, "unseen", {topic: (0,)}),
            "no group": fetch(side, version, "", {topic: (0,)}),
            "no topics": fetch(side, version, group, {}),
        }
        if version >= 2:
            told["all"] = fetch(side, version, group, None)
            told["all of an unknown group"] = fetch(side, version, "unseen", None)
        if version >= 7:
            fields = fetch_fields(version, {group: {topic: (0, 2)}}, stable=True)
            told["stable"] = side.ask(ApiKey.OFFSET_FETCH, version, **fields)
        if version >= 8:
            fields = fetch_fields(version, {group: {topic: (0,)}, "unseen": {topic: (0,)}, "more": None})
            told["many groups"] = side.ask(ApiKey.OFFSET_FETCH, version, **fields)
            told["no groups"] = side.ask(ApiKey.OFFSET_FETCH, version, **fetch_fields(version, {}))
        return told

    same(sides, scenario)


def delete_offsets(side: Side, group: str, topic: str, *partitions: int) -> Plain:
    key = ApiKey.OFFSET_DELETE
    asked = tuple(make(key, 0, "OffsetDeleteRequestPartition", partition_index=one) for one in partitions)
    topics = (make(key, 0, "OffsetDeleteRequestTopic", name=topic, partitions=asked),)
    return side.ask(key, 0, group_id=group, topics=topics)


def test_offset_delete(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("offsets-deleted", 2)
        group = "offset-delete"
        with members(side, group, "one") as (one,):
            told = {"unknown group": delete_offsets(side, "unseen", name, 0)}
            side.ask(ApiKey.OFFSET_COMMIT, 8, **commit_fields(8, group, name, {0: 10, 1: 11}))
            told["no group"] = delete_offsets(side, "", name, 0)
            told["unknown topic"] = delete_offsets(side, group, "nowhere", 0)
            told["unknown partition"] = delete_offsets(side, group, name, 7, 1)
            told["left"] = fetch(side, 7, group, None)
            told["not there"] = delete_offsets(side, group, name, 1)
            stable(one)
            told["with a member"] = delete_offsets(side, group, name, 0)
            told["left then"] = fetch(side, 7, group, None)
            return told

    same(sides, scenario)


@each_version(ApiKey.DESCRIBE_GROUPS)
def test_describe_groups(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"described-group-{version}")
        group = f"describe-{version}"
        with members(side, group, "one") as (one,):
            told = {"unknown": describe(side, version, group), "none": describe(side, version)}
            side.ask(ApiKey.OFFSET_COMMIT, 8, **commit_fields(8, group, name, {0: 1}))
            told["only offsets"] = describe(side, version, group, operations=True)
            one.join()
            told["before the sync"] = describe(side, version, group)
            one.sync({one.id: b"all"})
            told["stable"] = describe(side, version, group, "unseen", operations=True)
            told["twice"] = describe(side, version, group, group)
            told["no name"] = describe(side, version, "")
            one.leave()
            told["empty"] = describe(side, version, group)
            return told

    same(sides, scenario)


@each_version(ApiKey.LIST_GROUPS)
def test_list_groups(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"listed-{version}")
        prefix = f"list-{version}"

        def ask(**filters: tuple[str, ...]) -> Plain:
            answer = side.message(ApiKey.LIST_GROUPS, version, **filters)
            mine = [group for group in answer.groups if group.group_id.startswith(prefix)]
            return answer.error_code.name, side.plain(mine)

        with members(side, f"{prefix}-classic", "one") as (one,):
            one.join()
            told = {"before the sync": ask()}
            one.sync({one.id: b"all"})
            side.ask(ApiKey.OFFSET_COMMIT, 8, **commit_fields(8, f"{prefix}-offsets", name, {0: 1}))
            told["all"] = ask()
            if version >= 4:
                told["stable"] = ask(states_filter=("Stable",))
                told["stable, in small letters"] = ask(states_filter=("stable",))
                told["empty or dead"] = ask(states_filter=("Empty", "Dead"))
                told["no such state"] = ask(states_filter=("Sleepy",))
            if version >= 5:
                told["classic"] = ask(types_filter=("classic",))
                told["consumer"] = ask(types_filter=("Consumer",))
                told["no such type"] = ask(types_filter=("odd",))
                told["both filters"] = ask(states_filter=("Empty",), types_filter=("classic",))
            return told

    same(sides, scenario)


@each_version(ApiKey.DELETE_GROUPS)
def test_delete_groups(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create(f"deleted-group-{version}")
        group = f"delete-{version}"

        def ask(*groups: str) -> Plain:
            return side.ask(ApiKey.DELETE_GROUPS, version, groups_names=groups)

        with members(side, group, "one") as (one,):
            told = {"unknown": ask(group), "none": ask()}
            stable(one)
            side.ask(
                ApiKey.OFFSET_COMMIT,
                8,
                **commit_fields(8, group, name, {0: 1}, member_id=one.id, generation=one.generation),
            )
            told["with a member"] = ask(group)
            one.leave()
            told["empty, and unknown"] = ask(group, "unseen")
            told["gone"] = describe(side, 5, group)
            told["its offsets too"] = fetch(side, 7, group, None)
            side.ask(ApiKey.OFFSET_COMMIT, 8, **commit_fields(8, group, name, {0: 1}))
            told["twice"] = ask(group, group)
            return told

    same(sides, scenario)
