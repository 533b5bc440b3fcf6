"""A client authenticates again in time (KIP-368): requests wait meanwhile; a failure ends the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.client.settings import ClientSecurity
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, api
from support.eventually import becomes
from support.scripted.scripted_broker import ScriptedBroker

HANDSHAKE, AUTHENTICATE, OTHER = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_CLUSTER
SECURITY = ClientSecurity(mechanism="PLAIN", user="alice", password="secret")


def accept_logins(broker: ScriptedBroker, lifetime_ms: Callable[[int], int]) -> None:
    """Accept each login, for ``lifetime_ms`` of its number."""
    broker.handlers[HANDSHAKE] = lambda _, codec: codec.response(error_code=ErrorCode.none, mechanisms=())
    broker.handlers[AUTHENTICATE] = lambda _, codec: codec.response(
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=b"",
        session_lifetime_ms=lifetime_ms(broker.count(AUTHENTICATE)),
    )
    broker.handlers[OTHER] = lambda _, codec: codec.response(
        error_code=ErrorCode.none, cluster_id="here", controller_id=1
    )


async def connect(broker: ScriptedBroker) -> Connection:
    return await Connection.open(Runtime.system(), broker.host, broker.port, security=SECURITY)


def other() -> Any:
    return api(OTHER, 0).request()


async def test_the_login_is_repeated_as_long_as_it_has_a_lifetime() -> None:
    async with ScriptedBroker() as broker:
        accept_logins(broker, lambda number: 20 if number < 4 else 0)
        connection = await connect(broker)
        await becomes(lambda: broker.count(AUTHENTICATE) == 4, "three more logins")
        assert (await connection.send(other())).cluster_id == "here"
        assert [key for key, _ in broker.requests] == [HANDSHAKE, AUTHENTICATE] * 4 + [OTHER]
        connection.close()


async def test_the_login_is_not_repeated_without_a_lifetime() -> None:
    async with ScriptedBroker() as broker:
        accept_logins(broker, lambda _: 0)
        connection = await connect(broker)
        assert connection._session is not None and connection._session._timer is None
        connection.close()


async def test_requests_that_are_sent_meanwhile_wait_and_keep_their_order() -> None:
    async with ScriptedBroker() as broker:
        accept_logins(broker, lambda number: 20 if number == 1 else 0)
        sent: list[asyncio.Future[Any]] = []
        connection: Connection | None = None

        def hold(_: Any, codec: Api) -> Any:
            if broker.count(HANDSHAKE) == 2 and connection is not None:
                sent.extend(connection.send(other()) for _ in range(3))
            return codec.response(error_code=ErrorCode.none, mechanisms=())

        broker.handlers[HANDSHAKE] = hold
        connection = await connect(broker)
        await becomes(lambda: len(sent) == 3, "the second login has begun")
        assert [answer.cluster_id for answer in await asyncio.gather(*sent)] == ["here"] * 3
        assert [key for key, _ in broker.requests] == [HANDSHAKE, AUTHENTICATE] * 2 + [OTHER] * 3
        connection.close()


async def test_a_login_that_fails_ends_the_connection_and_the_requests_that_waited() -> None:
    async with ScriptedBroker() as broker:
        accept_logins(broker, lambda _: 20)
        sent: list[asyncio.Future[Any]] = []
        connection: Connection | None = None

        def refuse(_: Any, codec: Api) -> Any:
            if connection is None or broker.count(AUTHENTICATE) < 2:
                return codec.response(
                    error_code=ErrorCode.none, error_message=None, auth_bytes=b"", session_lifetime_ms=20
                )
            sent.append(connection.send(other()))
            return codec.response(
                error_code=ErrorCode.sasl_authentication_failed, error_message="no more", auth_bytes=b""
            )

        broker.handlers[AUTHENTICATE] = refuse
        connection = await connect(broker)
        await becomes(lambda: connection.closed, "the connection is closed")
        with pytest.raises(ConnectionLost, match="no more"):
            await sent[0]
        assert broker.count(OTHER) == 0


async def test_a_closed_connection_authenticates_no_more() -> None:
    async with ScriptedBroker() as broker:
        accept_logins(broker, lambda _: 1_000_000)
        connection = await connect(broker)
        timer = connection._session._timer if connection._session else None
        assert timer is not None and not timer.cancelled()
        connection.close()
        assert timer.cancelled()
