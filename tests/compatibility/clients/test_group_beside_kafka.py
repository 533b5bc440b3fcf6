"""Our consumer in one group with librdkafka's and Apache Kafka's own; and `nilometer group`.

`CLIENTS_AGAINST=apache-kafka pytest -k beside_kafka tests/compatibility` runs the same on Apache Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue
from threading import Event
from typing import Any

import confluent_kafka
import pytest

from nilometer.cli.main import run as run_command
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.admin.group_descriptions import GroupDescription
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.kafka.apache_kafka import ApacheKafka, ensure_java, java_command

PARTITIONS = 6
SETTLED_S = 25.0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("groups")
    quick = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "300",
    }
    if os.environ.get("CLIENTS_AGAINST") == "apache-kafka":
        with ApacheKafka(folder, overrides=quick) as apache:
            yield apache.bootstrap
    else:
        with NilometerBroker(folder / "data", quick) as broker:
            yield broker.bootstrap


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


def nilometer(*arguments: str) -> Outcome:
    """The command, run in this process."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(list(arguments))
    out.seek(0)
    return Outcome(code, out.read(), err.getvalue())


class Ours:
    """A consumer of ours that polls until it is stopped."""

    def __init__(self, bootstrap: str, group: str, topic: str, **keys: Any) -> None:
        self.values: Counter[bytes] = Counter()
        self._topic = topic
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "ours",
            "auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in keys.items()},
        }
        if keys.get("group_protocol") != "consumer":
            self._settings["heartbeat.interval.ms"] = 200
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def __aenter__(self) -> Ours:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        assert self._task is not None
        await self._task

    async def _run(self) -> None:
        async with Consumer(Runtime.system(), self._settings) as consumer:
            await consumer.subscribe([self._topic])
            while not self._stopping:
                for record in await consumer.poll(timeout_ms=50):
                    self.values[record.value or b""] += 1


class Librdkafka:
    """librdkafka's consumer, polled from this loop."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        self.values: Counter[bytes] = Counter()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": "librdkafka",
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": 200,
            }
        )
        self._topic = topic
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Librdkafka:
        self._consumer.subscribe([self._topic])
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await asyncio.to_thread(self._consumer.close)

    async def _run(self) -> None:
        while True:
            message = self._consumer.poll(0)
            if message is None:
                await asyncio.sleep(0.01)
            elif message.error() is None:
                self.values[message.value()] += 1


@contextlib.asynccontextmanager
async def java_member(
    bootstrap: str, group: str, topic: str, assignor: str, protocol: str = "classic"
) -> AsyncIterator[Counter[bytes]]:
    """Apache Kafka's console consumer: what it printed so far."""
    settings = {"group.protocol": protocol, "client.id": "java"}
    if protocol == "classic":
        settings["partition.assignment.strategy"] = f"org.apache.kafka.clients.consumer.{assignor}"
        settings["heartbeat.interval.ms"] = "200"
    command = java_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--group", group, "--topic", topic, "--from-beginning"),
        *(word for key, value in settings.items() for word in ("--command-property", f"{key}={value}")),
    )
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    values: Counter[bytes] = Counter()

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            values[line.rstrip()] += 1

    reading = asyncio.create_task(read())
    try:
        yield values
    finally:
        process.terminate()
        await process.wait()
        await reading


class Watcher:
    """Looks at a group from outside until it is as it should be."""

    def __init__(self, admin: Admin, group: str) -> None:
        self._groups = GroupAdmin(admin.client, 10_000)
        self._group = group

    async def settled(self, members: int) -> GroupDescription:
        """Stable with so many members that have all partitions between them, evenly."""
        async with asyncio.timeout(SETTLED_S):
            while True:
                found = (await self._groups.describe([self._group]))[self._group]
                if isinstance(found, GroupDescription) and found.state == "Stable":
                    sizes = [len(member.assignment) for member in found.members]
                    if len(sizes) == members and sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1:
                        partitions = [one for member in found.members for one in member.assignment]
                        assert len(set(partitions)) == PARTITIONS
                        return found
                await asyncio.sleep(0.1)


async def produce(producer: Producer, topic: str, begin: int, count: int) -> set[bytes]:
    values = {b"%d" % number for number in range(begin, begin + count)}
    for number, value in enumerate(sorted(values)):
        await producer.send(topic, value, partition=number % PARTITIONS)
    await producer.flush()
    return values


