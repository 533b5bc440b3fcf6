"""A client's request on its way to the controller: who asked arrives with it, and decides what it may."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api import controller_requests
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Connection as ServedConnection
from nilometer.broker.connection import Response
from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.controller_channel import CLIENTS_AT_ONCE, ControllerChannel
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.client.network.connection import Connection
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SystemClock
from nilometer.security.principal import Principal, SecurityProtocol
from nilometer.wire import messages
from nilometer.wire import own_apis as wire
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from support.brokers.served_apis import APIS
from support.eventually import becomes
from support.scripted.scripted_broker import ScriptedBroker

ALICE = RequestContext(
    principal=Principal("User", "alice"),
    client_address="192.0.2.7",
    client_port=4711,
    listener="EXTERNAL",
    security_protocol=SecurityProtocol.SASL_SSL,
)
BODY = messages.api(ApiKey.DELETE_TOPICS, 6).request(topics=(), timeout_ms=100)
HEADER = messages.RequestHeader(int(ApiKey.DELETE_TOPICS), 6, 77, "alices client", 0)


class Peers:
    listener = "INTERNAL"

    async def connect(
        self, broker_id: int, host: str, port: int, *, client_id: str, request_timeout_ms: int
    ) -> Connection:
        return await Connection.open(Runtime.system(), host, port, client_id=client_id)


def channel_to(controller: ScriptedBroker) -> ControllerChannel:
    known = SimpleNamespace(
        endpoint={"INTERNAL": SimpleNamespace(host="127.0.0.1", port=controller.port)}.get
    )
    image = SimpleNamespace(controller_id=1, broker=lambda broker_id: known)
    metadata = cast(MetadataLog, SimpleNamespace(image=image))
    return ControllerChannel(2, cast(BrokerPeers, Peers()), metadata, Tasks())


def forward_to(controller: ScriptedBroker) -> bytes:
    """What a broker makes of Alice's request, and of the controller's answer."""

    async def forward() -> bytes:
        async with controller:
            channel = channel_to(controller)
            try:
                return await channel.forward(HEADER, BODY, ALICE)
            finally:
                channel.close()

    return asyncio.run(forward())


def controller_answering(**fields: object) -> ScriptedBroker:
    controller = ScriptedBroker(versions={int(NilometerApiKey.FORWARD_REQUEST): (0, 0)})
    controller.handlers[NilometerApiKey.FORWARD_REQUEST] = lambda request, api: api.response(**fields)
    return controller


def test_the_envelope_says_who_asked() -> None:
    controller = controller_answering(response=b"the frame")
    assert forward_to(controller) == b"the frame"
    ((key, envelope),) = controller.requests
    assert key == NilometerApiKey.FORWARD_REQUEST
    assert (envelope.principal_type, envelope.principal_name) == ALICE.principal
    assert (envelope.client_address, envelope.client_port) == ("192.0.2.7", 4711)
    assert (envelope.listener, envelope.security_protocol) == ("EXTERNAL", "SASL_SSL")
    header, body = messages.decode_request(envelope.request)
    assert (header.client_id, header.correlation_id) == ("alices client", 77)
    assert body == BODY


def test_not_controller_is_no_answer_for_the_client() -> None:
    with pytest.raises(KafkaError) as refused:
        forward_to(controller_answering(error_code=int(ErrorCode.not_controller), message="not me"))
    assert refused.value.code is ErrorCode.not_controller


class SlowController:
    """Answers one forwarded request after another, as it is told; a broker's own request at once."""

    def __init__(self) -> None:
        forward, own = NilometerApiKey.FORWARD_REQUEST, ApiKey.ALLOCATE_PRODUCER_IDS
        self.broker = ScriptedBroker(versions={int(forward): (0, 0)})
        self.broker.handlers[forward] = self._answer
        self.broker.handlers[own] = lambda request, api: api.response(producer_id_len=7)
        self.answers = asyncio.Semaphore(0)

    async def _answer(self, request: Any, codec: Any) -> Any:
        await self.answers.acquire()
        return codec.response(response=request.principal_name.encode())

    async def wait_for(self, count: int) -> None:
        await self.broker.wait_for(NilometerApiKey.FORWARD_REQUEST, count)

    @property
    def asked_for(self) -> list[str]:
        return [
            one.principal_name for key, one in self.broker.requests if key is NilometerApiKey.FORWARD_REQUEST
        ]


