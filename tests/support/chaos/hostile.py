"""Clients that send what costs a broker most, all of it legal, in an order drawn from a seed.

Each has a thread of its own and attacks until it is stopped. An attack ends when its responses have come or
the broker has closed the connection: that is the broker's right.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.messages import api, encode_request

from ..brokers.two_brokers import produce_fields
from ..wire.compressed_batches import batch_of, one_record
from ..wire.filled_requests import Case, cases
from ..wire.wire_peer import ConnectionEnded, WirePeer, make

FILLED_BYTES = 500_000
WAIT_S = 20.0
UNREAD_S = 12.0
"""Longer than a broker lets a client that does not read hold memory that others need."""


class HostileClients:
    """Use as a context: they attack within it. ``attacks`` counts what they did."""

    def __init__(self, bootstrap: Sequence[str], topic: str, partitions: int, seed: int, count: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._cases: list[Case] = list(cases(FILLED_BYTES))
        self._ends = threading.Event()
        self.attacks: Counter[str] = Counter()
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"),), daemon=True)
            for number in range(count)
        ]

    def __enter__(self) -> HostileClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(5 * WAIT_S)
            assert not thread.is_alive(), "a hostile client does not end"

    def _run(self, chance: random.Random) -> None:
        attacks: tuple[Callable[[random.Random, WirePeer], None], ...] = (
            self._fill,
            self._fill,
            self._fill,
            self._read_nothing,
            self._announce,
            self._join_with_much,
            self._decompress,
            self._pipeline,
            self._come_and_go,
        )
        while not self._ends.is_set():
            attack = chance.choice(attacks)
            try:
                with WirePeer(chance.choice(self._bootstrap), "hostile", WAIT_S) as peer:
                    attack(chance, peer)
            except (OSError, ConnectionEnded):
                self.attacks[f"{attack.__name__}, ended by the broker"] += 1
            except Exception as error:
                self.failures.append(f"{attack.__name__}: {error!r}")
            else:
                self.attacks[attack.__name__] += 1

    def _fill(self, chance: random.Random, peer: WirePeer) -> None:
        """Send the worst request of an API, and read its response."""
        peer.socket.sendall(chance.choice(self._cases).frame)
        peer.receive()

    def _pipeline(self, chance: random.Random, peer: WirePeer) -> None:
        """Send many requests at once, and read what comes for a while."""
        some = b"".join(chance.choice(self._cases).frame for _ in range(8))
        with contextlib.suppress(TimeoutError):
            peer.socket.settimeout(2.0)
            peer.socket.sendall(some)
            for _ in range(8):
                peer.receive()

    def _read_nothing(self, chance: random.Random, peer: WirePeer) -> None:
        """Fetch everything, fifty times, and read nothing."""
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        frame = encode_request(1, "hostile", self._fetch())
        with contextlib.suppress(TimeoutError):
            peer.socket.settimeout(1.0)
            peer.socket.sendall(frame * 50)
        self._ends.wait(chance.uniform(0, UNREAD_S))

    def _fetch(self) -> Any:
        found = api(ApiKey.FETCH, 11)
        partitions = tuple(
            make(
                ApiKey.FETCH,
                11,
                "FetchPartition",
                partition=index,
                fetch_offset=0,
                partition_max_bytes=1 << 26,
            )
            for index in range(self._partitions)
        )
        topics = (make(ApiKey.FETCH, 11, "FetchTopic", topic=self._topic, partitions=partitions),)
        return found.request(topics=topics, max_bytes=1 << 26, min_bytes=1, session_epoch=-1)

    def _announce(self, chance: random.Random, peer: WirePeer) -> None:
        """Send a part of a large request, and then nothing."""
        size = chance.randint(1, 90) * 1_000_000
        with contextlib.suppress(TimeoutError):
            peer.socket.settimeout(2.0)
            peer.socket.sendall(struct.pack(">ihhi", size, ApiKey.PRODUCE, 9, 1) + bytes(size // 3))
        self._ends.wait(chance.uniform(0, UNREAD_S))

    def _join_with_much(self, chance: random.Random, peer: WirePeer) -> None:
        """Become the member of a group, with megabytes of metadata."""
        key, version = ApiKey.JOIN_GROUP, 3
        metadata = bytes(chance.randint(1, 10_000_000))
        peer.ask(
            key,
            version,
            group_id=f"hostile-{chance.randrange(50)}",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            member_id="",
            protocol_type="consumer",
            protocols=(make(key, version, "JoinGroupRequestProtocol", name="range", metadata=metadata),),
        )

    def _decompress(self, chance: random.Random, peer: WirePeer) -> None:
        """Produce a small batch that is large when decompressed."""
        peer.ask(ApiKey.PRODUCE, 9, **produce_fields(9, "hostile-compacted", {0: _BOMB}))

    def _come_and_go(self, chance: random.Random, peer: WirePeer) -> None:
        for _ in range(100):
            with WirePeer(chance.choice(self._bootstrap), "hostile", WAIT_S) as other:
                other.tell(ApiKey.API_VERSIONS, 0)


_BOMB = batch_of(Codec.ZSTD, 1, one_record(100_000_000))
