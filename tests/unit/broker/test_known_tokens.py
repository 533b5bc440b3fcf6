"""The delegation tokens that a broker accepts, as the metadata changes; and sessions that end with them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from nilometer.broker.authentication.known_tokens import KnownTokens
from nilometer.broker.authentication.sasl import ExpiringSession
from nilometer.broker.connection import CloseConnection, Connection, Dispatcher
from nilometer.broker.control.controller import Controller
from nilometer.broker.housekeeping import ExpiredTokens
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.controller.access import TokenLifetimes
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import DelegationTokenChanged
from nilometer.identifiers import EntryNumber
from nilometer.security.delegation_token import DelegationToken, TokenKey
from nilometer.security.scram import ScramMechanism
from nilometer.wire.errors import ErrorCode, KafkaError

KEY, SHA_256 = TokenKey("key"), ScramMechanism.SHA_256
SERVED = (b"served",)


class Clock:
    """Of a wall and of a stopwatch."""

    now_ms = 1_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


class World:
    def __init__(self) -> None:
        self.image = ClusterImage()
        self.clock = Clock()
        self.known = KnownTokens(KEY, TokenLifetimes(10, 5), lambda: self.image, self.clock)  # type: ignore[arg-type]

    def change(self, token_id: str, expires_ms: int | None) -> None:
        """Issue or change a token, or remove it."""
        token = None
        if expires_ms is not None:
            token = DelegationToken(
                owner="User:al:ice", requester="User:bob", issued_ms=0, max_ms=9_000, expires_ms=expires_ms
            )
        self.image.tokens.apply(DelegationTokenChanged(id=token_id, token=token))
        self.known.on_delta(ImageDelta(EntryNumber(0), tokens=[token_id]), self.image)


def test_a_token_is_found_by_its_hmac_as_long_as_the_metadata_has_it() -> None:
    world = World()
    token = KEY.hmac_of("one")
    assert world.known.id_of(token) is None
    world.change("one", 2_000)
    world.change("two", 2_000)
    assert world.known.id_of(token) == "one"
    world.change("one", 3_000)
    assert world.known.id_of(token) == "one"
    world.change("one", None)
    assert world.known.id_of(token) is None
    assert world.known.id_of(KEY.hmac_of("two")) == "two"
    world.image = ClusterImage()
    world.image.tokens.apply(DelegationTokenChanged(id="three", token=None))
    world.known.on_reload(world.image)
    assert world.known.id_of(KEY.hmac_of("two")) is None


def test_a_snapshot_replaces_all_tokens() -> None:
    world = World()
    world.change("old", 2_000)
    later = World()
    later.change("new", 2_000)
    world.image = later.image
    world.known.on_reload(world.image)
    assert world.known.id_of(KEY.hmac_of("old")) is None
    assert world.known.id_of(KEY.hmac_of("new")) == "new"


def test_a_login_needs_a_token_that_has_not_expired() -> None:
    world = World()
    world.change("one", 2_000)
    login = world.known.login(SHA_256, "one")
    assert login is not None
    assert (login.owner, login.expires_ms) == ("al:ice", 2_000)
    assert world.known.login(SHA_256, "one") == login
    assert world.known.login(ScramMechanism.SHA_512, "one") != login
    assert World().known.login(SHA_256, "one") is None
    world.clock.now_ms = 2_001
    assert world.known.login(SHA_256, "one") is None
    world.change("one", 3_000)
    assert world.known.login(SHA_256, "one") is not None
    world.change("one", None)
    assert world.known.login(SHA_256, "one") is None


class Served:
    def dispatch(self, frame: object, connection: object) -> tuple[bytes, ...]:
        return SERVED


@pytest.mark.parametrize("end", ["removed", "shortened", "over"])
def test_a_session_ends_with_its_token(end: str) -> None:
    world = World()
    world.change("one", 2_000)
    session = ExpiringSession(
        cast(Dispatcher, Served()),
        world.clock,  # type: ignore[arg-type]
        1_000,
        lambda frame, connection: (),
        0,
        lambda: world.known.is_valid("one"),
    )
    connection = cast(Connection, None)
    metadata = b"\x00\x03" + bytes(8)
    world.clock.now_ms = 2_000
    assert session.dispatch(metadata, connection) == SERVED
    if end == "over":
        world.clock.now_ms = 2_001
    else:
        world.change("one", None if end == "removed" else 1_999)
    with pytest.raises(CloseConnection):
        session.dispatch(metadata, connection)
    handshake = b"\x00\x11" + bytes(8)
    assert session.dispatch(handshake, connection) == (), "it may authenticate again, by another token"


class Deciding:
    """A controller without a log: the image is changed at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_active = True
        self.fails = False

    async def decide(self, decide: object, cause: object) -> object:
        if self.fails:
            raise KafkaError(ErrorCode.not_controller, "another broker became controller")
        decision = cast("Decision[object]", decide(self.world.image))  # type: ignore[operator]
        for record in decision.records:
            assert isinstance(record, DelegationTokenChanged)
            self.world.image.tokens.apply(record)
        return decision.reply


def test_the_controller_removes_expired_tokens_each_round(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    deciding = Deciding(world)
    rounds: list[object] = []

    class Tasks:
        def periodic(self, name: str, interval_ms: int, work: object) -> None:
            rounds.extend([interval_ms, work])

    config = BrokerConfig({"node.id": "1", "delegation.token.expiry.check.interval.ms": "77"})
    expired = ExpiredTokens(config, cast(Controller, deciding), world.clock)  # type: ignore[arg-type]
    expired.start(Tasks())  # type: ignore[arg-type]
    interval_ms, work = rounds
    assert interval_ms == 77

    def left() -> list[str]:
        asyncio.run(work())  # type: ignore[operator]
        return [token_id for token_id, _ in world.image.tokens.items()]

    world.change("one", 1_500)
    world.change("two", 2_500)
    assert left() == ["one", "two"]
    world.clock.now_ms = 2_000
    deciding.is_active = False
    assert left() == ["one", "two"], "another broker's work"
    deciding.is_active, deciding.fails = True, True
    assert left() == ["one", "two"]
    assert "the next round tries again" in caplog.text
    deciding.fails = False
    assert left() == ["two"]
