"""The quotas of a broker's clients: which requests are counted for which quota, and how long clients wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api import client_quotas
from nilometer.broker.api.spec import Request
from nilometer.broker.api.throttling import mute_as_told
from nilometer.broker.connection import Connection
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quotas import (
    KEPT,
    METERS_MAX,
    ClientQuotas,
    ConnectionLimits,
    Meters,
    listener_of_brokers,
)
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.turns import ELEMENTS_MAX, LoopTime, Turns
from nilometer.cluster import client_quotas as client_quota_table
from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ClientQuotaChanged
from nilometer.config import ConfigError
from nilometer.identifiers import EntryNumber
from nilometer.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Limit,
    TokenBucket,
    WindowedRate,
    entity_of,
)
from nilometer.runtime import Clock
from nilometer.security.principal import USER as USER_TYPE
from nilometer.security.principal import Principal
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.listings_at_once import ListingsAtOnce
from support.step_clock import StepClock

ALICE = RequestContext(principal=Principal(USER_TYPE, "alice"))
BOB = RequestContext(principal=Principal(USER_TYPE, "bob"))


def config(**settings: str) -> BrokerConfig:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    return BrokerConfig({"node.id": "1", "log.dirs": "/data", **given})


class Quotas:
    """Quotas in an image that the test changes, on a clock that the test sets."""

    def __init__(self, **settings: str) -> None:
        self.now_ms = 1_000_000
        self.image = ClusterImage()
        self._subscribers: list[Any] = []
        metadata = SimpleNamespace(
            image=self.image, subscribe=lambda on_delta, _on_reload: self._subscribers.append(on_delta)
        )
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.quotas = ClientQuotas(config(**settings), cast(Clock, clock), cast(MetadataLog, metadata))

    def set(self, entity: Mapping[str, str | None], key: str, value: float | None) -> None:
        self.image.client_quotas.apply(ClientQuotaChanged(entity=entity_of(entity), key=key, value=value))
        delta = ImageDelta(EntryNumber(0), quotas=1)
        for notify in self._subscribers:
            notify(delta, self.image)


def test_without_quotas_nothing_is_limited() -> None:
    world = Quotas()
    assert not world.quotas.limits_clients and not world.quotas.limits_connections
    world.set({IP: None}, CONNECTION_CREATION_RATE, 5)
    assert not world.quotas.limits_clients and world.quotas.limits_connections
    world.set({USER: None}, CONSUMER_BYTE_RATE, 5)
    assert world.quotas.limits_clients
    world.set({USER: None}, CONSUMER_BYTE_RATE, None)
    assert not world.quotas.limits_clients


def test_a_producer_above_its_rate_waits_and_its_neighbour_does_not() -> None:
    world = Quotas()
    world.set({USER: "alice"}, PRODUCER_BYTE_RATE, 1_000)
    quotas = world.quotas
    assert quotas.on_produce(ALICE, "one", 10_000, 0) == 0
    assert quotas.on_produce(ALICE, "two", 1_000, 0) == 1_000  # they share the user's rate
    assert quotas.on_produce(BOB, "one", 1_000_000, 0) == 0
    assert (quotas.throttled, quotas.throttled_ms) == ({PRODUCER_BYTE_RATE: 1}, {PRODUCER_BYTE_RATE: 1_000})
    world.now_ms += 12_000
    assert quotas.on_produce(ALICE, "one", 10_000, 0) == 0


def test_a_consumer_that_waits_gets_no_records_and_they_are_not_counted() -> None:
    world = Quotas()
    world.set({CLIENT_ID: "app"}, CONSUMER_BYTE_RATE, 1_000)
    quotas = world.quotas
    assert quotas.on_fetch(ALICE, "app", 9_000, 0) == 0
    first = quotas.on_fetch(ALICE, "app", 3_000, 0)
    assert first == quotas.on_fetch(ALICE, "app", 3_000, 0) == 2_000
    assert quotas.on_fetch(ALICE, "app", 1_000, 0) == 0
    assert quotas.fetch_bytes_max(ALICE, "app", 1 << 20) == 10_000
    assert quotas.fetch_bytes_max(ALICE, "other", 1 << 20) == 1 << 20


def test_a_member_of_a_share_group_gets_its_records_and_waits_afterwards() -> None:
    world = Quotas()
    world.set({CLIENT_ID: "app"}, CONSUMER_BYTE_RATE, 1_000)
    quotas = world.quotas
    assert quotas.on_share_fetch(ALICE, "app", 10_000) == 0
    assert quotas.on_share_fetch(ALICE, "app", 3_000) == 3_000
    assert quotas.on_share_fetch(ALICE, "app", 1_000) == 4_000, "what was sent is counted"
    assert quotas.on_share_fetch(BOB, "other", 1_000_000) == 0
    assert quotas.on_fetch(ALICE, "app", 1_000, 0) > 0, "it shares the rate with fetches"
    assert quotas.throttled[CONSUMER_BYTE_RATE] == 3


def test_the_time_of_requests_is_limited_and_the_wait_is_at_most_a_window() -> None:
    world = Quotas()
    world.set({USER: "alice"}, REQUEST_PERCENTAGE, 10)
    quotas = world.quotas
    assert quotas.on_request(ALICE, None, 1_000_000) == 0  # a second of ten is ten percent
    assert quotas.on_request(ALICE, None, 50_000) == 500
    assert quotas.on_request(ALICE, None, 5_000_000) == 1_000
    assert quotas.on_request(BOB, None, 5_000_000) == 0
    assert quotas.on_produce(ALICE, None, 10, 0) == 1_000  # the longer of both


def test_the_time_of_a_request_does_not_have_its_waits() -> None:
    now_us = 5_000
    time = LoopTime(lambda: now_us, 4_000)
    assert time.spent_us == 1_000
    time.pause()
    now_us += 1_000_000
    assert time.spent_us == 1_000
    time.resume()
    now_us += 20
    time.resume()
    time.pause()
    time.pause()
    now_us += 1_000_000
    assert time.spent_us == 1_020


def test_windows_are_settings() -> None:
    world = Quotas(quota_window_num="3", quota_window_size_seconds="2")
    world.set({USER: "alice"}, PRODUCER_BYTE_RATE, 1_000)
    assert world.quotas.on_produce(ALICE, None, 4_000, 0) == 0
    assert world.quotas.on_produce(ALICE, None, 1_000, 0) == 1_000
    world.set({USER: "alice"}, REQUEST_PERCENTAGE, 1)
    assert world.quotas.on_request(ALICE, None, 9_000_000) == 2_000


def test_strict_requests_above_the_mutation_rate_are_refused_and_earlier_ones_wait() -> None:
    world = Quotas()
    world.set({USER: "alice"}, CONTROLLER_MUTATION_RATE, 1)
    strict = world.quotas.mutations(ALICE, None, strict=True)
    strict.take(11)
    strict.take(3)  # overdraws
    assert strict.throttle_ms == 0
    with pytest.raises(Refusal) as refused:
        strict.take(1)
    assert refused.value.code is ErrorCode.throttling_quota_exceeded
    assert strict.throttle_ms == 3_000
    world.now_ms += 1_000
    assert strict.throttle_ms == 2_000
    earlier = world.quotas.mutations(ALICE, None, strict=False)
    earlier.take(1)
    assert earlier.throttle_ms == 3_000
    world.quotas.mutations(BOB, None, strict=True).take(100)


def test_a_decision_that_is_made_again_counts_once() -> None:
    world = Quotas()
    world.set({USER: "alice"}, CONTROLLER_MUTATION_RATE, 1)
    quota = world.quotas.mutations(ALICE, None, strict=True)
    for _ in range(3):
        quota.begin()
        quota.take(8)
    quota.take(3)
    quota.take(1)
    with pytest.raises(Refusal):
        quota.take(1)


def test_connections_above_the_rate_of_their_address_wait() -> None:
    world = Quotas()
    world.set({IP: "127.0.0.2"}, CONNECTION_CREATION_RATE, 1)
    quotas = world.quotas
    assert [quotas.on_connection("PLAINTEXT", "127.0.0.2") for _ in range(11)] == [0] * 10 + [1_000]
    assert quotas.on_connection("PLAINTEXT", "127.0.0.2") == 1_000  # the refused one did not count
    assert quotas.on_connection("PLAINTEXT", "127.0.0.1") == 0
    world.now_ms += 11_000
    assert quotas.on_connection("PLAINTEXT", "127.0.0.2") == 0


TWO_LISTENERS = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter_broker_listener_name": "BROKERS",
}


def test_brokers_of_a_clients_address_may_connect_by_their_own_listener() -> None:
    world = Quotas(**TWO_LISTENERS)
    world.set({IP: None}, CONNECTION_CREATION_RATE, 1)
    assert [world.quotas.on_connection("BROKERS", "127.0.0.2") for _ in range(30)] == [0] * 30
    assert world.quotas.on_connection("CLIENTS", "127.0.0.2") == 0
    assert any(world.quotas.on_connection("CLIENTS", "127.0.0.2") for _ in range(10))


@pytest.mark.parametrize("settings", [{}, TWO_LISTENERS])
def test_the_connection_of_a_broker_does_not_count_once_it_is_known(settings: Mapping[str, str]) -> None:
    world = Quotas(**settings)
    world.set({IP: "127.0.0.2"}, CONNECTION_CREATION_RATE, 1)
    listener = "CLIENTS" if settings else "PLAINTEXT"
    for _ in range(100):
        assert world.quotas.on_connection(listener, "127.0.0.2") == 0
        world.quotas.on_broker_proved(listener, "127.0.0.2")
        world.quotas.on_broker_proved("BROKERS", "127.0.0.2" if settings else "127.0.0.3")
    assert [world.quotas.on_connection(listener, "127.0.0.2") for _ in range(11)] == [0] * 10 + [1_000]


def test_each_meter_is_judged_by_its_own_rate() -> None:
    """The sweep for one client's meter must not refill nor empty the bucket of another one."""
    meters = Meters[TokenBucket](lambda rate, now_ms: TokenBucket(11, 1000, rate, now_ms))
    slow, fast = Limit(("slow", ""), 0.1), Limit(("fast", ""), 1_000.0)
    meters.of(slow, 0).take(2, slow.rate, 0)
    meters.of(fast, 0).take(1_000, fast.rate, 0)
    for number in range(2 * KEPT):
        other = Limit((f"other-{number}", ""), 0.001 if number % 2 else 1e6)
        meters.of(other, 100).take(1e9, other.rate, 100)
    assert meters.of(slow, 100).throttle_ms(slow.rate, 100) == 8_900
    meters.of(fast, 100).take(10_000, fast.rate, 100)  # it had 10,100 of 11,000
    assert meters.of(fast, 100).throttle_ms(fast.rate, 100) == 0


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda _rate, _now_ms: WindowedRate(11, 1000), lambda meter, _, value: meter.record(value, 0)),
        (
            lambda rate, now_ms: TokenBucket(11, 1000, rate, now_ms),
            lambda meter, rate, value: meter.take(value, rate, 0),
        ),
    ],
)
def test_meters_are_bounded_and_the_most_used_ones_stay(
    make: Callable[[float, int], Any], use: Callable[[Any, float, float], None]
) -> None:
    meters, rate = Meters[Any](make), 10.0
    use(meters.of(Limit(("", "busy"), rate), 0), rate, 1_000)
    for number in range(3 * METERS_MAX):
        use(meters.of(Limit(("", f"invented-{number}"), rate), 0), rate, 1)
        assert len(meters) <= METERS_MAX
    assert meters.of(Limit(("", "busy"), rate), 0).throttle_ms(rate, 0) > 10_000


