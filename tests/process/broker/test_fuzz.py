"""A broker process under a rain of mutated frames: it goes on answering, and keeps what it was given.

Frames come from a seed, and each is named by its seed and index.
`FUZZ=20 pytest tests/process/broker/test_fuzz.py` is the whole run of a seed, `FUZZ=20:1234` one frame of it.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from uuid import UUID

import pytest

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api, encode_request
from nilometer.wire.record_batch import HEADER_BYTES, batches, check_batch
from nilometer.wire.records import BatchBuilder, decode_records
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.served_apis import APIS
from support.wire.frame_fuzzer import (
    EVERY_VERSION,
    Kind,
    MutatedFrame,
    damaged_batch,
    mutated_frame,
    random_batch,
)
from support.wire.fuzz_connections import FuzzConnections
from support.wire.new_topics import new_topic
from support.wire.random_messages import Vocabulary
from support.wire.wire_peer import WirePeer, make

SEED, _, ONLY = os.environ.get("FUZZ", "20").partition(":")
CONNECTIONS = 8
FRAMES = 20_000
FRAMES_LONG = 400_000
UNSERVED_EVERY = 16
"""APIs that are not served end every connection in the same way: of their frames, only some are sent."""
AIMED_EVERY = 8
"""Of so many frames one is damaged behind the decoder only."""
_NUMBERS = (0, 1, 2, 3, 100, -1, -2, 2**31 - 1, -(2**31))
RSS_GROWTH_BYTES_MAX = 96 * 1024 * 1024
SETTINGS = {
    "log.segment.bytes": "1048576",
    "log.segment.delete.delay.ms": "3600000",
    "log.retention.ms": "-1",
    "log.cleaner.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}
"""What deleted topics held can be looked at in the end, records of long ago stay however long this takes,
none is compacted, and a frame that joins a group holds up nothing."""
KEPT, FUZZED = "kept", ("fuzzed-a", "fuzzed-b")
RECORDS_KEPT = 50
CREATE_VERSION, PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 7, 9, 12, 12


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_broker_survives_mutated_frames(tmp_path: Path) -> None:
    _rain(tmp_path, int(SEED), FRAMES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(int(SEED), int(SEED) + 4))
def test_a_broker_survives_many_mutated_frames(tmp_path: Path, seed: int) -> None:
    _rain(tmp_path, seed, FRAMES_LONG)


def _rain(folder: Path, seed: int, count: int) -> None:
    with NilometerBroker(folder / "data", SETTINGS) as broker:
        vocabulary = _prepare(broker.bootstrap)
        before = _stored(broker.data_dir, KEPT)
        connections = FuzzConnections(broker.port, CONNECTIONS)
        produced = _Produced()
        frames = produced.noting(_frames(seed, count, vocabulary))
        replay = f"FUZZ={seed}:INDEX pytest tests/process/broker/test_fuzz.py"
        try:
            connections.drive(islice(frames, count // 10))
            rss = _rss_bytes(broker.pid)
            connections.drive(frames)
        except Exception as error:
            raise AssertionError(f"{error}\nreplay: {replay}\n{broker.output[-3000:]}") from error
        growth = _rss_bytes(broker.pid) - rss
        assert broker.alive(), broker.output[-3000:]
        _refuse_errors(broker.output, connections, replay)
        assert connections.answered + connections.closed == connections.sent
        assert ONLY or connections.answered > connections.sent / 5, "most frames must be answered"
        assert growth < RSS_GROWTH_BYTES_MAX, f"RSS grew by {growth >> 20} MiB; seed {seed}"
        assert _stored(broker.data_dir, KEPT) == before
        _check_serving(broker.bootstrap)
        produced.account_for(broker.data_dir)
    assert "Traceback" not in broker.output


def _frames(seed: int, count: int, vocabulary: Vocabulary) -> Iterator[MutatedFrame]:
    if ONLY:
        yield _frame(seed, int(ONLY), vocabulary)
        return
    index = sent = 0
    while sent < count:
        if EVERY_VERSION[index % len(EVERY_VERSION)][0] in APIS or index % UNSERVED_EVERY == 0:
            sent += 1
            yield _frame(seed, index, vocabulary)
        index += 1


def _frame(seed: int, index: int, vocabulary: Vocabulary) -> MutatedFrame:
    if index % AIMED_EVERY:
        return mutated_frame(seed, index, vocabulary)
    chance = random.Random(f"{seed}.{index}")
    return (
        _aimed_at_fetch(seed, index, chance) if chance.random() < 0.3 else _aimed_at_log(seed, index, chance)
    )


def _aimed_at_log(seed: int, index: int, chance: random.Random) -> MutatedFrame:
    """A produce request in which nothing but the batches may be wrong: they reach what checks them."""
    version = chance.randint(3, 12)
    kind = chance.choice((Kind.VALID, Kind.RECORDS, Kind.BIT_FLIPS, Kind.TRUNCATED, Kind.DOUBLED))
    batch = random_batch(chance)
    match kind:
        case Kind.RECORDS:
            batch = damaged_batch(batch, chance)
        case Kind.BIT_FLIPS:
            damaged = bytearray(batch)
            damaged[chance.randrange(len(batch))] ^= 1 << chance.randrange(8)
            batch = bytes(damaged)
        case Kind.TRUNCATED:
            batch = batch[: chance.randrange(len(batch))]
        case Kind.DOUBLED:
            batch *= 2
    partition = make(ApiKey.PRODUCE, version, "PartitionProduceData", index=0, records=batch)
    topic = make(
        ApiKey.PRODUCE,
        version,
        "TopicProduceData",
        name=chance.choice(FUZZED),
        partition_data=(partition,) * chance.choice((1, 1, 2)),
    )
    request = api(ApiKey.PRODUCE, version).request(
        transactional_id=None, acks=chance.choice((-1, 1, 0, 2)), timeout_ms=5, topic_data=(topic,)
    )
    frame = encode_request(index, "fuzzer", request)
    return MutatedFrame(seed, index, ApiKey.PRODUCE, version, kind, frame)


def _aimed_at_fetch(seed: int, index: int, chance: random.Random) -> MutatedFrame:
    """A fetch request that is whole, of a topic that is there, with numbers that no client means."""
    version = chance.randint(4, 12)
    partitions = tuple(
        make(
            ApiKey.FETCH,
            version,
            "FetchPartition",
            partition=number,
            fetch_offset=chance.choice(_NUMBERS),
            partition_max_bytes=chance.choice(_NUMBERS),
            current_leader_epoch=chance.choice((-1, 0, 1, -2)),
            last_fetched_epoch=chance.choice((-1, 0, 1, -2)),
        )
        for number in chance.choices((0, 1, 2, -1), k=chance.choice((1, 2, 5)))
    )
    topic = make(ApiKey.FETCH, version, "FetchTopic", topic=chance.choice(FUZZED), partitions=partitions)
    request = api(ApiKey.FETCH, version).request(
        replica_id=chance.choice((-1, -1, -2, 0, 1)),
        max_wait_ms=5,
        min_bytes=chance.choice(_NUMBERS),
        max_bytes=chance.choice(_NUMBERS),
        isolation_level=chance.choice((0, 1, 2, -1)),
        session_id=chance.choice((0, 1)),
        session_epoch=chance.choice((0, -1, 1)),
        topics=(topic,),
    )
    frame = encode_request(index, "fuzzer", request)
    return MutatedFrame(seed, index, ApiKey.FETCH, version, Kind.VALID, frame)


class _Produced:
    """The produce frames that were sent: the only source of batches in topics that frames may write to."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def noting(self, frames: Iterator[MutatedFrame]) -> Iterator[MutatedFrame]:
        for frame in frames:
            if frame.api_key is ApiKey.PRODUCE or frame.kind is Kind.SPLICED:
                self._bytes += frame.frame
            yield frame

    def account_for(self, data_dir: Path) -> None:
        """Every batch that is stored is sound, and was sent as it is."""
        found = Counter[str]()
        for path in sorted(data_dir.glob("*/*.log")):
            name = path.parent.name
            if name == f"{KEPT}-0":
                continue
            stored = path.read_bytes()
            end = 0
            for position, header in batches(stored):
                check_batch(stored, position, header)
                # The broker alone writes to internal topics, and makes the markers of transactions.
                if not header.is_control and not name.startswith(INTERNAL_TOPICS):
                    # Behind the CRC, all is as its producer sent it.
                    body = stored[position + HEADER_BYTES - 40 : position + header.size]
                    assert body in self._bytes, (
                        f"{name} holds a batch at {header.base_offset} that was not sent"
                    )
                end = position + header.size
                found[name] += 1
            assert end == len(stored), f"{path} ends in {len(stored) - end} bytes that are no batch"
        assert ONLY or any(name.startswith("fuzzed") for name in found), found


