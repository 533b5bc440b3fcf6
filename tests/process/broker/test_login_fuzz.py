"""A broker with SASL and TLS listeners under mutated logins, and under mutated requests of a user with few
rights: no client is served without the password, and nothing changes that the user may not change.

Logins and frames come from a seed, and each is named by its seed and index.
`FUZZ=20 pytest tests/process/broker/test_login_fuzz.py` is the whole run of a seed, `FUZZ=20:1234` one login
of it, `FUZZ=20:1234:frame` one frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import Message
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.oauth_broker import oauth_settings
from support.brokers.secured_broker import PREFIX, SecuredBroker
from support.brokers.served_apis import APIS
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.issuer import jwks, rsa_key
from support.wire.frame_fuzzer import EVERY_VERSION, Kind, MutatedFrame, mutated_frame
from support.wire.fuzz_connections import FuzzConnections
from support.wire.login_fuzz import LoginFuzz
from support.wire.mutated_logins import MutatedLogin, mutated_login
from support.wire.random_messages import Vocabulary
from support.wire.wire_peer import make

SEED, *ONLY = os.environ.get("FUZZ", "20").split(":")
LOGINS, FRAMES = 1_200, 1_600
LOGINS_LONG, FRAMES_LONG = 60_000, 60_000
PLAYERS = 8
"""Threads that play at once."""
INDICES_OF_PLAYER = 10_000_000
"""How many frames each may have: all play every API in turn."""
CONNECTIONS = 3
"""Of each player of frames."""
MIB = 1024 * 1024
RSS_GROWTH_BYTES_MAX = 64 * MIB
SETTINGS = {
    "connection.failed.authentication.delay.ms": "0",
    "nilometer.unauthenticated.connections.max.per.ip": "100000",
    "listener.name.sasl_ssl.connections.max.reauth.ms": "3600000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.segment.delete.delay.ms": "3600000",
    "log.retention.ms": "-1",
}
"""The fuzzer does not wait after a failure, and goes on before the broker has noticed that it has left. The
records that must stay have a date of the past."""
KEPT, ALICES = "kept", f"{PREFIX}topic"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_client_logs_in_by_chance_and_a_user_changes_only_what_it_may(tmp_path: Path) -> None:
    _rain(tmp_path, int(SEED), LOGINS, FRAMES)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(int(SEED) + 1, int(SEED) + 3))
def test_the_same_many_times(tmp_path: Path, seed: int) -> None:
    _rain(tmp_path, int(SEED) if ONLY else seed, LOGINS_LONG, FRAMES_LONG)


def _rain(folder: Path, seed: int, logins: int, frames: int) -> None:
    keys = folder / "keys.json"
    keys.write_bytes(jwks(one=rsa_key()))
    with SecuredBroker(folder, oauth_settings(f"file://{keys}", SETTINGS)) as secured:
        broker = secured.broker
        admin = Side("admin", secured.bootstrap)
        vocabulary = _prepare(admin)
        for index in range(len(EVERY_VERSION)):  # makes the classes of all messages, in one thread
            mutated_frame(seed, index, vocabulary)
        before, open_before = _state(admin, broker), _sockets(broker)
        try:
            _play_logins(secured, seed, logins)
            _play_frames(secured, seed, frames, vocabulary)
        except Exception as error:
            replay = f"FUZZ={seed}:INDEX[:frame] pytest tests/process/broker/test_login_fuzz.py"
            raise AssertionError(f"{error}\nreplay: {replay}\n{broker.output[-3000:]}") from error
        assert broker.alive(), broker.output[-3000:]
        admin.hang_up()  # it has been idle for as long as the campaign took
        admin = Side("admin", secured.bootstrap)
        assert _state(admin, broker) == before, f"seed {seed}"
        eventually(lambda: _sockets(broker) <= open_before, "all connections are closed")
        admin.hang_up()
        for word in ("Traceback", " ERROR ", " CRITICAL ", "alice-secret"):
            lines = [line for line in broker.output.splitlines() if word in line]
            assert not lines, f"seed {seed}: {lines[:3]}"


def _play_logins(secured: SecuredBroker, seed: int, number: int) -> None:
    """Most of a login is waiting for the broker, so several are played at once."""
    fuzzes = [LoginFuzz(secured) for _ in range(PLAYERS)]

    def play(start: int, end: int) -> None:
        shares = [_logins(seed, end, start, player) for player in range(PLAYERS)]
        _at_once([partial(_play_each, *each) for each in zip(fuzzes, shares, strict=True)])

    play(0, number // 10)
    rss = _rss_bytes(secured.broker)
    play(number // 10, number)
    growth = _rss_bytes(secured.broker) - rss
    assert growth < RSS_GROWTH_BYTES_MAX, f"RSS grew by {growth >> 20} MiB in the logins of seed {seed}"
    logged_in, answered, played = (
        sum(getattr(fuzz, key) for fuzz in fuzzes) for key in ("logged_in", "answered", "played")
    )
    assert ONLY or played == number
    assert ONLY or 0 < logged_in < answered < played, (logged_in, answered, played)


def _play_each(fuzz: LoginFuzz, logins: Iterator[MutatedLogin]) -> None:
    for login in logins:
        fuzz.play(login)


def _logins(seed: int, end: int, start: int, player: int) -> Iterator[MutatedLogin]:
    """Return one player's share of the logins."""
    indices = range(start + player, end, PLAYERS)
    if ONLY:
        indices = [int(ONLY[0])] if len(ONLY) == 1 and start and not player else []
    return (mutated_login(seed, index) for index in indices)