def test_long_client_ids_that_differ_at_the_end_have_meters_of_their_own() -> None:
    meters = Meters[WindowedRate](lambda _rate, _now_ms: WindowedRate(11, 1000))
    first, second = (Limit(("", "é" * 16_000 + end), 1.0) for end in "ab")
    meters.of(first, 0).record(100, 0)
    assert meters.of(first, 0).throttle_ms(1.0, 0) > 0
    assert meters.of(second, 0).throttle_ms(1.0, 0) == 0


def test_idle_meters_are_removed() -> None:
    meters = Meters[WindowedRate](lambda _rate, _now_ms: WindowedRate(11, 1000))
    for now_ms in range(0, 1_000 * KEPT, 100):
        meters.of(Limit(("", f"client-{now_ms}"), 1.0), now_ms).record(1, now_ms)
        assert len(meters) <= 2 * KEPT


def test_connections_are_limited_by_address_and_listener() -> None:
    limits = ConnectionLimits(
        config(
            listeners="PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0,BROKERS://127.0.0.1:0",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,BROKERS:PLAINTEXT",
            inter_broker_listener_name="BROKERS",
            max_connections="5",
            max_connections_per_ip="3",
            max_connections_per_ip_overrides="127.0.0.2:1, [::1]:0",
            listener_name_other_max_connections="2",
        )
    )
    assert [limits.take("OTHER", "127.0.0.1") for _ in range(3)] == [True, True, False]
    assert [limits.take("PLAINTEXT", "127.0.0.1") for _ in range(2)] == [True, False]
    limits.release("OTHER", "127.0.0.1")
    assert limits.take("PLAINTEXT", "::ffff:127.0.0.1")
    assert [limits.take("PLAINTEXT", "127.0.0.2") for _ in range(2)] == [True, False]
    assert not limits.take("PLAINTEXT", "::1")
    assert limits.take("PLAINTEXT", "127.0.0.3")
    assert not limits.take("OTHER", "127.0.0.3")  # the sixth of all
    assert limits.take("BROKERS", "127.0.0.3")  # the listener between brokers is exempt


