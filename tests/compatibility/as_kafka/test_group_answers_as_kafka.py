"""Groups answered as Apache Kafka answers: every API, every version both serve, and what bad members hear.

Each scenario is a conversation that is held with both brokers; what they say must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from nilometer.broker.api.registry import APIS
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.two_brokers import Plain, Side, differences
from support.eventually import eventually
from support.groups.group_requests import (
    Member,
    commit_fields,
    fetch_fields,
    join_fields,
    subscription,
    sync_fields,
    wait_for_coordinator,
)
from support.wire.wire_peer import make

pytestmark = pytest.mark.java
Scenario = Callable[[Side], Plain]

NOWHERE = UUID(int=0xDEAD << 64 | 0xBEEF)
FIRST_COMMIT_BY_ID = FIRST_FETCH_BY_ID = 10


def each_version(key: ApiKey) -> pytest.MarkDecorator:
    low, high = APIS[key].versions
    return pytest.mark.parametrize("version", range(low, high + 1))


def same(sides: tuple[Side, Side], scenario: Scenario) -> None:
    kafka, nilometer = sides
    found = differences(scenario(kafka), scenario(nilometer))
    assert not found, "\n".join(found)


@contextmanager
def members(side: Side, group: str, *names: str, **instances: str) -> Iterator[list[Member]]:
    wait_for_coordinator(side, group)
    found = [Member(side, group, name) for name in names]
    found += [Member(side, group, name, instance) for name, instance in instances.items()]
    yield found
    for member in found:
        member.close()


def stable(*group: Member) -> None:
    """Bring members together as one generation; the first leads."""
    leader, *others = group
    leader.join()
    for number, member in enumerate(others, start=1):
        member.ask_to_join()
        for present in group[:number]:
            eventually(
                lambda present=present: (
                    present.heartbeat_message().error_code == ErrorCode.rebalance_in_progress
                ),
                "the group rebalances",
            )
            present.ask_to_join()
        for present in group[: number + 1]:
            present.hear_joined()
    for member in others:
        member.ask_to_sync()
    leader.sync({member.id: f"of {member.name}".encode() for member in group})
    for member in others:
        member.hear_synced()


# ── FindCoordinator ─────────────────────────────────────────────────────────────────────────────────


@each_version(ApiKey.FIND_COORDINATOR)
def test_find_coordinator(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        wait_for_coordinator(side, "found")
        key = ApiKey.FIND_COORDINATOR
        if version < 4:
            told = {"group": side.ask(key, version, key="found", key_type=0)}
            if version >= 1:
                told["empty"] = side.ask(key, version, key="", key_type=0)
            return told
        return {
            "groups": side.ask(key, version, key_type=0, coordinator_keys=("found", "other", "")),
            "none": side.ask(key, version, key_type=0, coordinator_keys=()),
            "twice": side.ask(key, version, key_type=0, coordinator_keys=("found", "found")),
        }

    same(sides, scenario)


# ── JoinGroup ───────────────────────────────────────────────────────────────────────────────────────


@each_version(ApiKey.JOIN_GROUP)
def test_refused_joins(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        wait_for_coordinator(side, "refused")

        def ask(group: str = "refused", member_id: str = "", **fields: object) -> Plain:
            answer = side.message(
                ApiKey.JOIN_GROUP,
                version,
                **join_fields(version, group, member_id, **fields),  # type: ignore[arg-type]
            )
            if answer.error_code == ErrorCode.member_id_required:
                side.aliases[answer.member_id] = "an id"
            return side.plain(answer)

        return {
            "no group": ask(""),
            "short session": ask(session_timeout_ms=99),
            "long session": ask(session_timeout_ms=1_800_001),
            "unknown member": ask(member_id="none-such"),
            "no protocols": ask(protocols=()),
            "no protocol type": ask(protocol_type=""),
        }

    same(sides, scenario)


@each_version(ApiKey.JOIN_GROUP)
def test_a_member_alone(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, f"alone-{version}", "one") as (one,):
            told = {"joined": one.join(version)}
            told["synced"] = one.sync({one.id: b"all of it"})
            told["heartbeat"] = one.heartbeat()
            told["joined again"] = one.join(version)
            told["synced again"] = one.sync({one.id: b"all of it"})
            told["left"] = one.leave()
            told["heard no more"] = one.heartbeat()
            return told

    same(sides, scenario)


@each_version(ApiKey.SYNC_GROUP)
def test_sync(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, f"sync-{version}", "one") as (one,):
            one.join()

            def ask(**changes: object) -> Plain:
                given: dict[str, object] = {
                    "group": one.group,
                    "member_id": one.id,
                    "generation": one.generation,
                    **changes,
                }
                fields = sync_fields(version, **given)  # type: ignore[arg-type]
                return side.ask(ApiKey.SYNC_GROUP, version, **fields)

            return {
                "no group": ask(group=""),
                "unknown group": ask(group="never seen"),
                "unknown member": ask(member_id="none-such"),
                "old generation": ask(generation=one.generation - 1),
                "next generation": ask(generation=one.generation + 1),
                "other protocol": ask(protocol_name="sticky"),
                "other protocol type": ask(protocol_type="connect"),
                "no protocol": ask(protocol_name=None, protocol_type=None),
                "right": ask(assignments={one.id: b"mine"}),
                "again": ask(),
                "assigned again": ask(assignments={one.id: b"another"}),
                "left": one.leave(),
                "gone": ask(),
            }

    same(sides, scenario)


@each_version(ApiKey.HEARTBEAT)
def test_heartbeat(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, f"heartbeat-{version}", "one") as (one,):
            told: dict[str, Plain] = {}

            def ask(**changes: object) -> Plain:
                given: dict[str, object] = {
                    "group_id": one.group,
                    "generation_id": one.generation,
                    "member_id": one.id,
                    **changes,
                }
                return side.ask(ApiKey.HEARTBEAT, version, **given)

            told["unknown group"] = ask()
            one.join()
            told["before the sync"] = ask()
            one.sync({one.id: b"mine"})
            told["right"] = ask()
            told["no group"] = ask(group_id="")
            told["unknown member"] = ask(member_id="none-such")
            told["no member"] = ask(member_id="")
            told["old generation"] = ask(generation_id=one.generation - 1)
            told["next generation"] = ask(generation_id=one.generation + 1)
            one.leave()
            told["empty group"] = ask()
            return told

    same(sides, scenario)


@each_version(ApiKey.LEAVE_GROUP)
def test_leave(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, f"leave-{version}", "one", two="instance") as (one, two):
            told = {"unknown group": one.leave(version)}
            stable(one)
            one.leave()
            two.join()
            two.sync({two.id: b"mine"})
            one.id = "none-such"
            told["unknown member"] = one.leave(version)
            one.group = ""
            told["no group"] = one.leave(version)
            if version >= 3:

                def leave(*identities: tuple[str, str | None]) -> Plain:
                    identified = tuple(
                        make(
                            ApiKey.LEAVE_GROUP, version, "MemberIdentity", member_id=one, group_instance_id=at
                        )
                        for one, at in identities
                    )
                    return side.ask(ApiKey.LEAVE_GROUP, version, group_id=two.group, members=identified)

                told["no members"] = leave()
                told["another's instance"] = leave(("none-such", "instance"))
                told["no such instance"] = leave(("", "other"))
                told["by instance"] = leave(("", "instance"), ("none-such", None))
            else:
                told["right"] = two.leave(version)
            return told

    same(sides, scenario)


def test_two_members(sides: tuple[Side, Side]) -> None:
    """The leader is told of both; the first hears of the second by its heartbeat."""

    def scenario(side: Side) -> Plain:
        with members(side, "two", "one", "other") as (one, other):
            told = {"first": one.join(), "first synced": one.sync({one.id: b"all"})}
            other.ask_to_join()
            eventually(
                lambda: one.heartbeat_message().error_code == ErrorCode.rebalance_in_progress, "a rebalance"
            )
            told["first again"] = one.join()
            told["second"] = other.hear_joined()
            told["heartbeat before the sync"] = one.heartbeat()
            other.ask_to_sync()
            told["synced"] = one.sync({one.id: b"one half", other.id: b"other half"})
            told["second synced"] = other.hear_synced()
            told["described"] = describe(side, 5, "two")
            told["left"] = other.leave()
            told["rebalances"] = one.heartbeat()
            told["described again"] = describe(side, 5, "two")
            return told

    same(sides, scenario)


def test_protocols_that_do_not_meet(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, "apart", "one", "other") as (one, other):
            stable(one)
            fields = join_fields(3, "apart", protocols=(("cooperative-sticky", subscription("subscribed")),))
            told = {"no common protocol": side.ask(ApiKey.JOIN_GROUP, 3, **fields)}
            fields = join_fields(3, "apart", protocol_type="connect")
            told["other type"] = side.ask(ApiKey.JOIN_GROUP, 3, **fields)
            other.ask_to_join(protocols=(("sticky", subscription("only")),))
            eventually(
                lambda: one.heartbeat_message().error_code == ErrorCode.rebalance_in_progress, "a rebalance"
            )
            told["what both know"] = one.join()
            other.hear_joined()
            return told

    same(sides, scenario)


def test_a_member_that_never_syncs(sides: tuple[Side, Side]) -> None:
    """Its session is over, or the rebalance: the others go on without it."""

    def scenario(side: Side) -> Plain:
        with members(side, "never-syncs", "one", "silent") as (one, silent):
            one.join(rebalance_timeout_ms=600, session_timeout_ms=6_000)
            one.sync({one.id: b"all"})
            silent.ask_to_join(rebalance_timeout_ms=600, session_timeout_ms=6_000)
            eventually(
                lambda: one.heartbeat_message().error_code == ErrorCode.rebalance_in_progress, "a rebalance"
            )
            one.join(rebalance_timeout_ms=600, session_timeout_ms=6_000)
            silent.hear_joined()
            told = {"synced": one.sync({one.id: b"half", silent.id: b"half"})}
            eventually(
                lambda: one.heartbeat_message().error_code == ErrorCode.rebalance_in_progress,
                "the silent one is out",
            )
            told["without it"] = one.join(rebalance_timeout_ms=600)
            told["alone"] = one.sync({one.id: b"all"})
            told["the silent one"] = silent.heartbeat()
            told["described"] = describe(side, 5, "never-syncs")
            return told

    same(sides, scenario)


def test_a_leader_that_never_syncs(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, "no-leader", "leads", "follows") as (leads, follows):
            leads.join(rebalance_timeout_ms=600)
            leads.sync({leads.id: b"all"})
            follows.ask_to_join(rebalance_timeout_ms=600)
            eventually(
                lambda: leads.heartbeat_message().error_code == ErrorCode.rebalance_in_progress, "a rebalance"
            )
            leads.join(rebalance_timeout_ms=600)
            follows.hear_joined()
            return {
                "told to join again": follows.sync(),
                "leads now": follows.join(rebalance_timeout_ms=600),
                "the old leader": leads.heartbeat(),
            }

    same(sides, scenario)


def test_a_silent_member(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, "silent", "one") as (one,):
            one.join(session_timeout_ms=300)
            one.sync({one.id: b"all"})
            eventually(
                lambda: (
                    side.message(
                        ApiKey.DESCRIBE_GROUPS, 5, groups=("silent",), include_authorized_operations=False
                    )
                    .groups[0]
                    .group_state
                    == "Empty"
                ),
                "the member is gone",
            )
            return {"gone": one.heartbeat(), "rejoin": one.join(), "described": describe(side, 5, "silent")}

    same(sides, scenario)


# ── static members (KIP-345) ────────────────────────────────────────────────────────────────────────


def test_two_members_with_one_instance_id(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        with members(side, "static", one="instance", other="instance") as (one, other):
            told = {"first": one.join(), "synced": one.sync({one.id: b"all"})}
            told["second"] = other.join()
            told["second synced"] = other.sync()
            told["first is fenced"] = one.heartbeat()
            told["first joins"] = one.join()
            told["first syncs"] = one.sync()
            told["first commits"] = side.ask(
                ApiKey.OFFSET_COMMIT,
                8,
                **commit_fields(
                    8,
                    "static",
                    side.create("static-topic"),
                    {0: 1},
                    member_id="none-such",
                    generation=one.generation,
                    instance_id="instance",
                ),
            )
            told["second is well"] = other.heartbeat()
            told["described"] = describe(side, 5, "static")
            told["first leaves"] = one.leave()
            told["second leaves"] = other.leave()
            told["empty"] = describe(side, 5, "static")
            return told

    same(sides, scenario)


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────


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


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────


def describe(side: Side, version: int, *groups: str, operations: bool = False) -> Plain:
    return side.ask(ApiKey.DESCRIBE_GROUPS, version, groups=groups, include_authorized_operations=operations)


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
