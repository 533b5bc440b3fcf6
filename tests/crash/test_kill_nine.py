"""kill -9 of a broker under load, again and again: what was acknowledged is there, once, in order, intact.

The schedule comes from a seed: `CRASH_SEED=17 pytest tests/crash` runs it again.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.crash_load import Reader, Writer
from support.history import History, Outcome, Send, check
from support.nilometer_broker import NilometerBroker
from support.segments import StoredBatch, stored_batches

TOPIC = "crash"
PARTITIONS = 2
WRITERS = 3
SEED = int(os.environ.get("CRASH_SEED", "20"))


@pytest.mark.timeout(280)
def test_fifty_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    _kill_and_check(tmp_path, kills=50, seed=SEED)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_many_kills(tmp_path: Path, seed: int) -> None:
    _kill_and_check(tmp_path, kills=250, seed=seed)


def _kill_and_check(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    history = History()
    broker = NilometerBroker(folder / "data", {"log.segment.bytes": "1048576"})
    broker.start()
    try:
        _create_topic(broker.bootstrap)
        writers = [
            Writer(f"w{number}", broker.bootstrap, TOPIC, PARTITIONS, history) for number in range(WRITERS)
        ]
        reader = Reader("tail", broker.bootstrap, TOPIC, PARTITIONS, history)
        verified = _Verified(broker.data_dir)
        for writer in writers:
            writer.start()
        for _ in range(kills):
            threading.Event().wait(chance.uniform(0.05, 0.5))
            broker.kill()
            acknowledged = [send for send in history.sends if send.outcome is Outcome.OK]
            broker.start()
            reader.read_past(_last_offsets(acknowledged))
            verified.check_on_disk(acknowledged)
        for writer in writers:
            writer.stop()
        reader.read_past(reader.ends())
        reader.close()
        last = Reader("last", broker.bootstrap, TOPIC, PARTITIONS, history)
        last.read_past(last.ends())
        last.close()
        history.read_to_end("last")
        assert broker.stop() == 0
        assert [fatal for writer in writers for fatal in writer.fatal_errors] == []
        anomalies = check(history)
        assert anomalies == [], "\n".join(str(each) for each in anomalies[:20])
        sends = history.sends
        assert sum(send.outcome is Outcome.OK for send in sends) > kills * 10
        assert [send for send in sends if send.outcome is not Outcome.OK] == []
    except BaseException:
        history.save(folder / "history.jsonl")
        print(f"history: {folder / 'history.jsonl'}; again: CRASH_SEED={seed} pytest tests/crash")
        broker.kill()
        raise


def _create_topic(bootstrap: str) -> None:
    created = AdminClient({"bootstrap.servers": bootstrap}).create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    created[TOPIC].result(10)


def _last_offsets(acknowledged: list[Send]) -> dict[int, int]:
    last: dict[int, int] = {}
    for send in acknowledged:
        partition = int(send.partition.rpartition("-")[2])
        last[partition] = max(send.offset or 0, last.get(partition, -1))
    return last


class _Verified:
    """What was seen on disk after earlier deaths, batch by batch: it may be added to, never changed."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._known: dict[int, list[tuple[int, int, int]]] = {number: [] for number in range(PARTITIONS)}

    def check_on_disk(self, acknowledged: list[Send]) -> None:
        last = _last_offsets(acknowledged)
        for partition, known in self._known.items():
            batches = stored_batches(self._data_dir, TOPIC, partition)
            assert [batch for batch in batches if not batch.crc_valid] == []
            _assert_gapless(batches)
            outline = [(batch.base_offset, batch.last_offset, batch.producer_id) for batch in batches]
            assert outline[: len(known)] == known
            assert outline[-1][1] >= last.get(partition, -1)
            settled = [each for each in outline if each[1] <= last.get(partition, -1)]
            self._known[partition] = settled


def _assert_gapless(batches: list[StoredBatch]) -> None:
    expected = 0
    for batch in batches:
        assert batch.base_offset == expected, f"{batch.path.name} at byte {batch.position}"
        expected = batch.last_offset + 1