@pytest.mark.parametrize("listener", ["PLAINTEXT", "OTHER"])
def test_brokers_do_not_count_for_their_address(listener: str) -> None:
    """A broker has up to 256 connections to the controller, and more to other brokers."""
    limits = ConnectionLimits(
        config(
            listeners="PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            max_connections_per_ip="2",
        )
    )
    for _ in range(5):
        assert limits.take(listener, "127.0.0.1")
        limits.on_broker_proved(listener, "127.0.0.1")
    assert [limits.take(listener, "127.0.0.1") for _ in range(3)] == [True, True, False]
    for _ in range(5):
        limits.release(listener, "127.0.0.1", is_broker=True)
    assert not limits.take(listener, "127.0.0.1")
    limits.release(listener, "127.0.0.1")
    assert limits.take(listener, "127.0.0.1")


def test_the_only_listener_of_a_node_with_a_controller_is_the_clients_too() -> None:
    node = {
        "node_id": "1",
        "process_roles": "broker,controller",
        "controller_quorum_voters": "1@127.0.0.1:9001",
        "controller_listener_names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9001",
    }
    limits = ConnectionLimits(
        config(**node, max_connections="2", listener_name_plaintext_max_connections="8")
    )
    assert [limits.take("PLAINTEXT", "127.0.0.1") for _ in range(3)] == [True, True, False]
    assert listener_of_brokers(config(**node)) is None