async def read_by(values: set[bytes], *seen: Counter[bytes]) -> None:
    async with asyncio.timeout(SETTLED_S):
        while not values <= {value for each in seen for value in each}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("ours", "librdkafka", "java"),
    [
        ("range", "range", "RangeAssignor"),
        ("cooperative-sticky", "cooperative-sticky", "CooperativeStickyAssignor"),
    ],
)
@pytest.mark.java
def test_c2_one_group_of_three_clients_shares_a_topic_whichever_leads(
    kafka: str, ours: str, librdkafka: str, java: str
) -> None:
    """Ours leads first; when it goes one of the others does; then it comes back as a follower."""
    ensure_java()
    topic = group = f"mixed-{ours}"
    strategy = {"partition_assignment_strategy": ours}

    async def scenario() -> None:
        system = Runtime.system()
        where = {"bootstrap.servers": kafka}
        async with Admin(system, where) as admin, Producer(system, where) as producer:
            await admin.create_topic(NewTopic(topic, PARTITIONS, 1))
            watcher = Watcher(admin, group)
            first, again = Ours(kafka, group, topic, **strategy), Ours(kafka, group, topic, **strategy)
            other = Librdkafka(kafka, group, topic, librdkafka)
            sent: set[bytes] = set()
            async with contextlib.AsyncExitStack() as stack:
                async with first:
                    await watcher.settled(1)
                    await stack.enter_async_context(other)
                    await watcher.settled(2)
                    printed = await stack.enter_async_context(java_member(kafka, group, topic, java))
                    found = await watcher.settled(3)
                    assert {member.client_id for member in found.members} >= {"ours", "librdkafka"}
                    assert found.assignor == ours
                    sent |= await produce(producer, topic, 0, 300)
                    await read_by(sent, first.values, other.values, printed)
                await watcher.settled(2)
                sent |= await produce(producer, topic, 300, 300)
                await read_by(sent, first.values, other.values, printed)
                async with again:
                    await watcher.settled(3)
                    sent |= await produce(producer, topic, 600, 300)
                    everyone = (first.values, other.values, printed, again.values)
                    await read_by(sent, *everyone)
                    assert all(len(each) >= 50 for each in everyone)

    asyncio.run(scenario())


@pytest.mark.java
def test_kip_848_members_share_a_topic_with_javas_and_with_a_classic_one(kafka: str) -> None:
    ensure_java()
    topic = group = "next-generation"

    async def scenario() -> None:
        system = Runtime.system()
        where = {"bootstrap.servers": kafka}
        async with Admin(system, where) as admin, Producer(system, where) as producer:
            await admin.create_topic(NewTopic(topic, PARTITIONS, 1))
            watcher = Watcher(admin, group)
            first = Ours(kafka, group, topic, group_protocol="consumer", group_remote_assignor="range")
            second = Ours(kafka, group, topic, group_protocol="consumer", group_instance_id="static")
            classic = Ours(kafka, group, topic, partition_assignment_strategy="cooperative-sticky,range")
            sent: set[bytes] = set()
            async with contextlib.AsyncExitStack() as stack:
                async with first:
                    await watcher.settled(1)
                    await stack.enter_async_context(second)
                    found = await watcher.settled(2)
                    assert (found.group_type, found.assignor) == ("consumer", "range")
                    printed = await stack.enter_async_context(
                        java_member(kafka, group, topic, "", "consumer")
                    )
                    await watcher.settled(3)
                    sent |= await produce(producer, topic, 0, 300)
                    await read_by(sent, first.values, second.values, printed)
                await watcher.settled(2)
                async with classic:
                    await watcher.settled(3)
                    sent |= await produce(producer, topic, 300, 300)
                    everyone = (first.values, second.values, printed, classic.values)
                    await read_by(sent, *everyone)
                    assert all(len(each) >= 50 for each in everyone)

    asyncio.run(scenario())


async def read_as_static_member(kafka: str, topic: str, group: str, told: Queue[str], stop: Event) -> None:
    """Fill ``topic``, read it to its end and commit, then stay in the group until ``stop``; then be gone."""
    system = Runtime.system()
    where = {"bootstrap.servers": kafka}
    async with Admin(system, where) as admin, Producer(system, where) as producer:
        await admin.create_topic(NewTopic(topic, PARTITIONS, 1))
        sent = await produce(producer, topic, 0, 60)
        groups = GroupAdmin(admin.client, 10_000)
        async with Ours(kafka, group, topic, group_instance_id="i", auto_commit_interval_ms=50) as reader:
            await Watcher(admin, group).settled(1)
            await read_by(sent, reader.values)
            while sum(one.offset for one in (await groups.committed(group)).values()) < 60:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            told.put("read")
            while not stop.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        members = (await groups.describe([group]))[group]
        assert isinstance(members, GroupDescription)
        coordinator = members.coordinator_id
        left = await admin.client.send_to(
            coordinator, ApiKey.LEAVE_GROUP, lambda api: _leave(api, group, "i")
        )
        assert left.members[0].error_code == ErrorCode.none