def _prepare(bootstrap: str) -> Vocabulary:
    with WirePeer(bootstrap) as peer:
        topics = tuple(
            new_topic(name, 2, version=CREATE_VERSION, replication_factor=-1) for name in (KEPT, *FUZZED)
        )
        created = peer.ask(ApiKey.CREATE_TOPICS, CREATE_VERSION, topics=topics, timeout_ms=10_000)
        assert [topic.error_code for topic in created.topics] == [ErrorCode.none] * 3
        assert _produce(peer, KEPT, RECORDS_KEPT) == (ErrorCode.none, 0)
    ids: list[UUID] = [topic.topic_id for topic in created.topics if topic.name != KEPT]
    return Vocabulary(
        strings=(*FUZZED, "retention.ms", "cleanup.policy", "1"),
        uuids=ids,
        numbers=(0, 1, 2, -1, 3),
        duration_ms_max=5,
    )


def _check_serving(bootstrap: str) -> None:
    """New clients find the topic, write to it and read what was there before."""
    with WirePeer(bootstrap) as peer:
        asked = make(ApiKey.METADATA, METADATA_VERSION, "MetadataRequestTopic", name=KEPT)
        found = peer.ask(ApiKey.METADATA, METADATA_VERSION, topics=(asked,))
        assert [part.leader_id for part in found.topics[0].partitions] == [1, 1]
        partition = make(
            ApiKey.FETCH, FETCH_VERSION, "FetchPartition", partition=0, partition_max_bytes=1 << 20
        )
        topic = make(ApiKey.FETCH, FETCH_VERSION, "FetchTopic", topic=KEPT, partitions=(partition,))
        fetched = peer.ask(
            ApiKey.FETCH, FETCH_VERSION, topics=(topic,), max_bytes=1 << 20, session_epoch=-1, max_wait_ms=0
        )
        records = fetched.responses[0].partitions[0].records
        ((position, header),) = batches(records)
        values = [record.value for record in decode_records(records, position, header, limit=1 << 20)]
        assert values == [b"value %d" % number for number in range(RECORDS_KEPT)]
        assert _produce(peer, KEPT, 1) == (ErrorCode.none, RECORDS_KEPT)


