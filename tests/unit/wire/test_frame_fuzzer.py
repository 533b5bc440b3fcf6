"""The fuzzer itself: what it says it makes, it makes, and the same again."""

from __future__ import annotations

import functools
from collections import Counter
from uuid import UUID

from nilometer.wire.errors import KafkaError, MalformedRequest, UnsupportedVersion
from nilometer.wire.messages import ApiKey, decode_request
from nilometer.wire.record_batch import batches, check_batch
from nilometer.wire.records import decode_records
from support.wire.frame_fuzzer import EVERY_VERSION, Kind, MutatedFrame, mutated_frame, mutated_frames
from support.wire.random_messages import Vocabulary

SEED = 20


@functools.cache
def sample() -> list[MutatedFrame]:
    """Return 6,000 frames. Made when first used: every worker of a run imports this module."""
    return list(mutated_frames(SEED, 6000))


def of_kind(kind: Kind) -> list[MutatedFrame]:
    return [mutation for mutation in sample() if mutation.kind is kind]


def length_of(mutation: MutatedFrame) -> int:
    return int.from_bytes(mutation.frame[:4], "big", signed=True)


def decodes(mutation: MutatedFrame) -> bool:
    try:
        decode_request(mutation.frame[4:])
    except (MalformedRequest, UnsupportedVersion):
        return False
    return True


def test_seed_and_index_name_a_frame() -> None:
    for mutation in sample()[::97]:
        assert mutated_frame(mutation.seed, mutation.index) == mutation
    assert list(mutated_frames(SEED, 5, start=100)) == sample()[100:105]
    assert [m.frame for m in mutated_frames(SEED + 1, 50)] != [m.frame for m in sample()[:50]]
    assert sample()[3].describe().startswith("mutated_frame(20, 3): PRODUCE 6, ")


def test_every_version_takes_its_turn_and_every_kind_occurs() -> None:
    assert {(m.api_key, m.api_version) for m in sample()[: len(EVERY_VERSION)]} == set(EVERY_VERSION)
    kinds = Counter(m.kind for m in sample())
    assert set(kinds) == set(Kind)
    assert min(kinds.values()) > 300


def test_valid_frames_are_valid() -> None:
    for mutation in of_kind(Kind.VALID):
        header, _ = decode_request(mutation.frame[4:])
        assert length_of(mutation) == len(mutation.frame) - 4
        assert (header.api_key, header.api_version) == (mutation.api_key, mutation.api_version)
        assert header.correlation_id == mutation.index


def test_only_a_wrong_length_is_wrong() -> None:
    for mutation in sample():
        if mutation.kind is not Kind.WRONG_LENGTH:
            assert length_of(mutation) == len(mutation.frame) - 4, mutation.describe()
    wrong = [m for m in of_kind(Kind.WRONG_LENGTH) if length_of(m) != len(m.frame) - 4]
    assert len(wrong) > 0.9 * len(of_kind(Kind.WRONG_LENGTH))
    assert min(map(length_of, wrong)) < 0 and max(map(length_of, wrong)) > 100_000_000


def test_mutations_bite() -> None:
    """Most are refused by the decoder; some must pass, or nothing behind it would ever be tried."""
    for kind in (
        Kind.BIT_FLIPS,
        Kind.TRUNCATED,
        Kind.OVERWRITTEN,
        Kind.HOSTILE_COUNT,
        Kind.LEFT_OUT,
        Kind.DOUBLED,
    ):
        refused = sum(not decodes(mutation) for mutation in of_kind(kind))
        assert refused > 0.15 * len(of_kind(kind)), (kind, refused)
    assert not any(decodes(mutation) for mutation in of_kind(Kind.UNKNOWN_API))
    passed = sum(
        decodes(m) for m in sample() if m.kind in (Kind.BIT_FLIPS, Kind.OVERWRITTEN, Kind.HOSTILE_COUNT)
    )
    assert passed > 100


def test_damaged_records_lie_under_a_right_crc() -> None:
    produce = [i for i in range(20_000) if EVERY_VERSION[i % len(EVERY_VERSION)][0] is ApiKey.PRODUCE]
    refused = seen = 0
    for mutation in (mutated_frame(SEED, index) for index in produce):
        if mutation.kind is not Kind.RECORDS:
            continue
        _, request = decode_request(mutation.frame[4:])
        for topic in request.topic_data:
            for partition in topic.partition_data:
                found, bad = outcome(partition.records or b"")
                seen += found
                refused += bad
    assert seen > 20
    assert refused > seen / 2


def outcome(records: bytes) -> tuple[int, int]:
    """(batches that pass the CRC or fail for another reason, those that fail)."""
    if len(records) < 61 or records[16] != 2:
        return 0, 0
    ((position, header), *_) = batches(records)
    try:
        check_batch(records, position, header)
        decode_records(records, position, header, limit=1_000_000)
    except KafkaError as error:
        assert "CRC" not in error.message
        return 1, 1
    return 1, 0


def test_the_vocabulary_is_spoken() -> None:
    topic_id = UUID(int=77)
    vocabulary = Vocabulary(strings=("known-topic",), uuids=(topic_id,), numbers=(0,), duration_ms_max=3)
    frames = [m.frame for m in mutated_frames(SEED, 1200, vocabulary)]
    assert sum(b"known-topic" in frame for frame in frames) > 300
    assert any(topic_id.bytes in frame for frame in frames)
