"""Sends random admin requests to every broker of a cluster in parallel, and counts the responses.

A request is determined by the seed and its number; of three brokers each gets every third request. If a
connection ends without a response, that is recorded, and the next request opens another connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from nilometer.simulation.workload.random_administrator import (
    AdminRequest,
    Subjects,
    error_codes,
    seeded_admin_request,
)
from nilometer.wire.messages import decode_response, encode_request
from support.brokers.served_apis import ranges

from .wire_peer import ConnectionEnded, WirePeer

ANSWER_TIMEOUT_S = 120.0


class AdminFuzz:
    def __init__(self, bootstraps: Sequence[str], subjects: Subjects, seed: int) -> None:
        self._bootstraps = bootstraps
        self._subjects = subjects
        self._seed = seed
        self.sent = 0
        self.answers: Counter[str] = Counter()
        """The number of responses by API and error code."""
        self.unanswered: list[str] = []

    def drive(self, numbers: Sequence[int]) -> None:
        connections = len(self._bootstraps)
        with ThreadPoolExecutor(connections) as pool:
            shares = [numbers[index::connections] for index in range(connections)]
            list(pool.map(self._drive_one, range(connections), shares))

    def _drive_one(self, index: int, numbers: Sequence[int]) -> None:
        peer: WirePeer | None = None
        for number in numbers:
            request = seeded_admin_request(self._seed, number, self._subjects, ranges(for_brokers=False))
            try:
                if peer is None:
                    peer = WirePeer(self._bootstraps[index], client_id="admin", timeout_s=ANSWER_TIMEOUT_S)
                self._ask(peer, request)
            except (ConnectionEnded, OSError) as error:
                what = f"{request.key.name} {request.version}"
                self.unanswered.append(f"number {number} ({what}) at broker {index + 1}: {error!r}")
                if peer is not None:
                    peer.close()
                peer = None
        if peer is not None:
            peer.close()

    def _ask(self, peer: WirePeer, request: AdminRequest) -> None:
        self.sent += 1
        peer.socket.sendall(encode_request(1, "admin", request.message))
        _, response = decode_response(request.key, request.version, peer.receive())
        for code in error_codes(response):
            self.answers[f"{request.key.name} {code}"] += 1
