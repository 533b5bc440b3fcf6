"""kill -9 of a broker under load, again and again: what was acknowledged is there, once, in order, intact.

The schedule comes from a seed: `CRASH_SEED=17 pytest tests/process/crash` runs it again.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.brokers.nilometer_broker import NilometerBroker
from support.chaos.crash_load import Reader, Writer
from support.eventually import eventually
from support.logs.segments import StoredBatch, batches_of, segment_files
from support.simulation.history import History, Outcome, Send, check

TOPIC = "crash"
PARTITIONS = 2
WRITERS = 3
SEED = int(os.environ.get("CRASH_SEED", "20"))


@pytest.mark.quick
@pytest.mark.long
def test_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    _kill_and_check(tmp_path, kills=10, seed=SEED)


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
            _wait_for_load(writers)
            threading.Event().wait(chance.uniform(0.0, 0.4))
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
        verified.check_on_disk(history.sends, everything=True)
        assert [fatal for writer in writers for fatal in writer.fatal_errors] == []
        anomalies = check(history)
        assert anomalies == [], "\n".join(str(each) for each in anomalies[:20])
        sends = history.sends
        print(f"{kills} kills, {len(sends)} records, seed {seed}")
        assert [send for send in sends if send.outcome is not Outcome.OK] == []
        assert len(sends) > kills * 100
    except BaseException:
        history.save(folder / "history.jsonl")
        print(f"history: {folder / 'history.jsonl'}; again: CRASH_SEED={seed} pytest tests/process/crash")
        broker.kill()
        raise


def _wait_for_load(writers: list[Writer]) -> None:
    """Until each producer has found the broker again: a death of an idle broker shows little."""
    before = [writer.acknowledged for writer in writers]
    eventually(
        lambda: all(writer.acknowledged > count for writer, count in zip(writers, before, strict=True)),
        "every producer gets acknowledgements",
    )


def _create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    created[TOPIC].result(10)


def _last_offsets(acknowledged: list[Send]) -> dict[int, int]:
    last: dict[int, int] = {}
    for send in acknowledged:
        partition = int(send.partition.rpartition("-")[2])
        last[partition] = max(send.offset or 0, last.get(partition, -1))
    return last


class _Verified:
    """What was seen on disk after earlier deaths, batch by batch: it may be added to, never changed.

    Segments that lie wholly below what was acknowledged are looked at again only at the end.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._known: dict[int, dict[int, tuple[int, int, int]]] = {number: {} for number in range(PARTITIONS)}
        self._settled_files: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)

    def check_on_disk(self, acknowledged: list[Send], *, everything: bool = False) -> None:
        last = _last_offsets(acknowledged)
        for partition, known in self._known.items():
            files = segment_files(self._data_dir, TOPIC, partition)
            chosen = files if everything else files[self._settled_files[partition] :]
            batches = [batch for path in chosen for batch in batches_of(path.read_bytes(), path)]
            assert [batch for batch in batches if not batch.crc_valid] == []
            _assert_gapless(batches, int(chosen[0].stem))
            outline = {each.base_offset: (each.last_offset, each.producer_id, each.size) for each in batches}
            for base_offset, seen in known.items():
                assert base_offset < batches[0].base_offset or outline[base_offset] == seen
            acknowledged_to = last.get(partition, -1)
            assert batches[-1].last_offset >= acknowledged_to
            known.update({base: seen for base, seen in outline.items() if seen[0] <= acknowledged_to})
            self._settled_files[partition] = max(0, len(files) - 2)


def _assert_gapless(batches: list[StoredBatch], expected: int) -> None:
    for batch in batches:
        assert batch.base_offset == expected, f"{batch.path.name} at byte {batch.position}"
        expected = batch.last_offset + 1