BOB = dataclasses.replace(ALICE, principal=Principal("User", "bob"), client_address="192.0.2.8")


async def test_clients_take_turns_on_their_way_to_the_controller() -> None:
    controller = SlowController()
    async with controller.broker:
        channel = channel_to(controller.broker)
        alices = [asyncio.ensure_future(channel.forward(HEADER, BODY, ALICE)) for _ in range(5)]
        await controller.wait_for(1)
        bobs = asyncio.ensure_future(channel.forward(HEADER, BODY, BOB))
        await asyncio.sleep(0)
        for _ in range(6):
            controller.answers.release()
        assert await asyncio.gather(*alices, bobs) == [b"alice"] * 5 + [b"bob"]
        assert controller.asked_for.index("bob") <= 2, "a client's second request waits for another's first"
        channel.close()


async def test_a_brokers_own_request_does_not_wait_for_those_of_clients() -> None:
    controller = SlowController()
    async with controller.broker:
        channel = channel_to(controller.broker)
        waiting = asyncio.ensure_future(channel.forward(HEADER, BODY, ALICE))
        await controller.wait_for(1)
        block = await channel.call(
            ApiKey.ALLOCATE_PRODUCER_IDS, lambda api: api.request(broker_id=2, broker_epoch=1)
        )
        assert block.producer_id_len == 7
        assert not waiting.done()
        controller.answers.release()
        assert await waiting == b"alice"
        channel.close()


async def test_who_has_gone_is_not_sent_on_and_what_is_sent_keeps_its_turn() -> None:
    """Else a client that resets its connections would have as many requests at the controller as it likes."""
    controller = SlowController()
    async with controller.broker:
        channel = channel_to(controller.broker)
        sent, unsent, bobs = [
            asyncio.ensure_future(channel.forward(HEADER, BODY, who)) for who in (ALICE, ALICE, BOB)
        ]
        await controller.wait_for(1)
        for one in (sent, unsent):
            one.cancel()
        await asyncio.gather(sent, unsent, return_exceptions=True)
        later = asyncio.ensure_future(channel.forward(HEADER, BODY, ALICE))
        await controller.wait_for(2)
        assert sorted(controller.asked_for) == ["alice", "bob"]
        for _ in range(3):
            controller.answers.release()
        assert await asyncio.gather(bobs, later) == [b"bob", b"alice"]
        assert sorted(controller.asked_for) == ["alice", "alice", "bob"]
        channel.close()


async def test_the_failure_of_what_was_sent_for_who_has_gone_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = SlowController()
    async with controller.broker:
        channel = channel_to(controller.broker)
        sent = asyncio.ensure_future(channel.forward(HEADER, BODY, ALICE))
        await controller.wait_for(1)
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
        with caplog.at_level(logging.INFO):
            channel.close()
            await becomes(lambda: "A request whose client has disconnected failed" in caplog.text, "a line")


async def test_a_request_that_waits_at_the_controller_keeps_no_other_client_waiting() -> None:
    """A client can have it wait there for a minute, behind others that it has sent there itself."""
    controller = SlowController()
    async with controller.broker:
        channel = channel_to(controller.broker)
        waiting = asyncio.ensure_future(channel.forward(HEADER, BODY, ALICE))
        await controller.wait_for(1)
        controller.broker.handlers[NilometerApiKey.FORWARD_REQUEST] = lambda request, api: api.response(
            response=request.principal_name.encode()
        )
        async with asyncio.timeout(30):
            assert await channel.forward(HEADER, BODY, BOB) == b"bob"
        assert not waiting.done()
        controller.answers.release()
        assert await waiting == b"alice"
        channel.close()


