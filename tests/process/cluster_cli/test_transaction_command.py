"""``nilometer transaction`` against a broker: what is open, what hangs, and how either is ended (KIP-664)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nilometer.cli.main import run
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offset_queries import LATEST_TIMESTAMP, READ_COMMITTED
from nilometer.client.producer.transaction_manager import ProducerFenced
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import produce_fields
from support.command_line import Nilometer, Outcome
from support.eventually import eventually
from support.wire.wire_peer import WirePeer

WAIT_S = 60.0
HANGING_ID = 77_777
"""A producer id that no coordinator has given out."""
UNVERIFIED = 11
"""A version of Produce that does not add its partition: as an old producer's delayed request."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    overrides = {
        "transaction.partition.verification.enable": "false",
        "transaction.state.log.num.partitions": "2",
    }
    folder: Path = tmp_path_factory.mktemp("transaction-command") / "data"
    with NilometerBroker(folder, overrides) as running:
        yield running
        assert "Traceback" not in running.output


@pytest.fixture
def nilometer(broker: NilometerBroker, capsys: pytest.CaptureFixture[str]) -> Nilometer:
    def command(*arguments: str, bootstrap: bool = True) -> Outcome:
        capsys.readouterr()
        servers = ["--bootstrap-server", broker.bootstrap] if bootstrap else []
        code = run(["transaction", *arguments, *servers])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command


