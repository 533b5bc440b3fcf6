"""One connection: matching, negotiation, time-outs, ends; and responses in pieces of every size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nilometer.client.network.connection import (
    RECEIVE_BYTES,
    Connection,
    ConnectionLost,
    NotServed,
    RequestTimedOut,
)
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, UnsupportedVersion
from nilometer.wire.messages import (
    Api,
    api,
    encode_response,
    encode_unsupported_api_versions,
    supported_versions,
)
from support.scripted.scripted_broker import HANG_UP, SILENCE, ScriptedBroker


async def connect(broker: ScriptedBroker, **options: Any) -> Connection:
    return await Connection.open(Runtime.system(), broker.host, broker.port, **options)


def ask_metadata(codec: Api) -> Any:
    return codec.request(topics=())


async def test_a_request_in_the_iteration_of_a_reset_fails_as_those_before_it() -> None:
    """uvloop closes the transport at once and calls ``connection_lost`` later.

    Callers that do not wait for the response, such as those that wake a follower's fetch, see no error.
    """
    async with ScriptedBroker() as broker:
        broker.handlers[ApiKey.DESCRIBE_CLUSTER] = lambda request, codec: SILENCE
        connection = await connect(broker)
        codec = connection.api(ApiKey.DESCRIBE_CLUSTER)
        connection.hold_requests()
        waiting = connection.send(codec.request())
        assert connection._transport is not None
        connection._transport.abort()
        assert not connection.closed
        connection.release_requests()
        also_waiting = connection.send(codec.request())
        assert not also_waiting.done()
        with pytest.raises(ConnectionLost):
            connection.send_without_response(codec.request())
        for one in (waiting, also_waiting):
            with pytest.raises(ConnectionLost):
                await one
        assert connection.closed
        with pytest.raises(ConnectionLost):
            connection.send(codec.request())


async def test_answers_are_matched_to_requests_whatever_their_order() -> None:
    async with ScriptedBroker() as broker:
        gate = asyncio.Event()
        held: list[tuple[Any, Api]] = []

        def hold(request: Any, codec: Api) -> Any:
            held.append((request, codec))
            if len(held) == 3:
                gate.set()
            return SILENCE

        broker.handlers[ApiKey.DESCRIBE_CLUSTER] = hold
        connection = await connect(broker)
        first_id = connection._next_correlation_id
        codec = connection.api(ApiKey.DESCRIBE_CLUSTER)
        futures = [connection.send(codec.request()) for _ in range(3)]
        assert connection.in_flight == 3
        await gate.wait()
        for number in (2, 0, 1):
            response = codec.response(
                error_code=ErrorCode.none, cluster_id=f"answer {number}", controller_id=0
            )
            frame = encode_response(first_id + number, codec.key, codec.version, response)
            broker.writers[0].write(frame)
        answers = await asyncio.gather(*futures)
        assert [answer.cluster_id for answer in answers] == ["answer 0", "answer 1", "answer 2"]
        assert connection.in_flight == 0
        connection.close()


async def test_newest_version_of_both_sides_is_used() -> None:
    async with ScriptedBroker(versions={ApiKey.METADATA: (4, 7)}) as broker:
        connection = await connect(broker)
        assert connection.api(ApiKey.METADATA).version == 7
        assert connection.api(ApiKey.METADATA, at_most=5).version == 5
        assert (await connection.request(ApiKey.METADATA, ask_metadata)).__version__ == 7
        with pytest.raises(UnsupportedVersion):
            connection.api(ApiKey.METADATA, at_most=3)
        with pytest.raises(UnsupportedVersion):
            connection.api(ApiKey.FETCH)
        connection.close()


async def test_broker_that_knows_only_old_api_versions_requests() -> None:
    async with ScriptedBroker() as broker:
        asked: list[int] = []
        served = {int(ApiKey.API_VERSIONS): (0, 2), int(ApiKey.METADATA): (0, 5)}

        def old(_request: Any, codec: Api) -> Any:
            asked.append(codec.version)
            if codec.version <= 2:
                keys = tuple(
                    codec.make("ApiVersion", api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in served.items()
                )
                return codec.response(error_code=ErrorCode.none, api_keys=keys)
            broker.writers[0].write(encode_unsupported_api_versions(0, served))
            return SILENCE

        broker.handlers[ApiKey.API_VERSIONS] = old
        connection = await connect(broker)
        assert asked == [supported_versions(ApiKey.API_VERSIONS)[1], 2]
        assert dict(connection.versions) == served
        connection.close()


async def test_time_out_fails_the_request_and_ends_the_connection() -> None:
    async with ScriptedBroker() as broker:
        broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _request, _codec: SILENCE
        connection = await connect(broker)
        late = connection.send(connection.api(ApiKey.DESCRIBE_LOG_DIRS).request(topics=None), timeout_ms=20)
        other = connection.send(connection.api(ApiKey.DESCRIBE_LOG_DIRS).request(topics=None))
        with pytest.raises(RequestTimedOut, match="DESCRIBE_LOG_DIRS"):
            await late
        with pytest.raises(ConnectionLost):
            await other
        assert connection.closed
        with pytest.raises(ConnectionLost):
            connection.send(connection.api(ApiKey.METADATA).request(topics=()))


@pytest.mark.parametrize(("is_served", "error"), [(True, ConnectionLost), (False, NotServed)])
async def test_every_waiting_request_hears_of_the_end(is_served: bool, error: type[ConnectionLost]) -> None:
    """A broker that has responded to nothing may need another protocol or a user, and the error says so."""
    async with ScriptedBroker() as broker:
        broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _request, _codec: HANG_UP
        connection = await connect(broker)
        if is_served:
            await connection.request(ApiKey.METADATA, ask_metadata)
        lost: list[Connection] = []
        connection.on_lost = lost.append
        codec = connection.api(ApiKey.DESCRIBE_LOG_DIRS)
        futures = [connection.send(codec.request(topics=None)) for _ in range(3)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [error] * 3
        assert ("sasl.mechanism" in str(outcomes[0])) == (not is_served)
        assert lost == [connection]


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
async def test_a_name_that_no_host_can_have_is_a_lost_connection(host: str) -> None:
    with pytest.raises(ConnectionLost, match="no host can have this name"):
        await Connection.open(Runtime.system(), host, 9092)


async def test_refused_connection_says_where_and_why() -> None:
    async with ScriptedBroker() as broker:
        address, port = broker.host, broker.port
    with pytest.raises(ConnectionLost, match=rf"cannot connect to {address}:{port}: Connection refused"):
        await Connection.open(Runtime.system(), address, port)


async def test_broker_that_never_answers_is_given_up() -> None:
    async with ScriptedBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _request, _codec: SILENCE
        with pytest.raises(ConnectionLost, match="within 50 ms"):
            await connect(broker, setup_timeout_ms=50)


async def test_answer_to_nothing_ends_the_connection() -> None:
    async with ScriptedBroker() as broker:
        connection = await connect(broker)
        waiting = connection.send(connection.api(ApiKey.METADATA).request(topics=()))
        broker.writers[0].write(b"\x00\x00\x00\x04\x00\x00\x7f\xff")
        with pytest.raises(ConnectionLost, match="not waiting for one"):
            await waiting


class _LoneTransport(asyncio.Transport):
    """Takes what is written; delivers nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


