"""Members of streams groups (KIP-1071) answered as Apache Kafka answers, step by step.

The heartbeat interval is left out: it is shorter here while a member may soon get other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nilometer.wire.api_keys import ApiKey
from support.brokers.comparison import same
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.groups.consumer_group_requests import ConsumerGroup
from support.groups.group_requests import wait_for_coordinator
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded

KEY, VERSION = ApiKey.STREAMS_GROUP_HEARTBEAT, 1


def topics(*infos: tuple[str, int]) -> tuple[Any, ...]:
    return tuple(make(KEY, VERSION, "TopicInfo", name=name, partitions=count) for name, count in infos)


def subtopology(name: str, *sources: str, changelog: str = "", **fields: Any) -> Any:
    stores = topics((changelog, 0)) if changelog else ()
    return make(
        KEY,
        VERSION,
        "Subtopology",
        subtopology_id=name,
        source_topics=sources,
        **{"state_changelog_topics": stores} | fields,
    )


def topology(*subtopologies: Any, epoch: int = 0) -> Any:
    return make(KEY, VERSION, "Topology", epoch=epoch, subtopologies=subtopologies)


def tasks(**partitions: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(
        make(KEY, VERSION, "TaskIds", subtopology_id=name.removeprefix("_"), partitions=found)
        for name, found in partitions.items()
    )


class StreamsGroup:
    def __init__(self, side: Side, group_id: str) -> None:
        self.side, self.group_id = side, group_id
        if group_id:
            wait_for_coordinator(side, group_id)

    def beat(self, member_id: str, epoch: int, version: int = VERSION, **fields: Any) -> Mapping[str, Any]:
        if epoch == 0:
            nothing = {"active_tasks": (), "standby_tasks": (), "warmup_tasks": ()}
            fields = {"rebalance_timeout_ms": 60_000, "process_id": f"p-{member_id}", **nothing} | fields
        else:
            unchanged = {"active_tasks": None, "standby_tasks": None, "warmup_tasks": None}
            fields = {"rebalance_timeout_ms": -1, **unchanged} | fields
        reply = self.side.ask(
            KEY,
            version,
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            **{"client_tags": None, "task_offsets": None, "task_end_offsets": None} | fields,
        )
        return {name: value for name, value in reply.items() if name != "heartbeat_interval"}

    def describe(self, version: int = 1, **fields: Any) -> Plain:
        key = ApiKey.STREAMS_GROUP_DESCRIBE
        return self.side.ask(
            key, version, group_ids=(self.group_id,), include_authorized_operations=True, **fields
        )

    def enter(self, member_id: str, what: Any, **fields: Any) -> Mapping[str, Any]:
        """Join, and wait until the member has tasks; return the reply with them."""
        reply = self.beat(member_id, 0, topology=what, **fields)
        found = [reply]

        def has_tasks() -> bool:
            if not found[-1]["active_tasks"]:
                found.append(self.beat(member_id, found[-1]["member_epoch"]))
            return bool(found[-1]["active_tasks"])

        eventually(has_tasks, f"{self.side.name} assigns tasks")
        return found[-1]


def known(side: Side, name: str, partitions: int = 1) -> None:
    """A coordinator learns of topics in its own time: until it assigns this one, nothing begins."""
    if name not in side.topic_ids:
        side.create(name, partitions)
    probe = StreamsGroup(side, f"has heard of {name}")
    probe.enter("m", topology(subtopology("0", name)))
    probe.beat("m", -1)


def test_refused_heartbeats(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        known(side, "streamed", 2)
        group, plain = StreamsGroup(side, "refused-1071"), topology(subtopology("0", "streamed"))
        told = {
            "unknown group": group.beat("m", 1),
            "leaves an unknown group": group.beat("m", -1),
            "no member id": group.beat("", 0, topology=plain),
            "blank member id": group.beat(" ", 0, topology=plain),
            "empty rack": group.beat("m", 0, topology=plain, rack_id=""),
            "empty instance": group.beat("m", 0, topology=plain, instance_id=""),
            "no group id": StreamsGroup(side, "").beat("m", 0, topology=plain),
            "no topology": group.beat("m", 0),
            "no rebalance timeout": group.beat("m", 0, topology=plain, rebalance_timeout_ms=-1),
            "has tasks": group.beat("m", 0, topology=plain, active_tasks=tasks(_0=(0,))),
            "has standby tasks": group.beat("m", 0, topology=plain, standby_tasks=tasks(_0=(0,))),
            "does not say": group.beat("m", 0, topology=plain, active_tasks=None),
            "no such epoch": group.beat("m", -3),
            "static leave": group.beat("m", -2),
            "regular expressions": group.beat(
                "m", 0, topology=topology(subtopology("0", "streamed", source_topic_regex=("s.*",)))
            ),
            "counted changelog": group.beat(
                "m",
                0,
                topology=topology(subtopology("0", "streamed", state_changelog_topics=topics(("log", 3)))),
            ),
            "internal topics": group.beat("m", 0, topology=topology(subtopology("0", "__consumer_offsets"))),
            "no topic's name": group.beat("m", 0, topology=topology(subtopology("0", "a b"))),
            "no source topics": group.beat("m", 0, topology=topology(subtopology("0"))),
            "no writer": group.beat(
                "m", 0, topology=topology(subtopology("0", repartition_source_topics=topics(("r", 0))))
            ),
            "described": group.describe(),
        }
        found = group.enter("m", plain)
        epoch = found["member_epoch"]
        told |= {
            "unknown member": group.beat("n", 1),
            "unknown member leaves": group.beat("n", -1),
            "unknown instance": group.beat("m", epoch, instance_id="i"),
            "epoch ahead": group.beat("m", epoch + 9),
            "an old epoch": group.beat("m", epoch - 1),
            "topology again": group.beat("m", epoch, topology=plain),
            "one kind of tasks": group.beat("m", epoch, active_tasks=()),
            "unknown subtopology": group.beat(
                "m", epoch, active_tasks=tasks(_7=(0,)), standby_tasks=(), warmup_tasks=()
            ),
            "unknown task": group.beat(
                "m", epoch, active_tasks=tasks(_0=(2,)), standby_tasks=(), warmup_tasks=()
            ),
            "another topology": group.beat(
                "n", 0, topology=topology(subtopology("0", "streamed"), subtopology("1", "streamed"))
            ),
            "offset twice": group.beat(
                "m",
                epoch,
                task_offsets=2
                * (make(KEY, VERSION, "TaskOffset", subtopology_id="0", partition=0, offset=3),),
            ),
            "deleted with members": side.ask(ApiKey.DELETE_GROUPS, 3, groups_names=(group.group_id,)),
            "described as a consumer group": ConsumerGroup(side, "refused-1071").describe(),
            "described as a classic group": side.ask(
                ApiKey.DESCRIBE_GROUPS, 6, groups=(group.group_id,), include_authorized_operations=False
            ),
            "a description": side.ask(
                ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
                0,
                group_id=group.group_id,
                member_id="m",
                topology_epoch=0,
            ),
        }
        consumers = ConsumerGroup(side, "consumers-1071")
        consumers.enter("c", "streamed")
        told["a consumer group"] = StreamsGroup(side, consumers.name).beat("m", 0, topology=plain)
        told["described as a streams group"] = StreamsGroup(side, consumers.name).describe()
        consumers.beat("c", -1)
        group.beat("m", -1)
        return told

    same(sides, scenario)


def test_one_member(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        known(side, "one-streamed", 2)
        group, plain = StreamsGroup(side, "one-1071"), topology(subtopology("0", "one-streamed"))
        told: dict[str, Plain] = {"enters": group.enter("m", plain)}
        epoch = told["enters"]["member_epoch"]
        told["described"] = group.describe()
        told["described with its topology"] = group.describe(include_topology_description=True)
        told["described in version 0"] = group.describe(0)
        told["beats"] = group.beat("m", epoch)
        told["beats in version 0"] = group.beat("m", epoch, 0)
        told["says all"] = group.beat(
            "m", epoch, active_tasks=tasks(_0=(0, 1)), standby_tasks=(), warmup_tasks=()
        )
        told["has an endpoint"] = group.beat(
            "m", epoch, user_endpoint=make(KEY, VERSION, "Endpoint", host="h", port=65_000)
        )
        epoch = told["has an endpoint"]["member_epoch"]
        offsets = (make(KEY, VERSION, "TaskOffset", subtopology_id="0", partition=1, offset=3),)
        told["has offsets"] = group.beat("m", epoch, task_offsets=offsets, task_end_offsets=offsets)
        told["described again"] = group.describe()
        told["starts again"] = group.beat("m", 0, topology=plain)
        told["listed"] = [
            each
            for each in side.ask(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=("streams",))["groups"]
            if each["group_id"] == "one-1071"
        ]
        told["shuts down"] = group.beat("m", told["starts again"]["member_epoch"], shutdown_application=True)
        told["leaves"] = group.beat("m", -1)
        told["is gone"] = group.beat("m", 5)
        told["empty"] = group.describe()
        told["deleted"] = side.ask(ApiKey.DELETE_GROUPS, 3, groups_names=("one-1071",))
        told["described at last"] = group.describe()
        return told

    same(sides, scenario)


def test_what_is_missing(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        known(side, "narrow", 1)
        known(side, "wide", 3)
        told: dict[str, Plain] = {}
        for what, found in {
            "a source topic": topology(subtopology("0", "not-there", "neither", "narrow")),
            "topics to join": topology(
                subtopology(
                    "0",
                    "narrow",
                    "wide",
                    copartition_groups=(make(KEY, VERSION, "CopartitionGroup", source_topics=(0, 1)),),
                )
            ),
        }.items():
            group = StreamsGroup(side, f"without-{what}")
            told[what] = group.beat("m", 0, topology=found)
            told[f"described without {what}"] = group.describe()
            group.beat("m", -1)
        side.create("counts-log", 2)
        known(side, "counts-log", 2)
        group = StreamsGroup(side, "wrong-1071")
        told["wrong"] = group.beat(
            "m", 0, topology=topology(subtopology("0", "wide", changelog="counts-log"))
        )
        group.beat("m", -1)
        return told

    same(sides, scenario)


def test_internal_topics_are_created(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        known(side, "words", 3)
        group = StreamsGroup(side, "creates-1071")
        configs = (make(KEY, VERSION, "KeyValue", key="cleanup.policy", value="compact"),)
        log = make(KEY, VERSION, "TopicInfo", name="by-word-log", replication_factor=1, topic_configs=configs)
        what = topology(
            subtopology("0", "words", repartition_sink_topics=("by-word",)),
            subtopology("1", repartition_source_topics=topics(("by-word", 2)), state_changelog_topics=(log,)),
        )
        told: dict[str, Plain] = {"joins": group.beat("m", 0, topology=what)}
        found = group.enter("m", what)
        told["enters"] = {**found, "member_epoch": None, "status": None}
        [described] = group.describe()["groups"]
        told["described"] = described["topology"]
        told["log"] = len(side.leaders("by-word-log"))
        group.beat("m", -1)
        return told

    same(sides, scenario)


def test_static_members(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        known(side, "static-streamed", 2)
        group, plain = StreamsGroup(side, "static-1071"), topology(subtopology("0", "static-streamed"))
        told: dict[str, Plain] = {"enters": group.enter("m", plain, instance_id="i")}
        epoch = told["enters"]["member_epoch"]
        told["another with its instance id"] = group.beat("n", 0, topology=plain, instance_id="i")
        told["beats as another"] = group.beat("n", epoch, instance_id="i")
        told["leaves for a while"] = group.beat("m", -2, instance_id="i")
        told["comes back"] = group.beat("n", 0, topology=plain, instance_id="i", process_id="p-m")
        told["described"] = group.describe()
        told["the former one"] = group.beat("m", epoch, instance_id="i")
        told["leaves"] = group.beat("n", -1, instance_id="i")
        return told

    same(sides, scenario)