async def test_many_clients_whose_requests_wait_at_the_controller_keep_no_other_one_waiting() -> None:
    """Each from another address, and each behind others that it has sent to the controller itself."""
    controller = SlowController()
    async with controller.broker:
        channel = channel_to(controller.broker)
        origins = [
            dataclasses.replace(ALICE, client_address=f"192.0.2.{number}")
            for number in range(CLIENTS_AT_ONCE)
        ]
        waiting = [asyncio.ensure_future(channel.forward(HEADER, BODY, one)) for one in origins]
        await controller.wait_for(CLIENTS_AT_ONCE)
        controller.broker.handlers[NilometerApiKey.FORWARD_REQUEST] = lambda request, api: api.response(
            response=request.principal_name.encode()
        )
        async with asyncio.timeout(30):
            assert await channel.forward(HEADER, BODY, BOB) == b"bob"
        assert not any(one.done() for one in waiting)
        for _ in waiting:
            controller.answers.release()
        assert await asyncio.gather(*waiting) == [b"alice"] * CLIENTS_AT_ONCE
        channel.close()


def test_a_forwarded_request_is_handled_under_its_clients_context() -> None:
    seen: list[Request] = []

    def handle(request: Request) -> Response:
        seen.append(request)
        return (b"\0\0\0\2", b"ok")

    spec = ApiSpec(key=ApiKey.DELETE_TOPICS, versions=(1, 6), handle=handle, forwardable=True)
    broker = RequestContext(broker_id=3, principal=Principal("Broker", "3"), client_address="192.0.2.99")
    codec = messages.api(NilometerApiKey.FORWARD_REQUEST, 0)
    envelope = wire.ForwardedRequest(
        principal_type="User",
        principal_name="alice",
        client_address="192.0.2.7",
        client_port=4711,
        listener="EXTERNAL",
        security_protocol="SASL_SSL",
        request=messages.encode_request(77, "alices client", BODY)[4:],
    )
    header = messages.RequestHeader(int(codec.key), 0, 5, "broker", 0)

    async def ask() -> Response:
        parts = controller_requests.Parts(tasks=Tasks(), turns=Turns(SystemClock()))
        carrier = controller_requests.api_over(parts, [spec])
        request = Request(header, envelope, codec, cast(ServedConnection, None), broker)
        return await cast("asyncio.Future[Response]", carrier.handle(request))

    reply = asyncio.run(ask())
    (inner,) = seen
    assert inner.context.principal == ALICE.principal
    assert (inner.context.client_address, inner.context.client_port) == ("192.0.2.7", 4711)
    assert (inner.context.listener, inner.context.security_protocol) == (
        ALICE.listener,
        ALICE.security_protocol,
    )
    assert inner.context.forwarded_by == 3
    assert not inner.context.is_broker, "a client gets none of the rights of the broker that sent it on"
    assert inner.header.client_id == "alices client"
    assert reply is not None
    answer: Any = messages.decode_response(codec.key, 0, b"".join(reply)[4:])[1]
    assert answer.response == b"ok"


def asks_the_controller(handle: Any) -> bool:
    """Whether a handler does, or a function that it calls."""
    function = getattr(handle, "func", handle)
    code = function.__code__
    called = [function.__globals__.get(name) for name in code.co_names]
    return any(
        "controller_requests" in one.__code__.co_names
        for one in (function, *called)
        if hasattr(one, "__code__")
    )


def test_all_that_the_controller_decides_is_either_forwarded_or_between_brokers() -> None:
    decided = [spec for spec in APIS.values() if asks_the_controller(spec.handle)]
    assert len(decided) >= 13
    assert [spec.key.name for spec in decided if spec.forwardable is spec.between_brokers] == []
    assert [spec.key.name for spec in APIS.values() if spec.forwardable and spec not in decided] == []
