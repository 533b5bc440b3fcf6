"""Consumer groups of KIP-848 answered as Apache Kafka answers, step by step.

Each scenario is a conversation that is held with both brokers; what they say must be the same. The assignor
is ``range``: it leaves an implementation no choice of which partitions a member gets.
"""

from __future__ import annotations

import pytest

from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import same
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.groups.consumer_group_requests import COOPERATIVE, ConsumerGroup

pytestmark = pytest.mark.recorded


def topic(side: Side, name: str, partitions: int = 4) -> None:
    """A coordinator learns of topics in its own time: until it would assign this one, nothing begins."""
    if name in side.topic_ids:
        return
    side.create(name, partitions)
    probe = ConsumerGroup(side, f"has heard of {name}")

    def is_known() -> bool:
        probe.beat("m", -1)
        found = probe.enter("m", name)["assignment"]
        return found is not None and len(found["topic_partitions"]) == 1

    eventually(is_known, f"{side.name} assigns {name}")
    probe.beat("m", -1)


@pytest.mark.parametrize("version", [0, 1])
def test_refused_heartbeats(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        topic(side, "shared-848")
        group = ConsumerGroup(side, f"refused-{version}", version)
        full = {"topics": ("shared-848",), "owned": {}, "rebalance_ms": 1_000}
        told = {
            "unknown group": group.beat("m", 1),
            "leaving an unknown group": group.beat("m", -1),
            "no rebalance time-out": group.beat("m", 0, topics=("shared-848",), owned={}),
            "nothing said of partitions": group.beat("m", 0, topics=("shared-848",), rebalance_ms=1_000),
            "joins with partitions": group.beat("m", 0, **{**full, "owned": {"shared-848": [0]}}),
            "no subscription": group.beat("m", 0, owned={}, rebalance_ms=1_000),
            "empty instance": group.beat("m", 0, instance="", **full),
            "empty rack": group.beat("m", 0, rack="", **full),
            "unknown assignor": group.beat("m", 0, assignor="best", **full),
            "leaves as static without an instance": group.beat("m", -2),
            "no such epoch": group.beat("m", -3),
            "no member id": group.beat("", 1),
        }
        if version == 1:
            told["joins without an id"] = group.beat("", 0, **full)
            told["bad expression"] = group.enter("m", regex="(?=x)", topics=None)
        told["joins"] = group.enter("m")
        return {
            **told,
            "unknown member": group.beat("n", 1),
            "unknown member leaves": group.beat("n", -1),
            "unknown instance": group.beat("n", 1, instance="i"),
            "unknown instance leaves": group.beat("n", -2, instance="i"),
            "epoch ahead": group.beat("m", 9, owned={}),
            "left": group.beat("m", -1),
        }

    same(sides, scenario)


def test_the_requests_of_one_member(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic(side, "shared-848")
        topic(side, "other-848", 2)
        group = ConsumerGroup(side, "one")
        told = {"enters": group.enter("m")}
        told["beats"] = group.beat("m", 1)
        told["says all"] = group.beat(
            "m", 1, topics=("shared-848",), owned={"shared-848": [0, 1, 2, 3]}, rebalance_ms=9
        )
        told["wants more"] = group.beat("m", 1, topics=("shared-848", "other-848"))
        told["wants less"] = group.beat("m", 2, topics=("other-848",))
        told["is still revoking"] = group.beat("m", 2)
        told["described"] = group.describe()
        told["has revoked"] = group.beat("m", 2, owned={"other-848": [0, 1]})
        told["nothing new"] = group.beat("m", 3, topics=("other-848",))
        told["starts again"] = group.enter("m", "other-848")
        told["leaves"] = group.beat("m", -1)
        told["is gone"] = group.beat("m", 3)
        told["empty"] = group.describe()
        told["listed"] = group.listed()
        told["comes again"] = group.enter("m")
        return told

    same(sides, scenario)


def test_two_members_reconcile(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic(side, "shared-848")
        group = ConsumerGroup(side, "two")
        told = {"a enters": group.enter("a"), "b enters": group.enter("b")}
        told["b waits"] = group.beat("b", 2)
        told["a is told"] = group.beat("a", 1)
        told["a has not revoked"] = group.beat("a", 1, owned={"shared-848": [0, 1, 2]})
        told["in between"] = group.describe()
        told["a has revoked"] = group.beat("a", 1, owned={"shared-848": [0, 1]})
        told["a lost that reply"] = group.beat("a", 1, owned={"shared-848": [0, 1]})
        told["a claims too much"] = group.beat("a", 1, owned={"shared-848": [0, 1, 2]})
        told["b is given"] = group.beat("b", 2)
        told["at rest"] = group.describe()
        told["b leaves"] = group.beat("b", -1)
        told["a takes over"] = group.beat("a", 2)
        return told

    same(sides, scenario)


def test_static_members(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic(side, "shared-848")
        group = ConsumerGroup(side, "static")
        told = {"enters": group.enter("a", instance="i")}
        told["the instance is taken"] = group.enter("b", instance="i")
        told["another of that name"] = group.beat("b", 1, instance="i")
        told["goes away"] = group.beat("a", -2, instance="i")
        told["away"] = group.describe()
        told["a beat from away"] = group.beat("a", 1, instance="i")
        told["comes back"] = group.enter("b", instance="i")
        told["the one before"] = group.beat("a", 1, instance="i")
        told["leaves under the old id"] = group.beat("a", -1, instance="i")
        told["described"] = group.describe()
        told["leaves for good"] = group.beat("b", -1, instance="i")
        told["comes again"] = group.enter("c", instance="i")
        return told

    same(sides, scenario)


def test_offsets_in_member_epochs(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic(side, "shared-848")
        group = ConsumerGroup(side, "offsets")
        group.enter("a")
        group.enter("b")
        group.beat("a", 1)
        told = {
            "commits in its epoch": group.commit("a", 1, 0, 3),
            "b commits": group.commit("b", 2, 3),
            "commit without a member": group.commit("", -1, 0),
            "a stranger commits": group.commit("x", 2, 0),
            "from the future": group.commit("a", 2, 0),
        }
        group.beat("a", 1, owned={"shared-848": [0, 1]})
        told["kept since"] = group.commit("a", 1, 0, 1)
        told["given away"] = group.commit("a", 1, 3)
        told["fetches"] = group.fetch("a", 2)
        told["fetches in another epoch"] = group.fetch("a", 1)
        told["a stranger fetches"] = group.fetch("x", 1)
        told["fetch without a member"] = group.fetch(None, -1)
        return told

    same(sides, scenario)


def test_regular_expressions(sides: tuple[Side, Side]) -> None:
    """Kafka matches in the background: only what it comes to is compared."""

    def scenario(side: Side) -> Plain:
        topic(side, "regex-a", 2)
        topic(side, "regex-b", 1)
        group = ConsumerGroup(side, "by-regex")
        first = group.message("m", 0, regex="regex-[ab]", owned={}, rebalance_ms=30_000, assignor="range")
        assert first.error_code == ErrorCode.none

        def settled() -> list[Plain]:
            found: list[Plain] = []

            def is_settled() -> bool:
                described = group.describe()["groups"][0]
                epoch = described["members"][0]["member_epoch"]
                answer = group.beat("m", epoch, regex="regex-[ab]", owned={}, rebalance_ms=30_000, topics=())
                found[:] = [answer["assignment"]]
                return bool(answer["assignment"] and len(answer["assignment"]["topic_partitions"]) == 2)

            eventually(is_settled, f"{side.name} has matched the topics")
            return found

        return {"assigned": settled(), "bad": group.enter("n", regex="*", topics=None)}

    same(sides, scenario)


def test_a_classic_member_in_a_consumer_group(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic(side, "shared-848")
        group = ConsumerGroup(side, "mixed")
        group.enter("a")
        asked = group.join()
        assert asked.error_code == ErrorCode.member_id_required
        member_id = asked.member_id
        side.aliases[member_id] = "the classic one"
        told: dict[str, Plain] = {}
        told["other protocol type"] = side.plain(group.join(member_id, protocol_type="connect").error_code)
        joined = group.join(member_id)
        told["joined"] = side.plain(joined)
        told["synced"] = group.sync(member_id, joined.generation_id)
        told["synced in another generation"] = group.sync(member_id, 9)
        told["synced with another protocol"] = group.sync(
            member_id, joined.generation_id, protocol_name="range"
        )
        told["beats"] = group.classic_heartbeat(member_id, joined.generation_id)
        told["beats of the other protocol"] = group.classic_heartbeat("a", 1)
        told["a second one, of another protocol"] = side.plain(
            group.join("x", protocols=(("range", COOPERATIVE[0][1]),)).error_code
        )
        described = group.describe()["groups"][0]
        told["types"] = sorted(member["member_type"] for member in described["members"])
        group.beat("a", -1)
        told["the last of the new protocol left"] = [
            (each["group_type"], each["group_state"]) for each in group.listed()
        ]
        told["and the classic one hears"] = group.classic_heartbeat(member_id, joined.generation_id)
        return told

    same(sides, scenario)
