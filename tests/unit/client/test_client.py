"""The shared client: finding the cluster, pooling connections, refreshing, trying again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION
from nilometer.client.network.client import Client, Jobs
from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    ClusterMetadata,
    TopicPartition,
    metadata_request,
)
from nilometer.client.network.connection import ConnectionLost
from nilometer.client.network.connection_pool import FETCH_CHANNEL
from nilometer.client.settings import ClientSettings
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message
from support.eventually import becomes
from support.ports import free_ports
from support.scripted.scripted_broker import HANG_UP, ScriptedBroker

QUICK = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
}


def client_of(*addresses: str, **keys: Any) -> Client:
    given = {"bootstrap.servers": addresses, **QUICK, **keys}
    return Client(Runtime.system(), ClientSettings(ADMIN_CONFIG_DEFINITION, given))


def cluster_answer(_request: Any, codec: Api) -> Any:
    return codec.response(error_code=ErrorCode.none, cluster_id="c", controller_id=1)


def ask(codec: Api) -> Any:
    return codec.request()


async def test_bootstrap_skips_servers_that_are_down() -> None:
    (dead_port,) = free_ports(1)
    async with ScriptedBroker() as broker, client_of(f"127.0.0.1:{dead_port}", broker.address) as client:
        assert client.metadata.cluster_id == "scripted"
        assert client.metadata.brokers == {1: BrokerNode(1, broker.host, broker.port)}


async def test_no_server_at_all_is_an_error_with_the_address() -> None:
    (dead_port,) = free_ports(1)
    client = client_of(f"127.0.0.1:{dead_port}")
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{dead_port}: Connection refused"):
        await client.start()
    await client.close()


async def test_those_who_ask_together_share_one_connection() -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        before = len(broker.writers)
        first, second = await asyncio.gather(client.connections.get(1), client.connections.get(1))
        assert first is second
        fetching = await client.connections.get(1, FETCH_CHANNEL)
        assert fetching is not first
        assert len(broker.writers) == before + 2


async def test_waiter_that_is_cancelled_does_not_cancel_the_others() -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        impatient = asyncio.create_task(client.connections.get(1))
        patient = asyncio.create_task(client.connections.get(1))
        await asyncio.sleep(0)
        impatient.cancel()
        assert not (await patient).closed


async def test_lost_connection_is_made_again() -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        broker.handlers[ApiKey.DESCRIBE_CLUSTER] = cluster_answer
        first = await client.connections.get(1)
        broker.hang_up()
        response = await client.retry(lambda: client.send_to(1, ApiKey.DESCRIBE_CLUSTER, ask), 10_000)
        assert response.cluster_id == "c"
        assert first.closed
        assert client.connections.existing(1) is not None


async def test_broker_that_moved_gets_a_new_connection() -> None:
    async with ScriptedBroker() as old, ScriptedBroker() as new:
        old.handlers[ApiKey.DESCRIBE_CLUSTER] = new.handlers[ApiKey.DESCRIBE_CLUSTER] = cluster_answer
        async with client_of(old.address) as client:
            await client.send_to(1, ApiKey.DESCRIBE_CLUSTER, ask)
            old.peers = [new]
            await client.refresh()
            await client.send_to(1, ApiKey.DESCRIBE_CLUSTER, ask)
        assert (old.count(ApiKey.DESCRIBE_CLUSTER), new.count(ApiKey.DESCRIBE_CLUSTER)) == (1, 1)


async def test_retry_refreshes_stale_metadata_and_finds_the_new_leader() -> None:
    async with ScriptedBroker(1) as one, ScriptedBroker(2) as two:
        one.peers = two.peers = [one, two]
        one.topics = two.topics = {"t": [(1, 0)]}

        def refuse(_request: Any, codec: Api) -> Any:
            one.topics["t"] = [(2, 1)]
            return codec.response(error_code=ErrorCode.not_leader_or_follower)

        one.handlers[ApiKey.DESCRIBE_CLUSTER] = refuse
        two.handlers[ApiKey.DESCRIBE_CLUSTER] = cluster_answer
        async with client_of(one.address) as client:
            await client.topic("t", 1000)
            partition = TopicPartition("t", 0)

            async def attempt() -> Any:
                response = await client.send_to_leader(partition, ApiKey.DESCRIBE_CLUSTER, ask)
                if response.error_code != ErrorCode.none:
                    raise KafkaError(response.error_code)
                return response

            assert (await client.retry(attempt, 10_000)).cluster_id == "c"
            assert client.metadata.leader_epoch(partition) == 1


async def test_leader_that_does_not_know_of_its_successor_is_not_asked_for_ever() -> None:
    """A broker that is cut off from the others keeps naming itself, and is the least busy one: KIP-320."""
    async with ScriptedBroker(1) as cut_off, ScriptedBroker(2) as two:
        cut_off.peers = two.peers = [cut_off, two]
        cut_off.topics = {"t": [(1, 0)]}
        two.topics = {"t": [(2, 1)]}
        for broker in (cut_off, two):
            broker.handlers[ApiKey.FIND_COORDINATOR] = lambda _request, codec: codec.response()
        async with client_of(cut_off.address) as client:
            await client.send_to(1, ApiKey.METADATA, lambda codec: metadata_request(codec, ["t"]))
            client.watch_topics(["t"])
            for _ in range(2):
                await client.refresh()
            assert client.metadata.leader(TopicPartition("t", 0)) == BrokerNode(2, two.host, two.port)
            for _ in range(2):
                await client.send_to_any(ApiKey.FIND_COORDINATOR, ask)
            assert (cut_off.count(ApiKey.FIND_COORDINATOR), two.count(ApiKey.FIND_COORDINATOR)) == (1, 1)


async def test_retry_ends_with_the_time_and_says_what_was_last() -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "not yet")

        with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await client.retry(attempt, 60)
        assert attempts > 2

        async def hang() -> None:
            await asyncio.Event().wait()

        with pytest.raises(KafkaError, match="not completed within 20 ms"):
            await client.retry(hang, 20)


async def test_lasting_failure_is_not_tried_again() -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            raise KafkaError(ErrorCode.invalid_topic_exception)

        with pytest.raises(KafkaError):
            await client.retry(attempt, 10_000)
        assert attempts == 1


async def test_topic_that_appears_late_is_waited_for() -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        waiting = asyncio.create_task(client.topic("late", 10_000))
        await broker.wait_for(ApiKey.METADATA, 3)
        broker.topics["late"] = [(1, 0)]
        assert (await waiting).available == (0,)
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await client.topic("never", 30)


async def test_topic_that_is_missing_is_reported_as_such_though_the_last_refresh_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        refreshes = 0

        async def refresh() -> ClusterMetadata:
            nonlocal refreshes
            refreshes += 1
            if refreshes > 1:
                await asyncio.Event().wait()
            return client.metadata

        monkeypatch.setattr(client, "refresh", refresh)
        with pytest.raises(KafkaError) as failed:
            await client.topic("never", 100)
        assert failed.value.code is ErrorCode.unknown_topic_or_partition


async def test_refreshes_asked_for_together_share_the_next_one() -> None:
    async with ScriptedBroker() as broker, client_of(broker.address) as client:
        before = broker.count(ApiKey.METADATA)
        await asyncio.gather(*(client.refresh() for _ in range(10)))
        # The first began at once; the others asked before it had begun, or were content with the second.
        assert 1 <= broker.count(ApiKey.METADATA) - before <= 2


async def test_any_broker_will_do_when_the_first_hangs_up() -> None:
    async with ScriptedBroker(1) as one, ScriptedBroker(2) as two:
        one.peers = two.peers = [one, two]
        one.handlers[ApiKey.DESCRIBE_CLUSTER] = lambda _request, _codec: HANG_UP
        two.handlers[ApiKey.DESCRIBE_CLUSTER] = cluster_answer
        async with client_of(one.address) as client:
            for _ in range(4):
                assert (await client.send_to_any(ApiKey.DESCRIBE_CLUSTER, ask)).cluster_id == "c"


async def test_another_broker_is_asked_for_a_producer_id_when_one_has_none() -> None:
    def answer(error: ErrorCode) -> Callable[[Message, Api], Message]:
        return lambda _request, codec: codec.response(error_code=error, producer_id=7, producer_epoch=0)

    def ask_for_id(codec: Api) -> Message:
        return codec.request(
            transactional_id=None, transaction_timeout_ms=-1, producer_id=-1, producer_epoch=-1
        )

    async with ScriptedBroker(1) as one, ScriptedBroker(2) as two:
        one.peers = two.peers = [one, two]
        one.handlers[ApiKey.INIT_PRODUCER_ID] = answer(ErrorCode.coordinator_load_in_progress)
        two.handlers[ApiKey.INIT_PRODUCER_ID] = answer(ErrorCode.none)
        async with client_of(one.address) as client:
            errors = [
                (await client.send_to_any(ApiKey.INIT_PRODUCER_ID, ask_for_id)).error_code for _ in range(2)
            ]
    assert set(errors) == {ErrorCode.none, ErrorCode.coordinator_load_in_progress}


async def test_closing_fails_what_is_waiting() -> None:
    async with ScriptedBroker() as broker:
        broker.handlers[ApiKey.DESCRIBE_CLUSTER] = lambda _request, _codec: asyncio.Event().wait()
        client = client_of(broker.address)
        await client.start()
        waiting = asyncio.create_task(client.send_to(1, ApiKey.DESCRIBE_CLUSTER, ask))
        await broker.wait_for(ApiKey.DESCRIBE_CLUSTER, 1)
        await client.close()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await client.connections.get(1)


@pytest.mark.parametrize(("pause_s", "again"), [(3_600.0, False), (0.0, True)])
async def test_a_job_with_a_bug_is_started_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, again: bool
) -> None:
    monkeypatch.setattr("nilometer.client.network.client.AFTER_BUG_S", pause_s)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    runs = 0

    async def job() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ZeroDivisionError

    jobs = Jobs("client", lambda: jobs.start("job", job) if runs == 1 else None)
    jobs.start("job", job)
    await becomes(lambda: bool(reported), "the bug is reported")
    jobs.start("job", job)  # as each change of state does
    if again:
        await becomes(lambda: runs == 2, "it is started again")
    assert (runs, len(reported)) == (2 if again else 1, 1)
    await jobs.close()
