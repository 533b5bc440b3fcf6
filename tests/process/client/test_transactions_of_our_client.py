"""The transactional producer of this project's own client against brokers that are real (SPEC P-5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.transaction_manager import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFenced,
    ProducerState,
)
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.client.settings import ClientSettings, parse_server
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster

PARTITIONS = 2
WAIT_S = 120.0
WAIT_MS = int(WAIT_S * 1000)
TIMEOUT_CHECK_MS = "200"
UPGRADE, SAFE_DOWNGRADE = 1, 2
names = (f"topic-{number}" for number in count())


@pytest.fixture(scope="module", params=[1, 2])
def broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[NilometerBroker]:
    """Of a cluster whose ``transaction.version`` is the parameter."""
    overrides = {
        "transaction.state.log.num.partitions": "2",
        "num.partitions": str(PARTITIONS),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": TIMEOUT_CHECK_MS,
    }
    with NilometerBroker(tmp_path_factory.mktemp("transactions") / "data", overrides) as running:
        finalize(running.bootstrap, request.param)
        yield running
        assert "Traceback" not in running.output


def finalize(bootstrap: str, transaction_version: int) -> None:
    async def work() -> None:
        settings = ClientSettings(ADMIN_CONFIG_DEFINITION, {"bootstrap.servers": bootstrap})
        async with Client(Runtime.system(), settings) as client:
            response = await client.send_to_controller(
                ApiKey.UPDATE_FEATURES,
                lambda api: api.request(
                    timeout_ms=WAIT_MS,
                    validate_only=False,
                    feature_updates=(
                        api.make_request(
                            "FeatureUpdateKey",
                            feature="transaction.version",
                            max_version_level=transaction_version,
                            upgrade_type=SAFE_DOWNGRADE if transaction_version < 2 else UPGRADE,
                        ),
                    ),
                ),
            )
            assert response.error_code == ErrorCode.none, response
            level = None
            while level != transaction_version:
                connection = await client.connections.open(*parse_server(bootstrap))
                level = connection.features.level("transaction.version")
                connection.close()

    run(work())


@pytest.fixture
def topic() -> str:
    """Created by the first who asks for it."""
    return next(names)


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


def producer(bootstrap: str, transactional_id: str, **settings: Any) -> TransactionalProducer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return TransactionalProducer(
        Runtime.system(),
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "max.block.ms": WAIT_MS,
            "retry.backoff.ms": 20,
            **given,
        },
    )


async def send(made: TransactionalProducer, topic: str, *values: str) -> None:
    for index, value in enumerate(values):
        await made.send(topic, value.encode(), partition=index % PARTITIONS)


async def visible(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[str]:
    """What a reader sees from the beginning to where the partitions end for it."""
    config = {
        "bootstrap.servers": bootstrap,
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest",
    }
    values: list[str] = []
    async with Consumer(Runtime.system(), config) as consumer:
        partitions = await consumer.partitions_for(topic)
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any([await consumer.position(one) < end for one, end in ends.items()]):
            values += [record.value.decode() for record in await consumer.poll(timeout_ms=50) if record.value]
    return sorted(values)


async def sees(bootstrap: str, topic: str, *expected: str) -> None:
    """Raises where a reader of committed records does not come to see exactly these."""
    seen: list[str] = []
    while (seen := await visible(bootstrap, topic)) != sorted(expected):
        assert set(seen) <= set(expected), f"{seen} are more than {expected}"
        await asyncio.sleep(0.02)


@pytest.mark.quick
def test_p_5_only_what_is_committed_is_seen(broker: NilometerBroker, topic: str) -> None:
    async def work() -> None:
        async with producer(broker.bootstrap, topic) as made:
            for number, commits in enumerate((True, False, True)):
                await made.begin()
                await send(made, topic, f"{number}-a", f"{number}-b", f"{number}-c")
                await (made.commit() if commits else made.abort())
        await sees(broker.bootstrap, topic, "0-a", "0-b", "0-c", "2-a", "2-b", "2-c")

    run(work())


def test_p_5_an_open_transaction_is_not_seen_and_its_end_is_seen_at_once_as_a_whole(
    broker: NilometerBroker, topic: str
) -> None:
    async def work() -> None:
        async with producer(broker.bootstrap, topic) as made:
            async with made.transaction():
                await send(made, topic, "a", "b")
                await made.flush()
                assert await visible(broker.bootstrap, topic) == []
                assert await visible(broker.bootstrap, topic, "read_uncommitted") == ["a", "b"]
            await sees(broker.bootstrap, topic, "a", "b")

    run(work())


def test_a_second_producer_fences_the_first_which_then_can_do_nothing_more(
    broker: NilometerBroker, topic: str
) -> None:
    async def work() -> None:
        async with producer(broker.bootstrap, topic) as first:
            await first.begin()
            await send(first, topic, "first-a", "first-b")
            await first.flush()
            async with producer(broker.bootstrap, topic) as second:
                with pytest.raises(ProducerFenced):
                    await first.commit()
                with pytest.raises(ProducerFenced):
                    await first.abort()
                with pytest.raises(ProducerFenced):
                    await first.begin()
                async with second.transaction():
                    await send(second, topic, "second")
                await sees(broker.bootstrap, topic, "second")

    run(work())


def test_a_fenced_producer_whose_batch_is_refused_learns_that_it_is_fenced_by_its_abort(
    broker: NilometerBroker, topic: str
) -> None:
    """The broker refuses its old epoch; who has raised that is for the coordinator to say (KIP-588)."""

    async def work() -> None:
        async with producer(broker.bootstrap, topic) as first:
            await first.begin()
            await send(first, topic, "first")
            await first.flush()
            async with producer(broker.bootstrap, topic) as second:
                async with second.transaction():
                    await send(second, topic, "second")
                await sees(broker.bootstrap, topic, "second")  # the marker with the new epoch is in the log
                await send(first, topic, "late")
                with pytest.raises(AbortableTransactionError):
                    await first.commit()
                with pytest.raises(ProducerFenced):
                    await first.abort()
                await sees(broker.bootstrap, topic, "second")

    run(work())


def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced(
    broker: NilometerBroker, topic: str
) -> None:
    async def work() -> None:
        async with producer(broker.bootstrap, topic, transaction_timeout_ms=1_000) as made:
            await made.begin()
            await send(made, topic, "abandoned")
            await made.flush()
            async with Producer(Runtime.system(), {"bootstrap.servers": broker.bootstrap}) as other:
                await other.send_and_wait(topic, b"behind", partition=0)
            await sees(broker.bootstrap, topic, "behind")
            with pytest.raises(FatalTransactionError):
                await made.commit()

    run(work())


@pytest.mark.parametrize("commits", [True, False])
def test_consume_transform_produce_commits_input_and_output_together(
    broker: NilometerBroker, topic: str, commits: bool
) -> None:
    output, group = f"{topic}-out", f"group-of-{topic}"
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
    }

    async def work() -> None:
        async with producer(broker.bootstrap, topic) as made:
            async with made.transaction():
                await send(made, topic, "1", "2")
            await sees(broker.bootstrap, topic, "1", "2")
            async with Consumer(Runtime.system(), config) as consumer:
                await consumer.subscribe([topic])
                records: list[Any] = []
                while len(records) < 2:
                    records += await consumer.poll(timeout_ms=100)
                await made.begin()
                await send(made, output, *(f"{record.value.decode()}!" for record in records))
                ends = {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
                await made.send_offsets(ends, consumer.group_metadata())
                await (made.commit() if commits else made.abort())
                # Read as a consumer does: it waits until the transaction's offsets are decided.
                found = await consumer.committed(list(ends))
        if commits:
            assert {one: at.offset for one, at in found.items() if at is not None} == ends
            await sees(broker.bootstrap, output, "1!", "2!")
        else:
            assert set(found.values()) == {None}
            await sees(broker.bootstrap, output)

    run(work())


def test_offsets_of_a_member_that_was_replaced_abort_the_transaction_and_not_the_producer(
    broker: NilometerBroker, topic: str
) -> None:
    """The group has a new generation: another member may process the same records (KIP-447)."""
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": f"group-of-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }

    async def work() -> None:
        async with producer(broker.bootstrap, topic) as made:
            async with made.transaction():
                await send(made, topic, "1", "2")
            async with Consumer(Runtime.system(), config) as consumer:
                await consumer.subscribe([topic])
                while not await consumer.poll(timeout_ms=100):
                    pass
                old = consumer.group_metadata()
                consumer.enforce_rebalance()
                while consumer.group_metadata() == old or not consumer.group_metadata().identity.is_member:
                    await consumer.poll(timeout_ms=100)
                await made.begin()
                await send(made, topic, "never seen")
                offsets = {TopicPartition(topic, 0): 1}
                with pytest.raises(AbortableTransactionError) as refused:
                    await made.send_offsets(offsets, old)
                assert refused.value.code == ErrorCode.illegal_generation
                with pytest.raises(AbortableTransactionError):
                    await made.commit()
                await made.abort()
                async with made.transaction():
                    await made.send_offsets(offsets, consumer.group_metadata())
                found = (await consumer.committed(offsets))[TopicPartition(topic, 0)]
                assert found is not None and found.offset == 1
        await sees(broker.bootstrap, topic, "1", "2")

    run(work())


def test_a_refused_record_aborts_its_transaction_and_the_next_one_has_another_epoch(
    broker: NilometerBroker, topic: str
) -> None:
    async def work() -> None:
        async with producer(broker.bootstrap, topic, max_request_size=8_000_000) as made:
            await made.begin()
            await send(made, topic, "with it")
            delivery = await made.send(topic, bytes(2_000_000), partition=1)
            with pytest.raises(AbortableTransactionError) as failed:
                await made.commit()
            assert failed.value.code == ErrorCode.message_too_large
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await delivery
            with pytest.raises(AbortableTransactionError):
                await made.send(topic, b"refused")
            await made.abort()
            async with made.transaction():
                await send(made, topic, "next", "one")
        await sees(broker.bootstrap, topic, "next", "one")

    run(work())


def test_calls_out_of_order_are_refused_and_change_nothing(broker: NilometerBroker, topic: str) -> None:
    async def work() -> None:
        async with producer(broker.bootstrap, topic) as made:
            for call in (made.commit, made.abort, lambda: made.send(topic, b"x")):
                with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
                    await call()
            await made.begin()
            with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
                await made.begin()
            await made.commit()  # of nothing
            async with made.transaction():
                await send(made, topic, "seen")
        await sees(broker.bootstrap, topic, "seen")

    run(work())


def test_leaving_the_producer_aborts_what_is_open(broker: NilometerBroker, topic: str) -> None:
    async def work() -> None:
        with pytest.raises(ZeroDivisionError):
            async with producer(broker.bootstrap, topic, transaction_timeout_ms=600_000) as made:
                await made.begin()
                await send(made, topic, "given up")
                await made.flush()
                _ = 1 / 0
        async with Producer(Runtime.system(), {"bootstrap.servers": broker.bootstrap}) as other:
            await other.send_and_wait(topic, b"behind", partition=0)
        await sees(broker.bootstrap, topic, "behind")

    run(work())


@pytest.mark.quick
def test_a_transaction_goes_on_when_its_coordinator_moves_and_when_a_leader_dies(tmp_path: Path) -> None:
    overrides = {"transaction.state.log.num.partitions": "1"}
    with NilometerCluster(tmp_path, overrides=overrides) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)

        async def off_loop(call: Callable[[], Any]) -> Any:
            return await asyncio.get_running_loop().run_in_executor(None, call)

        async def kill_leader(topic: str) -> int:
            for name in ("t", "__transaction_state"):
                await off_loop(lambda name=name: cluster.wait_full_isr(name, WAIT_S))
            leader: int | None = await off_loop(lambda: cluster.leader_of(topic))
            assert leader is not None
            await off_loop(lambda: cluster.kill(leader))
            return leader

        async def work() -> None:
            async with producer(cluster.bootstrap, "x") as made:
                async with made.transaction():
                    await send(made, "t", "a", "b")
                    await made.flush()
                    killed = await kill_leader("__transaction_state")
                async with made.transaction():
                    await send(made, "t", "c", "d")
                await off_loop(lambda: cluster.start(killed))
                with pytest.raises(ZeroDivisionError):
                    async with made.transaction():
                        await send(made, "t", "e")
                        killed = await kill_leader("t")
                        await send(made, "t", "f", "g")
                        _ = 1 / 0
                assert made.state is ProducerState.READY
                async with made.transaction():
                    await send(made, "t", "h", "i")
            await sees(cluster.bootstrap, "t", "a", "b", "c", "d", "h", "i")

        run(work())
        assert "Traceback" not in cluster.output()
