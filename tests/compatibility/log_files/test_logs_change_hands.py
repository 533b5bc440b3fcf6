"""Compacted, transactional and internal logs of one broker are opened by the other: Kafka's and ours.

Internal are `__consumer_offsets` and `__transaction_state`: the other broker coordinates with them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.changing_hands import (
    BROKER_SETTINGS,
    GROUPS,
    OFFSETS,
    PRODUCERS,
    TABLE,
    TOPICS,
    TRANSACTIONS,
    WAIT_S,
    Found,
    cleaned_up_to,
    commit,
    compact_internal_topics,
    create_topics,
    fill,
    find,
    producer,
    put_in_place,
    touch,
)
from support.kafka.java_driver import JavaDriver

pytestmark = [pytest.mark.java, pytest.mark.long]

COMPLAINTS = ("ismatch", "out of order", "orrupt", "invalid", "xception")


@dataclass(frozen=True, slots=True)
class Left:
    """The data folder that a stopped broker has left, and what clients had found in it."""

    folder: Path
    found: Found


def broker(name: str, folder: Path) -> NilometerBroker | ApacheKafka:
    if name == "nilometer":
        return NilometerBroker(folder / "data", BROKER_SETTINGS)
    return ApacheKafka(folder, overrides=BROKER_SETTINGS)


@pytest.fixture(scope="module")
def by_nilometer(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return leave("nilometer", tmp_path_factory.mktemp("nilometer"))


@pytest.fixture(scope="module")
def by_kafka(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return leave("kafka", tmp_path_factory.mktemp("kafka"))


def leave(name: str, folder: Path) -> Left:
    running = broker(name, folder)
    with running:
        create_topics(running.bootstrap)
        compact_internal_topics(running.bootstrap)
        fill(running.bootstrap)

        def is_compacted() -> bool:
            touch(running.bootstrap)
            cleaned = cleaned_up_to(running.data_dir)
            return all(cleaned.get(topic, 0) > 0 for topic in TOPICS)

        eventually(is_compacted, "all topics are compacted", WAIT_S)
        found = find(running.bootstrap)
    kept = folder / "kept"
    shutil.copytree(running.data_dir, kept)
    return Left(kept, found)


def test_kafka_goes_on_with_our_logs(by_nilometer: Left, tmp_path: Path) -> None:
    assert_continued(by_nilometer, "kafka", tmp_path)


def test_we_go_on_with_kafkas_logs(by_kafka: Left, tmp_path: Path) -> None:
    assert_continued(by_kafka, "nilometer", tmp_path)


def assert_continued(left: Left, target: str, folder: Path) -> None:
    """The other broker finds what was left, and coordinates the same groups and transactional ids."""
    other = broker(target, folder)
    with other:
        create_topics(other.bootstrap)
    put_in_place(left.folder, other.data_dir)
    with other:
        found = find(other.bootstrap)
        assert found == left.found
        again = producer(other.bootstrap, PRODUCERS[0])
        again.begin_transaction()
        again.produce(TABLE, b"continued", b"key 9")
        again.commit_transaction(WAIT_S)
        commit(other.bootstrap, GROUPS[3], 7_777)
        after = find(other.bootstrap)
        assert after.table == {**found.table, b"key 9": b"continued"}
        assert after.offsets == {**found.offsets, GROUPS[3]: 7_777}
        _, producer_id, epoch = found.transactions[PRODUCERS[0]]
        _, next_id, next_epoch = after.transactions[PRODUCERS[0]]
        assert next_id == producer_id and next_epoch > epoch
        assert found.transactions.items() - after.transactions.items() == {
            (PRODUCERS[0], found.transactions[PRODUCERS[0]])
        }


@pytest.fixture(scope="module")
def java() -> Iterator[JavaDriver]:
    with JavaDriver() as driver:
        yield driver


def dump(java: JavaDriver, paths: list[Path], *options: str) -> list[str]:
    """What Kafka's tool prints of the files, line by line."""
    files = ",".join(map(str, paths))
    done = java.run(
        "tool",
        **{"class": "org.apache.kafka.tools.DumpLogSegments"},
        arguments=[*options, "--files", files],
    )
    assert done["status"] in (None, 0), done["output"]
    return done["output"].splitlines()


@pytest.mark.parametrize(
    ("topic", "decoder", "shows"),
    [
        (TABLE, "--deep-iteration", ("endTxnMarker: COMMIT", "key 9")),
        (OFFSETS, "--offsets-decoder", ('"group":"group-4"', '"offset":5000')),
        (
            TRANSACTIONS,
            "--transaction-log-decoder",
            ('"transactionalId":"producer-2"', '"transactionStatus"'),
        ),
    ],
)
def test_dump_log_segments_reads_what_we_compacted(
    by_nilometer: Left, java: JavaDriver, topic: str, decoder: str, shows: tuple[str, ...]
) -> None:
    folder = by_nilometer.folder / f"{topic}-0"
    lines = dump(java, sorted(folder.glob("*.log")), decoder, "--print-data-log")
    sizes = [line for line in lines if line.startswith("baseOffset:")]
    assert sizes and all("isvalid: true" in line for line in sizes)
    offsets = [int(line.split()[2]) for line in lines if line.startswith("| offset:")]
    assert offsets == sorted(set(offsets))
    assert len(offsets) < offsets[-1] + 1, "compaction has left gaps"
    assert all(any(shown in line for line in lines) for shown in shows)
    told = [line for line in lines if not line.startswith(("baseOffset:", "| offset:"))]
    assert not [line for line in told if any(complaint in line for complaint in COMPLAINTS)]
    indexes = sorted([*folder.glob("*.index"), *folder.glob("*.timeindex")])
    told = dump(java, indexes, "--index-sanity-check")
    sane = [line for line in told if line.endswith(("passed sanity check.", "is empty."))]
    assert len(sane) == len(indexes), "\n".join(told)
    assert any("passed" in line for line in sane)
    assert not [line for line in told if any(complaint in line for complaint in COMPLAINTS)]