def receive(connection: Connection, data: bytes, piece: int) -> None:
    """Hand ``data`` over as a transport does, at most ``piece`` bytes at a time."""
    view = memoryview(data)
    while view:
        buffer = connection.get_buffer(-1)
        count = min(piece, len(buffer), len(view))
        buffer[:count] = view[:count]
        connection.buffer_updated(count)
        view = view[count:]


STRING_BYTES_MAX = 32_767


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 100, 4096, RECEIVE_BYTES, 1 << 30])
async def test_responses_survive_any_division_of_the_stream(piece: int) -> None:
    codec = api(ApiKey.DESCRIBE_CLUSTER, 0)
    sizes = [0, 1, 300, 20_000, 5, RECEIVE_BYTES // 2 - 30, 3 * RECEIVE_BYTES if piece > 5 else 3, 0]
    connection = Connection("nowhere", 1, "test", 30_000)
    connection.connection_made(_LoneTransport())
    futures = [connection.send(codec.request()) for _ in sizes]
    stream = b"".join(
        encode_response(
            number,
            codec.key,
            codec.version,
            codec.response(
                error_code=ErrorCode.none,
                cluster_id="x" * (size % STRING_BYTES_MAX),
                brokers=tuple(
                    codec.make(
                        "DescribeClusterBroker", broker_id=1, host="y" * STRING_BYTES_MAX, port=1, rack=None
                    )
                    for _ in range(size // STRING_BYTES_MAX)
                ),
            ),
        )
        for number, size in enumerate(sizes)
    )
    receive(connection, stream, piece)
    found = [future.result() for future in futures]
    assert [len(one.cluster_id) + sum(len(broker.host) for broker in one.brokers) for one in found] == sizes
    connection.close()


async def test_absurd_length_is_refused_before_anything_is_kept() -> None:
    connection = Connection("nowhere", 1, "test", 30_000)
    connection.connection_made(_LoneTransport())
    waiting = connection.send(api(ApiKey.DESCRIBE_CLUSTER, 0).request())
    receive(connection, b"\x7f\xff\xff\xff\x00", 5)
    with pytest.raises(ConnectionLost, match="length field of a response is 2147483647"):
        await waiting


async def test_a_writer_is_called_when_a_full_transport_has_room_or_is_lost() -> None:
    connection = Connection("nowhere", 1, "test", 30_000)
    connection.connection_made(_LoneTransport())
    calls: list[bool] = []
    connection.on_writable = lambda: calls.append(connection.closed)
    assert connection.writable
    connection.pause_writing()
    assert not connection.writable
    connection.resume_writing()
    assert connection.writable
    assert calls == [False]
    connection.resume_writing()  # it had room
    connection.pause_writing()
    connection.connection_lost(None)
    assert calls == [False, True]