def _produce(peer: WirePeer, topic: str, count: int) -> tuple[ErrorCode, int]:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_700_000_000_000 + number, None, b"value %d" % number)
    version = PRODUCE_VERSION
    partition = make(ApiKey.PRODUCE, version, "PartitionProduceData", index=0, records=builder.build())
    data = make(ApiKey.PRODUCE, version, "TopicProduceData", name=topic, partition_data=(partition,))
    answer = peer.ask(ApiKey.PRODUCE, version, acks=-1, timeout_ms=10_000, topic_data=(data,))
    outcome = answer.responses[0].partition_responses[0]
    return outcome.error_code, outcome.base_offset


def _stored(data_dir: Path, topic: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(data_dir)): path.read_bytes()
        for path in sorted(data_dir.glob(f"{topic}-*/*.log"))
    }


def _refuse_errors(output: str, connections: FuzzConnections, replay: str) -> None:
    """No handler may fail: the frame to blame is the one that the connection closed with it carried."""
    if "Traceback" not in output and " ERROR " not in output and " CRITICAL " not in output:
        return
    blamed = [
        f"{match[2]}: {connections.last_frame_of_port[int(match[1])].describe()}"
        for match in re.finditer(r"Closing the connection from [\d.]+:(\d+): (.* failed: .*)", output)
        if int(match[1]) in connections.last_frame_of_port
    ]
    shown = [line for line in output.splitlines() if "Closing the connection" not in line]
    raise AssertionError(
        "the broker reported errors\n"
        + "\n".join(blamed[:20])
        + f"\nreplay: {replay}\n"
        + "\n".join(shown[-80:])
    )


def _rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