def test_clients_with_a_brokers_address_do_not_keep_it_out() -> None:
    limits = ConnectionLimits(
        config(
            listeners="CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
            listener_security_protocol_map="CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
            inter_broker_listener_name="BROKERS",
            max_connections_per_ip="1",
        )
    )
    assert [limits.take("CLIENTS", "127.0.0.1") for _ in range(2)] == [True, False]
    assert [limits.take("BROKERS", "127.0.0.1") for _ in range(2)] == [True, False]


@pytest.mark.parametrize("text", ["localhost:3", "127.0.0.1", "127.0.0.1:many", "127.0.0.1:-1"])
def test_unreadable_overrides_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        config(max_connections_per_ip_overrides=text)


@pytest.mark.parametrize("told_ms", [0, 1234])
def test_the_controllers_response_mutes_the_clients_connection(told_ms: int) -> None:
    muted: list[int] = []
    codec = messages.api(ApiKey.CREATE_TOPICS, 7)
    header = messages.RequestHeader(int(ApiKey.CREATE_TOPICS), 7, 1, None, 0)
    connection = cast(Connection, SimpleNamespace(mute=muted.append))
    request = Request(header, cast(Any, None), codec, connection, ALICE)
    response = codec.response(throttle_time_ms=told_ms, topics=())
    mute_as_told(request, messages.encode_response(1, ApiKey.CREATE_TOPICS, 7, response))
    assert muted == ([told_ms] if told_ms else [])


def test_quotas_are_described_as_they_were_though_one_is_removed_meanwhile() -> None:
    quotas, users = (
        client_quota_table.ClientQuotas(),
        [((USER, f"u{one:05}"),) for one in range(3 * ELEMENTS_MAX)],
    )

    def change(user: tuple[tuple[str, str], ...], value: float | None) -> None:
        quotas.apply(ClientQuotaChanged(entity=user, key=PRODUCER_BYTE_RATE, value=value))

    for user in users:
        change(user, 1.0)
    parts = SimpleNamespace(
        listings=ListingsAtOnce(Turns(StepClock())),
        metadata=SimpleNamespace(image=SimpleNamespace(client_quotas=quotas)),
        rights=SimpleNamespace(access=lambda _: SimpleNamespace(on_cluster=lambda _: True)),
    )
    request = SimpleNamespace(
        body=SimpleNamespace(components=(), strict=False), respond=lambda **fields: fields["entries"]
    )

    async def describe() -> Any:
        describing = cast(Any, client_quotas.handle_describe(cast(Any, parts), cast(Any, request)))
        await asyncio.sleep(0)
        assert not describing.done(), "it takes several slices"
        change(users[-1], None)
        return await describing

    assert len(asyncio.run(describe())) == len(users)
