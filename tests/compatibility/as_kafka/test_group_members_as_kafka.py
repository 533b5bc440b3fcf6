"""Members of classic groups, good and bad, answered as Apache Kafka answers them, in every version.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import each_version, same
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.groups.classic_groups import describe, members, stable
from support.groups.group_requests import (
    commit_fields,
    join_fields,
    subscription,
    sync_fields,
    wait_for_coordinator,
)
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded


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
