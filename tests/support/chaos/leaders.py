"""Checks that there are never two leaders of a partition that accept writes at the same time.

A thread per broker, without a client's cache or retries, requests the broker's leader epoch, produces a
record with acks=1, and requests the epoch again. If both epochs are equal, the write was accepted in that
epoch. If a broker accepts in an older epoch a write that was *sent* after another broker's acknowledgement in
a newer epoch had *arrived*, it is a second leader.

If a leadership moves while the old leader is running, that broker learns of it a little later, as in Apache
Kafka, but at the latest when its lease ends: ``allowed_s`` allows for that.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message

from ..brokers.two_brokers import batch, produce_fields
from ..wire.wire_peer import ConnectionEnded, WirePeer, make

PACE_S = 0.1
TIMEOUT_S = 1.0
PRODUCE_VERSION = 9
LIST_OFFSETS_VERSION = 6
FOUND_MAX = 20


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest epoch in which a write was accepted, by which broker, and when its response arrived."""

    epoch: int
    broker: str
    known_at: float


class LeadersWatcher:
    """Runs the check on a topic, which no other check uses; ``allowed_s`` is the length of the lease."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, allowed_s: float) -> None:
        self.findings: list[str] = []
        self.accepted = 0
        self._topic = topic
        self._allowed_s = allowed_s
        self._partitions = range(partitions)
        self._newest: dict[int, Newest] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(broker,), name=f"leaders {broker}", daemon=True)
            for broker in bootstrap.split(",")
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if not self.accepted:
            self.findings.append("no leader accepted anything from who watches leaders")

    def judge(self, broker: str, partition: int, epoch: int, sent_at: float, known_at: float) -> None:
        """Check a write that ``broker`` accepted: sent at ``sent_at``, acknowledged at ``known_at``."""
        with self._lock:
            self.accepted += 1
            newest = self._newest.get(partition)
            if newest is None or epoch > newest.epoch:
                self._newest[partition] = Newest(epoch, broker, known_at)
            elif (
                epoch < newest.epoch
                and broker != newest.broker
                and sent_at > newest.known_at + self._allowed_s
                and len(self.findings) < FOUND_MAX
            ):
                self.findings.append(
                    f"two leaders of {self._topic}-{partition}: {broker} accepted in epoch {epoch} what was "
                    f"sent {sent_at - newest.known_at:.2f} s after {newest.broker} had accepted in epoch "
                    f"{newest.epoch}, at {time.strftime('%X')}"
                )

    def _run(self, broker: str) -> None:
        while not self._stopping.wait(PACE_S):
            try:
                with WirePeer(broker, "leaders", timeout_s=TIMEOUT_S) as peer:
                    while not self._stopping.wait(PACE_S):
                        self._ask(broker, peer)
            except (OSError, ConnectionEnded):
                continue  # down, paused or cut off: retry on a new connection

    def _ask(self, broker: str, peer: WirePeer) -> None:
        before = self._epochs(peer)
        if not before:
            return
        sent_at = time.monotonic()
        accepted = self._write(peer, list(before))
        known_at = time.monotonic()
        after = self._epochs(peer)
        for partition in accepted:
            if after.get(partition) == before[partition]:
                self.judge(broker, partition, before[partition], sent_at, known_at)

    def _epochs(self, peer: WirePeer) -> dict[int, int]:
        """Return the leader epochs of the partitions of which this broker says that it is the leader."""
        key, version = ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION
        asked = tuple(
            make(key, version, "ListOffsetsPartition", partition_index=partition, timestamp=-1)
            for partition in self._partitions
        )
        topic = make(key, version, "ListOffsetsTopic", name=self._topic, partitions=asked)
        answer = peer.ask(key, version, replica_id=-1, isolation_level=0, topics=(topic,))
        return {
            part.partition_index: part.leader_epoch
            for part in answer.topics[0].partitions
            if part.error_code == ErrorCode.none
        }

    def _write(self, peer: WirePeer, partitions: list[int]) -> list[int]:
        fields = produce_fields(
            PRODUCE_VERSION, self._topic, dict.fromkeys(partitions, batch(b"accepted")), acks=1
        )
        answer: Message = peer.ask(ApiKey.PRODUCE, PRODUCE_VERSION, **fields)
        return [
            part.index
            for part in answer.responses[0].partition_responses
            if part.error_code == ErrorCode.none
        ]
