"""The modules that a request executes between its connection and its response:
``PYTHONPATH=tests python -m architecture.modules_of_requests`` writes their table into docs/architecture.md.

A broker and a client run in this process, on a virtual network. A profile hook notes each module that runs
from when the client sends a request until it has the response. A request is sent several times, and a module
counts that runs each time: what runs by chance at the same time, such as housekeeping, does not. Not counted
are the connection itself, and what stands below all requests: the wire format, the runtime, the log.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from architecture.measure import PAGE, SOURCE
from nilometer.broker.broker import Broker
from nilometer.broker.settings.config import BrokerConfig
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.simulation.workload.transactions import TransactionalSession, make_client
from nilometer.simulation.world import World
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder

BEGIN, END = "<!-- requests: begin -->\n", "<!-- requests: end -->"
TIMES = 5
"""How often each request is sent."""
LAST_BY_NAME = 12
"""The last version of Produce and Fetch that names topics."""
BOOTSTRAP = "127.0.0.1:9092"
PARTITION = TopicPartition("t", 0)
BELOW = ("wire.", "runtime.", "storage.", "simulation.", "client.")
BESIDE = {"identifiers", "invariants", "broker.connection"}
SETTINGS = {
    "listeners": f"PLAINTEXT://{BOOTSTRAP}",
    "log.dirs": "/data/1",
    "node.id": "1",
    "nilometer.coordination": "local:/data/coordination",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


@functools.cache
def executed() -> Mapping[str, frozenset[str]]:
    """Return the modules that each request executes, by the request's name."""
    found: dict[str, list[set[str]]] = {}
    world = World(1)
    world.run(lambda world: _play(world, found), limit_s=600)
    assert world.failures == []
    return {name: frozenset(set[str].intersection(*each)) for name, each in found.items()}


async def _play(world: World, found: dict[str, list[set[str]]]) -> None:
    machine, serves = world.host("m"), asyncio.Event()

    async def broker(runtime: Runtime) -> None:
        runtime.disk.make_directories("/data/1")
        await Broker(BrokerConfig(SETTINGS), runtime).start()
        serves.set()
        await asyncio.Event().wait()

    async def client(runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": BOOTSTRAP}) as admin:
            await admin.create_topic(NewTopic(PARTITION.topic, 1, 1))
        async with make_client(runtime, BOOTSTRAP, "measure") as connected:
            await send_all(connected, found, _noted)

    machine.start("broker", broker)
    await serves.wait()
    if (error := await machine.start("client", client).exited) is not None:
        raise error


async def send_all(
    client: Client, found: dict[str, list[set[str]]], noted: Callable[[], AbstractContextManager[set[str]]]
) -> None:
    """Send each request several times; `noted` is entered for each, and fills its set until it is left."""

    async def measured(name: str, send: Callable[[], Awaitable[Message]]) -> Message:
        with noted() as executed:
            response = await send()
        assert set(_errors(response)) == {ErrorCode.none}, response
        found.setdefault(name, []).append(executed)
        return response

    await client.topic(PARTITION.topic, 10_000)
    for name, key, make in (("Produce", ApiKey.PRODUCE, _produce), ("Fetch", ApiKey.FETCH, _fetch)):
        send = functools.partial(client.send_to_leader, PARTITION, key, make, at_most=LAST_BY_NAME)
        for _ in range(TIMES):
            await measured(name, send)
    group = Coordinator(client, "g", CoordinatorType.GROUP)
    response = await group.ask(ApiKey.JOIN_GROUP, functools.partial(_join, ""))
    join = functools.partial(_join, response.member_id)
    for _ in range(TIMES):
        await measured("JoinGroup", lambda: group.ask(ApiKey.JOIN_GROUP, join))
    session = TransactionalSession(client, "id", timeout_ms=60_000, version=2)
    await session.init()

    def end(api: Api) -> Message:
        return api.request(
            transactional_id=session.transactional_id,
            producer_id=session.producer_id,
            producer_epoch=session.producer_epoch,
            committed=True,
        )

    for _ in range(TIMES):
        await session.write(PARTITION, [(None, "v")])
        await measured("EndTxn", lambda: session.coordinator.ask(ApiKey.END_TXN, end))
        await session.init()


def _errors(response: Message) -> Iterator[ErrorCode]:
    if hasattr(response, "error_code"):
        yield response.error_code
    for topic in getattr(response, "responses", ()):
        for part in getattr(topic, "partition_responses", None) or topic.partitions:
            yield getattr(part, "partition", part).error_code


def _produce(api: Api) -> Message:
    builder = BatchBuilder()
    builder.append(0, None, b"v")
    part = api.make_request("PartitionProduceData", index=0, records=memoryview(builder.build()))
    topic = api.make_request("TopicProduceData", name=PARTITION.topic, partition_data=(part,))
    return api.request(acks=-1, timeout_ms=10_000, topic_data=(topic,))


def _fetch(api: Api) -> Message:
    part = api.make_request("FetchPartition", partition=0, partition_max_bytes=1 << 20)
    topic = api.make_request("FetchTopic", topic=PARTITION.topic, partitions=(part,))
    return api.request(max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=(topic,))


def _join(member_id: str, api: Api) -> Message:
    protocol = api.make_request("JoinGroupRequestProtocol", name="range", metadata=b"")
    return api.request(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(protocol,),
    )


@contextmanager
def _noted() -> Iterator[set[str]]:
    """Note the modules of all functions that run."""
    files, modules = set[str](), set[str]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(before)
        modules.update(_counted(files))


def _counted(files: set[str]) -> Iterator[str]:
    root = f"{SOURCE / 'nilometer'}/"
    for file in files:
        if file.startswith(root):
            name = file.removeprefix(root).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if not name.startswith(BELOW) and name not in BESIDE:
                yield name


def table() -> str:
    lines = ["| request | modules | which |", "|---|---|---|"]
    for name, modules in executed().items():
        lines.append(f"| {name} | {len(modules)} | {', '.join(f'`{each}`' for each in sorted(modules))} |")
    return "\n".join(lines) + "\n"


def committed() -> dict[str, int]:
    """Return the number of modules that docs/architecture.md has for each request."""
    rows = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {name: int(number) for name, number, _ in cells}


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