def _play_frames(secured: SecuredBroker, seed: int, number: int, vocabulary: Vocabulary) -> None:
    """Send frames over connections of alice: one half to the listener without TLS."""
    players = _players(secured, seed, number, vocabulary)
    rss = _rss_bytes(secured.broker)
    _at_once([partial(each.drive, frames) for each, frames in players])
    for each, _ in players:
        assert each.answered + each.closed == each.sent
    sent, answered = (sum(getattr(each, key) for each, _ in players) for key in ("sent", "answered"))
    assert ONLY or sent == number
    assert ONLY or answered > sent / 5, "most frames must be answered"
    growth = _rss_bytes(secured.broker) - rss
    assert growth < RSS_GROWTH_BYTES_MAX, f"RSS grew by {growth >> 20} MiB in the frames of seed {seed}"


def _players(
    secured: SecuredBroker, seed: int, number: int, vocabulary: Vocabulary
) -> list[tuple[FuzzConnections, Iterator[MutatedFrame]]]:
    """Return connections and the frames for them: of each listener several players, so that the broker has
    work while one of them logs in."""
    if ONLY:
        only = [mutated_frame(seed, int(ONLY[0]), vocabulary)] if len(ONLY) > 1 else []
        return [(FuzzConnections(secured.sasl, 1, _login(secured, secured.sasl)), iter(only))]
    ports = (secured.sasl, secured.sasl, secured.sasl_ssl, secured.mutual)
    players = ports * (PLAYERS // len(ports))
    found: list[tuple[FuzzConnections, Iterator[MutatedFrame]]] = []
    for player, port in enumerate(players):
        frames = _frames(seed, vocabulary, player * INDICES_OF_PLAYER)
        if port != secured.sasl:
            frames = _of_right_length(frames)
        connections = FuzzConnections(port, CONNECTIONS, _login(secured, port))
        found.append((connections, islice(frames, number // len(players))))
    return found


def _at_once(work: list[Callable[[], None]]) -> None:
    """Do all of it in threads; raise the first error when all have ended."""
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result()


def _login(secured: SecuredBroker, port: int) -> Callable[[], Any]:
    return lambda: secured.log_in(port).socket


def _frames(seed: int, vocabulary: Vocabulary, start: int) -> Iterator[MutatedFrame]:
    """Yield those of the requests that brokers serve, and some others, without end."""
    for index in count(start):
        if EVERY_VERSION[index % len(EVERY_VERSION)][0] in APIS or not index % 16:
            yield mutated_frame(seed, index, vocabulary)


def _of_right_length(frames: Iterator[MutatedFrame]) -> Iterator[MutatedFrame]:
    return (frame for frame in frames if frame.kind is not Kind.WRONG_LENGTH)


# ── what must stay as it is ─────────────────────────────────────────────────────────────────────────


def _prepare(admin: Side) -> Vocabulary:
    admin.create(KEPT)
    admin.append(KEPT, b"one", b"two")
    admin.create(ALICES, 2)
    ids: list[UUID] = list(admin.topic_ids.values())
    names = (KEPT, ALICES, f"{PREFIX}group", "alice", "bob", "kafka-cluster", "User:alice", "retention.ms")
    return Vocabulary(strings=names, uuids=ids, numbers=(0, 1, 2, -1, 3), duration_ms_max=5)


def _state(admin: Side, broker: NilometerBroker) -> dict[str, object]:
    """Return what alice has no right to change."""
    metadata = admin.message(ApiKey.METADATA, 12, topics=None, allow_auto_topic_creation=False)
    topics = sorted(topic.name for topic in metadata.topics if not topic.is_internal)
    return {
        "topics": [name for name in topics if not name.startswith(PREFIX)],
        "settings": [_settings(admin, kind, name) for kind, name in ((2, KEPT), (4, "1"), (4, ""))],
        "acls": admin.ask(ApiKey.DESCRIBE_ACLS, 3, **_EVERY_ACL),
        "users": admin.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None),
        "quotas": admin.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=(), strict=False),
        "records": [path.read_bytes() for path in sorted(broker.data_dir.glob(f"{KEPT}-0/*.log"))],
    }


_EVERY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def _settings(admin: Side, kind: int, name: str) -> object:
    key = ApiKey.DESCRIBE_CONFIGS
    asked = make(
        key, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None
    )
    answer: Message = admin.message(key, 4, resources=(asked,))
    return [(each.name, each.value) for each in answer.results[0].configs]


def _rss_bytes(broker: NilometerBroker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def _sockets(broker: NilometerBroker) -> int:
    found = 0
    for path in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += path.readlink().name.startswith("socket:")
    return found