def test_the_command_looks_after_groups(kafka: str) -> None:
    topic, group = "commanded", "crew"

    def run(*arguments: str) -> Any:
        done = nilometer("group", *arguments, "--json", "--bootstrap-server", kafka)
        assert done.code == 0, done.err
        return json.loads(done.out)

    told: Queue[str] = Queue()
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: asyncio.run(read_as_static_member(kafka, topic, group, told, stop)))
        try:
            assert told.get(timeout=SETTLED_S) == "read"
            (one,) = run("describe", group)["groups"]
            (member,) = one["members"]
            assert (one["state"], one["type"], one["assignor"]) == ("Stable", "classic", "range")
            assert (member["client_id"], member["instance"], member["topics"]) == ("ours", "i", [topic])
            assert len(member["assignment"]) == PARTITIONS
            everything = ("--all-topics", "--to-earliest", "--execute", "--bootstrap-server", kafka)
            refused = nilometer("group", "reset-offsets", group, *everything)
            assert refused.code == 1
            assert "NON_EMPTY_GROUP" in refused.err
        finally:
            stop.set()
        reading.result(timeout=SETTLED_S)

    assert {"group": group, "type": "classic", "state": "Empty", "protocol_type": "consumer"} in run(
        "list", "--state", "Empty", "--type", "classic"
    )["groups"]
    offsets = run("describe", group)["groups"][0]["offsets"]
    assert [one["partition"] for one in offsets] == list(range(PARTITIONS))
    expected = (10, 0, 0, 10)
    assert {(one["committed"], one["lag"], one["stable_lag"], one["high_watermark"]) for one in offsets} == {
        expected
    }

    shown = run("reset-offsets", group, "--topic", f"{topic}:0,2", "--shift-by", "-4")
    assert [one["after"] for one in shown["groups"][group]] == [6, 6]
    assert not shown["executed"]
    assert {one["lag"] for one in run("describe", group)["groups"][0]["offsets"]} == {0}
    run("reset-offsets", group, "--topic", f"{topic}:0,2", "--shift-by", "-4", "--execute")
    run("reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "99", "--execute")
    run("reset-offsets", group, "--topic", f"{topic}:3", "--by-duration", "PT1H", "--execute")
    run("reset-offsets", group, "--topic", f"{topic}:4", "--to-datetime", "2000-01-01T00:00:00", "--execute")
    after = {one["partition"]: one["committed"] for one in run("describe", group)["groups"][0]["offsets"]}
    assert after == {0: 6, 1: 10, 2: 6, 3: 0, 4: 0, 5: 10}

    assert run("delete-offsets", group, "--topic", f"{topic}:5", "--yes") == {f"{topic}-5": None}
    text = nilometer("group", "describe", group, "--bootstrap-server", kafka)
    assert "Total lag 28." in text.out
    as_member = ("--group", group, "--exit-at-end", "--from-beginning", "--bootstrap-server", kafka)
    printed = nilometer("consume", topic, *as_member)
    assert len(printed.out.splitlines()) == 38
    assert {one["lag"] for one in run("describe", group)["groups"][0]["offsets"]} == {0}
    assert run("delete", group, "--yes") == {group: None}
    gone = nilometer("group", "describe", group, "--bootstrap-server", kafka)
    assert gone.code == 1
    assert "GROUP_ID_NOT_FOUND" in gone.err


def _leave(api: Any, group: str, instance_id: str) -> Any:
    member = api.make_request("MemberIdentity", member_id="", group_instance_id=instance_id)
    return api.request(group_id=group, members=(member,))


def test_static_members_come_back_to_their_partitions_without_a_rebalance(kafka: str) -> None:
    topic = group = "static"

    async def scenario() -> None:
        system = Runtime.system()
        where = {"bootstrap.servers": kafka}
        async with Admin(system, where) as admin:
            await admin.create_topic(NewTopic(topic, PARTITIONS, 1))
            watcher = Watcher(admin, group)
            async with Ours(kafka, group, topic, group_instance_id="one"):
                async with Ours(kafka, group, topic, group_instance_id="two"):
                    before = await watcher.settled(2)
                async with Ours(kafka, group, topic, group_instance_id="two"):
                    old_id = {one.instance_id: one.member_id for one in before.members}["two"]
                    while True:
                        after = await watcher.settled(2)
                        if all(member.member_id != old_id for member in after.members):
                            break
                        await asyncio.sleep(0.05)
            shares = [{one.instance_id: one.assignment for one in each.members} for each in (before, after)]
            assert shares[0] == shares[1]
            assert TopicPartition(topic, 0) in shares[0]["one"]

    asyncio.run(scenario())