def wait(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await work

    asyncio.run(bounded())


def create(broker: NilometerBroker, topic: str) -> None:
    async def work() -> None:
        async with Admin(Runtime.system(), {"bootstrap.servers": broker.bootstrap}) as admin:
            await admin.create_topic(NewTopic(topic, 2))

    wait(work())


def stable_end(broker: NilometerBroker, topic: str) -> int:
    found: list[int] = []

    async def work() -> None:
        place = TopicPartition(topic, 1)
        async with Admin(Runtime.system(), {"bootstrap.servers": broker.bootstrap}) as admin:
            await admin.client.topic(topic, 10_000)
            ends = await admin.list_offsets({place: LATEST_TIMESTAMP}, isolation_level=READ_COMMITTED)
            found.append(ends[place].offset)

    wait(work())
    return found[0]


def leave_hanging(broker: NilometerBroker, topic: str) -> None:
    """A batch that arrives behind the end of its transaction, at a broker that does not ask for it."""
    builder = BatchBuilder()
    builder.append(1_000, None, b"late")
    batch = builder.build(0, HANGING_ID, 3, 0, transactional=True)

    def is_written() -> bool:
        with WirePeer(broker.bootstrap) as peer:
            fields = produce_fields(UNVERIFIED, topic, {1: batch}, transactional_id="gone")
            answer = peer.ask(ApiKey.PRODUCE, UNVERIFIED, **fields)
            code: ErrorCode = answer.responses[0].partition_responses[0].error_code
            return code is ErrorCode.none

    eventually(is_written, "the batch is in the log", WAIT_S)


async def opened(broker: NilometerBroker, transactional_id: str) -> TransactionalProducer:
    config = {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id}
    return await TransactionalProducer(Runtime.system(), config).__aenter__()


async def write_in_transaction(made: TransactionalProducer, topic: str) -> None:
    await made.begin()
    await made.send(topic, b"x", partition=1)
    await made.flush()


def test_an_open_transaction_is_listed_described_and_aborted(
    broker: NilometerBroker, nilometer: Nilometer
) -> None:
    create(broker, "open")

    with asyncio.Runner() as runner:  # goes on from where it was between the commands
        made, other = (runner.run(opened(broker, name)) for name in ("app-1", "other"))
        runner.run(write_in_transaction(made, "open"))
        listed = nilometer("list", "--json").document["transactions"]
        assert [(one["transactional_id"], one["state"]) for one in listed] == [
            ("app-1", "Ongoing"),
            ("other", "Empty"),
        ]
        mine = listed[0]
        for filters in (
            ["--state", "Ongoing"],
            ["--producer-id", str(mine["producer_id"])],
            ["--pattern", "app-.*"],
        ):
            assert nilometer("list", *filters, "--json").document["transactions"] == [mine], filters
        assert nilometer("list", "--longer-than", "600", "--json").document["transactions"] == []
        assert "app-1" in nilometer("list").out
        described = nilometer("describe", "app-1", "--json").document["transactions"][0]
        assert described["partitions"] == [{"topic": "open", "partition": 1}]
        assert (described["state"], described["producer_id"]) == ("Ongoing", mine["producer_id"])
        assert described["timeout_ms"] == 60_000 and described["start_ms"] > 0
        assert "open-1" in nilometer("describe", "app-1").out
        known = nilometer("producers", "open", "1", "--json").document["producers"]
        assert [(one["producer_id"], one["start_offset"]) for one in known] == [(mine["producer_id"], 0)]
        assert nilometer("find-hanging", "--older-than", "0", "--json").document == {"hanging": []}
        place = ["--topic", "open", "--partition", "1", "--start-offset", "0", "--older-than", "0"]
        for live in (["app-1"], place):
            refused = nilometer("abort", *live, "--yes")
            assert refused.code == 1 and "Nothing was aborted" in refused.err and "--force" in refused.err
        idle = nilometer("abort", "other", "--yes")
        assert idle.code == 1 and "other has no open transaction (it is Empty)" in idle.err
        assert nilometer("list", "--state", "Ongoing", "--json").document["transactions"] == [mine]
        unsaid = nilometer("abort", "app-1", "--force")
        assert unsaid.code == 2 and "the records of its open transaction in open-1" in unsaid.err
        runner.run(made.commit())  # none of these took anything from it
        runner.run(write_in_transaction(made, "open"))
        ended = nilometer("abort", "app-1", "--force", "--yes")
        assert (ended.code, "fenced" in ended.out) == (0, True)
        with pytest.raises(ProducerFenced):
            runner.run(made.commit())
        runner.run(made.close())
        runner.run(other.close())
    eventually(lambda: stable_end(broker, "open") == 4, "the abort marker is written", WAIT_S)


def health(broker: NilometerBroker, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``nilometer status`` says of the cluster."""
    capsys.readouterr()
    run(["status", "--bootstrap-server", broker.bootstrap, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_hanging_transaction_is_found_and_aborted(
    broker: NilometerBroker, nilometer: Nilometer, capsys: pytest.CaptureFixture[str]
) -> None:
    create(broker, "hung")
    leave_hanging(broker, "hung")
    assert stable_end(broker, "hung") == 0
    found = nilometer("find-hanging", "--json").document["hanging"]
    assert [(one["topic"], one["partition"], one["start_offset"]) for one in found] == [("hung", 1, 0)]
    assert (found[0]["producer_id"], found[0]["producer_epoch"]) == (HANGING_ID, 3)
    assert str(HANGING_ID) in nilometer("find-hanging", "--topic", "hung", "--partition", "1").out
    (shown,) = health(broker, capsys)["hanging_transactions"]
    assert (shown["topic"], shown["partition"], shown["producer_id"]) == ("hung", 1, HANGING_ID)
    assert nilometer("find-hanging", "--topic", "hung", "--partition", "0", "--json").document == {
        "hanging": []
    }
    place = ["--topic", "hung", "--partition", "1", "--start-offset"]
    refused = nilometer("abort", *place, "5")
    assert refused.code == 1 and "open ones begin at 0" in refused.err
    unsaid = nilometer("abort", *place, "0")
    assert unsaid.code == 2 and f"producer {HANGING_ID} in hung-1 from offset 0 on" in unsaid.err
    assert stable_end(broker, "hung") == 0
    assert nilometer("abort", *place, "0", "--yes").code == 0
    eventually(lambda: stable_end(broker, "hung") == 2, "the abort marker is written", WAIT_S)
    assert nilometer("find-hanging").out.strip() == "No hanging transactions."
    assert health(broker, capsys)["hanging_transactions"] == []
    refused = nilometer("abort", *place, "0")
    assert refused.code == 1 and "none is open there" in refused.err


def test_errors_say_what_is_wrong(broker: NilometerBroker, nilometer: Nilometer) -> None:
    for arguments, said in (
        (["describe", "no-such-id"], "TRANSACTIONAL_ID_NOT_FOUND"),
        (["abort", "no-such-id"], "TRANSACTIONAL_ID_NOT_FOUND"),
        (["list", "--state", "Lost"], "no transaction state has the name Lost"),
        (["producers", "no-topic", "0"], "UNKNOWN_TOPIC_OR_PARTITION: topic no-topic does not exist"),
        (["find-hanging", "--topic", "no-topic"], "There is no topic no-topic"),
    ):
        done = nilometer(*arguments)
        assert done.code == 1, arguments
        assert said in done.err and "Traceback" not in done.err, (arguments, done.err)
    for arguments in (
        ["abort"],
        ["abort", "x", "--topic", "t"],
        ["abort", "--topic", "t", "--partition", "0"],
        ["find-hanging", "--partition", "0"],
        ["describe"],
    ):
        assert nilometer(*arguments).code == 2, arguments
