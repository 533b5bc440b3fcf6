"""What a Produce costs in a broker between its bytes and those of the response, without sockets.

    python -m bench.produce_path --instructions

Each request is one batch of ten records of 100 B of an idempotent producer, in the newest version that
names its topic. The broker runs in this process; a transport stands for the socket, so that of system calls
only the log's `writev` is left. Rounds are timed by the thread's CPU; the instructions are those that
`valgrind` counts for many requests less those for few. With NILOMETER_COMPILED=1 the modules are compiled.

With --wakes a process on another core waits for each response, as a client does. To wake it a core interrupts
another one; on a virtual machine that leaves it, and what the processor had learnt of the program's branches
may be gone then: the more of them a request has, the longer it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest import mock

import click
import uvloop

from nilometer import compiled
from nilometer.broker.authentication.acceptor import Acceptor
from nilometer.broker.broker import Broker
from nilometer.broker.connection import Connection
from nilometer.broker.settings.config import BrokerConfig
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.runtime import Runtime
from nilometer.security.principal import SecurityProtocol
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import api, decode_response, encode_request
from nilometer.wire.records import BatchBuilder

TOPIC = "t"
PRODUCE_VERSION = 12
RECORDS, RECORD_BYTES = 10, 100
SEND_BYTES = 64 * 1024
AT_ONCE = 10
"""Requests that are sent before their responses are waited for: fewer than have to wait for a turn."""
MANY_ROUNDS = 24
"""Those of which the instructions are counted, less those of fewer."""
SETTINGS = {
    "node.id": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}


class CountingTransport(asyncio.Transport):
    """Takes what a connection writes, and counts its frames."""

    def __init__(self, connection: Connection, waits: socket.socket | None = None) -> None:
        """``waits``: a process at its other end is woken by each response."""
        super().__init__()
        self._connection = connection
        self._waits = waits
        self.responses = 0
        self.last = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._waits is not None:
            self._waits.send(data)
        position, data = 0, bytes(data)
        while position < len(data):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            self.last = data[position + 4 : end]
            self.responses += 1
            position = end

    def writelines(self, list_of_data: object) -> None:
        self.write(b"".join(list_of_data))  # pyright: ignore[reportArgumentType, reportCallIssue]

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass  # fewer requests follow than a connection may queue

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class Producer:
    """An idempotent producer on a connection of its own."""

    def __init__(self, connection: Connection, waits: socket.socket | None) -> None:
        self._connection = connection
        self._transport = CountingTransport(connection, waits)
        self._sequence = 0
        self._id, self._epoch = -1, -1
        self._records = BatchBuilder()
        for _ in range(RECORDS):
            self._records.append(1_700_000_000_000, None, bytes(RECORD_BYTES))
        connection.connection_made(self._transport)

    async def begin(self) -> None:
        codec = api(ApiKey.INIT_PRODUCER_ID, 4)
        await self.send(
            [
                encode_request(
                    1,
                    "bench",
                    codec.request(
                        transactional_id=None,
                        transaction_timeout_ms=60_000,
                        producer_id=-1,
                        producer_epoch=-1,
                    ),
                )
            ]
        )
        _, response = decode_response(ApiKey.INIT_PRODUCER_ID, 4, self._transport.last)
        assert response.error_code == 0, response
        self._id, self._epoch = response.producer_id, response.producer_epoch

    def requests(self, number: int) -> Iterator[bytes]:
        codec = api(ApiKey.PRODUCE, PRODUCE_VERSION)
        for _ in range(number):
            batch = self._records.build(0, self._id, self._epoch, self._sequence)
            self._sequence += RECORDS
            part = codec.make_request("PartitionProduceData", index=0, records=memoryview(batch))
            topic = codec.make_request("TopicProduceData", name=TOPIC, partition_data=(part,))
            yield encode_request(1, "bench", codec.request(acks=-1, timeout_ms=10_000, topic_data=(topic,)))

    async def send(self, requests: list[bytes]) -> None:
        """Send them, some at once, and return when each has its response."""
        responses = self._transport.responses
        for number, frame in enumerate(requests, 1):
            self._connection.get_buffer(-1)[: len(frame)] = frame
            self._connection.buffer_updated(len(frame))
            if number % AT_ONCE == 0 or number == len(requests):
                while self._transport.responses < responses + number:  # noqa: ASYNC110 - some have a later turn
                    await asyncio.sleep(0)

    def check(self) -> None:
        """Raise AssertionError if the last batch was rejected."""
        _, response = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, self._transport.last)
        [topic] = response.responses
        [part] = topic.partition_responses
        assert part.error_code == 0, part
        assert part.base_offset == self._sequence - RECORDS, part


@contextlib.contextmanager
def waiting_process() -> Iterator[socket.socket]:
    """A process on another core that waits for what is sent to it; this one keeps to a core of its own."""
    first, *others = sorted(os.sched_getaffinity(0))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        reader = os.fork()
        if not reader:
            server.close()
            os.sched_setaffinity(0, others or [first])
            with socket.create_connection(address) as received:
                while received.recv(SEND_BYTES):
                    pass
            os._exit(0)
        os.sched_setaffinity(0, [first])
        waits, _ = server.accept()
    try:
        with waits:
            yield waits
    finally:
        os.waitpid(reader, 0)


async def measure(
    rounds: int, requests: int, folder: str, waits: socket.socket | None = None, built: int = 0
) -> list[float]:
    """Return the CPU of a request in each round, in microseconds. The requests of as many rounds are
    ``built`` in any case: those of the last ones are not sent."""
    acceptors: list[Acceptor] = []
    make = Acceptor.__init__

    def noted(acceptor: Acceptor, *arguments: object) -> None:
        acceptors.append(acceptor)
        make(acceptor, *arguments)  # pyright: ignore[reportArgumentType]

    with socket.create_server(("127.0.0.1", 0)) as free:
        listener = f"127.0.0.1:{free.getsockname()[1]}"
    places = {
        "listeners": f"PLAINTEXT://{listener}",
        "log.dirs": f"{folder}/log",
        "nilometer.coordination": f"local:{folder}/store",
    }
    runtime = Runtime.system()
    with mock.patch.object(Acceptor, "__init__", noted):
        broker = Broker(BrokerConfig(SETTINGS | places), runtime)
        await broker.start()
    try:
        async with Admin(runtime, {"bootstrap.servers": listener}) as admin:
            await admin.create_topic(NewTopic(TOPIC, 1, 1))
        endpoint = SimpleNamespace(name="PLAINTEXT", protocol=SecurityProtocol.PLAINTEXT)
        producer = Producer(acceptors[0].new_connection(endpoint), waits)  # pyright: ignore[reportArgumentType]
        await producer.begin()
        took = [await _round(producer, requests) for _ in range(rounds)]
        for _ in range(rounds, built):
            list(producer.requests(requests))
        return took
    finally:
        await broker.stop()


async def _round(producer: Producer, number: int) -> float:
    requests = list(producer.requests(number))
    gc.disable()
    before = time.thread_time_ns()
    await producer.send(requests)
    took = time.thread_time_ns() - before
    gc.enable()
    producer.check()
    return took / number / 1_000


def _instructions(rounds: int, requests: int) -> int:
    """Return what a whole run takes."""
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        sys.executable,
        "-m",
        __spec__.name,
    ]
    run = subprocess.run(
        [*command, f"--rounds={rounds}", f"--requests={requests}", f"--built={MANY_ROUNDS}"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", run.stderr)
    assert found is not None, run.stderr
    return int(found[1])


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=50, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=300, show_default=True, help="In each round.")
@click.option("--instructions", is_flag=True, help="Count them, too; takes a minute or two.")
@click.option("--wakes", is_flag=True, help="Each response wakes a process on another core.")
@click.option(
    "--built", default=0, help="Rounds whose requests are built, though not all are sent.", hidden=True
)
def main(rounds: int, requests: int, instructions: bool, wakes: bool, built: int) -> None:
    with (
        TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder,
        waiting_process() if wakes else contextlib.nullcontext() as waits,
    ):
        took = uvloop.run(measure(rounds, requests, folder, waits, built))
    form = compiled.form()
    click.echo(
        f"{form}: CPU of a request {min(took):.1f} µs at least, {statistics.median(took):.1f} in the median"
    )
    if instructions:
        few, many = (_instructions(number, 200) for number in (4, MANY_ROUNDS))
        click.echo(f"{form}: {(many - few) / 4_000:,.0f} instructions a request")


if __name__ == "__main__":
    main()
