"""A whole broker process, recorded under clients, and the judge of its images: another broker process.

Promised, by marks: ``topic`` (name) after the creation of a topic was acknowledged, ``gone`` (name) after its
deletion was, ``acknowledged`` (topic, offset, value) after a record of a topic with ``flush.messages=1`` was.
``deleting`` precedes a deletion. A judged broker must start, have all of that, have at each offset only a
value that was sent to this topic, without gaps, take another record, and stop in order.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from nilometer.simulation.disk import FolderNode
from support.brokers.nilometer_broker import NilometerBroker
from support.crash_images.images import Replay, write_to
from support.crash_images.recording import Mark, Recording
from support.ports import HOST, free_ports

FLUSHED, LAZY, COMPACTED, REBORN = "flushed", "lazy", "compacted", "reborn"
_SMALL = {"segment.ms": "300"}
TOPICS = {
    FLUSHED: {"flush.messages": "1", **_SMALL},
    LAZY: _SMALL,
    COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", **_SMALL},
    REBORN: {"flush.messages": "1", **_SMALL},
}
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "200",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.segment.delete.delay.ms": "300",
}
WAIT_S = 30.0
RECORDED_BROKER = (
    f"import runpy, sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
    "runpy.run_module('support.crash_images.recorded_broker', run_name='__main__')"
)
LATE_OPERATIONS = 60
"""A mark goes through a pipe: so many operations may overtake it."""


def broker_on(folder: Path, *, is_quorum: bool) -> NilometerBroker:
    """Return a broker that keeps its metadata in ``folder``, too: in the coordination store, or in a quorum
    whose only voter it is."""
    if not is_quorum:
        return NilometerBroker(folder, SETTINGS)
    port, own = free_ports(2)
    quorum = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": f"1@{HOST}:{own}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{own}",
        "metadata.log.max.record.bytes.between.snapshots": "2000",
    }
    return NilometerBroker(folder, {**SETTINGS, **quorum}, port)


def record_broker(folder: Path, rounds: int, seed: int, *, is_quorum: bool = False) -> Recording:
    """Run a recorded broker below ``folder`` under clients; the recording's root is its log directory."""
    chance = random.Random(seed)
    marks, result = folder / "marks", folder / "recording"
    os.mkfifo(marks)
    broker = broker_on(folder / "data", is_quorum=is_quorum)
    broker.program = ("-c", RECORDED_BROKER)
    broker.launch()
    try:
        with _open(marks, broker) as pipe:
            broker.wait_ready()
            _use(broker.bootstrap, pipe, rounds, chance)
        assert broker.stop() == 0, broker.output[-2000:]
    finally:
        broker.kill()
    return Recording.load(result)


def _open(marks: Path, broker: NilometerBroker) -> TextIO:
    """Open the pipe once the broker reads from it. Raises AssertionError if it has ended."""
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            pipe = os.open(marks, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no one has it open to read
                raise
            assert broker.alive() and time.monotonic() < until_s, broker.output[-2000:]
            time.sleep(0.05)
        else:
            os.set_blocking(pipe, True)
            return os.fdopen(pipe, "w", encoding="utf-8", buffering=1)


def _use(bootstrap: str, pipe: TextIO, rounds: int, chance: random.Random) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name in TOPICS:
        _create(admin, name, pipe)
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    transactional.init_transactions(WAIT_S)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    sent = 0
    for number in range(rounds):
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
        for _ in range(chance.randint(2, 6)):
            sent += 1
            topic = chance.choice(list(TOPICS))
            value = f"{topic}:{number if topic == REBORN else 0}:{sent}:".ljust(chance.randint(20, 300), "x")
            _send(producer, topic, value, pipe)
        transactional.begin_transaction()
        sent += 1
        transactional.produce(LAZY, f"{LAZY}:0:{sent}:", key="k")
        (transactional.commit_transaction if chance.random() < 0.6 else transactional.abort_transaction)(
            WAIT_S
        )
        consumer.commit(offsets=[TopicPartition(FLUSHED, 0, number)], asynchronous=False)
        if number % 3 == 2:
            _mark(pipe, "deleting", REBORN)
            admin.delete_topics([REBORN])[REBORN].result(WAIT_S)
            _mark(pipe, "gone", REBORN)
            _create(admin, REBORN, pipe)
    consumer.close()


def _create(admin: AdminClient, name: str, pipe: TextIO) -> None:
    _mark(pipe, "creating", name)
    created = admin.create_topics([NewTopic(name, 1, 1, config=TOPICS[name])])
    created[name].result(WAIT_S)
    _mark(pipe, "topic", name)


def _send(producer: Producer, topic: str, value: str, pipe: TextIO) -> None:
    _mark(pipe, "sent", topic, value)

    def on_delivery(error: object, message: Message) -> None:
        assert error is None, error
        if "flush.messages" in TOPICS[topic]:
            _mark(pipe, "acknowledged", topic, message.offset() or 0, value)

    producer.produce(topic, value, key=f"k{len(value) % 3}", on_delivery=on_delivery)
    assert producer.flush(WAIT_S) == 0


def _mark(pipe: TextIO, kind: str, *values: str | int) -> None:
    pipe.write(json.dumps([kind, *values]) + "\n")


def judge_broker(
    image: FolderNode, folder: Path, recording: Recording, cut: int, *, is_quorum: bool = False
) -> list[str]:
    """Start a broker on the image, written to ``folder``, of the power cut after ``cut`` operations; return
    what is wrong."""
    folder.mkdir()
    write_to(image, folder)
    topics, unsure, acknowledged = _promises(_marks_at(recording, cut))
    all_marks = [each for each in recording.operations if isinstance(each, Mark)]
    sent = {str(mark.values[1]) for mark in all_marks if mark.kind == "sent"}
    broker = broker_on(folder, is_quorum=is_quorum)
    try:
        broker.start()
        findings = _look(broker.bootstrap, topics, unsure, acknowledged, sent)
        code = broker.stop()
    except Exception as error:  # whatever the reason is, the broker does not serve
        return [f"{type(error).__name__}: {str(error)[-3000:]}"]
    finally:
        broker.kill()
    if code != 0 or "Traceback" in broker.output:
        findings.append(f"it stopped with {code}: {broker.output[-3000:]}")
    return findings


def _marks_at(recording: Recording, cut: int) -> list[Mark]:
    """Return the marks of what was promised, and of what had begun: such a mark may come a little late."""
    marks = [each for each in recording.operations[:cut] if isinstance(each, Mark)]
    late = [each for each in recording.operations[cut : cut + LATE_OPERATIONS] if isinstance(each, Mark)]
    return marks + [mark for mark in late if mark.kind in ("creating", "deleting")]


def _promises(marks: Sequence[Mark]) -> tuple[set[str], set[str], dict[str, dict[int, str]]]:
    """Return the topics that exist, those that are being created or deleted, and the acknowledged records of
    the topics that exist."""
    topics: set[str] = set()
    unsure: set[str] = set()
    acknowledged: dict[str, dict[int, str]] = {}
    for mark in marks:
        name = str(mark.values[0])
        match mark.kind:
            case "creating":
                unsure.add(name)
            case "topic":
                topics.add(name)
                unsure.discard(name)
            case "deleting":
                unsure.add(name)
                topics.discard(name)
                acknowledged.pop(name, None)
            case "gone":
                unsure.discard(name)
            case "acknowledged":
                acknowledged.setdefault(name, {})[int(mark.values[1])] = str(mark.values[2])
            case _:
                assert mark.kind == "sent", mark
    return topics, unsure, acknowledged


def _look(
    bootstrap: str,
    topics: set[str],
    unsure: set[str],
    acknowledged: dict[str, dict[int, str]],
    sent: set[str],
) -> list[str]:
    findings: list[str] = []
    there = set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=WAIT_S).topics)
    findings += [f"topic {name} is gone" for name in sorted(topics - there)]
    findings += [f"topic {name} is back" for name in sorted((there & set(TOPICS)) - topics - unsure)]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap})
    for name in sorted(there & set(TOPICS)):
        producer.produce(name, "last", key="last")
        if producer.flush(WAIT_S):
            findings.append(f"{name} takes no record")
            continue
        found = _read(consumer, name)
        values = {offset: value for offset, value in found.items() if value != "last"}
        strange = [each for each in values.values() if each not in sent and not each.startswith(f"{LAZY}:0:")]
        findings += [f"{name} has {each[:60]!r}, which was not sent" for each in strange[:3]]
        lost = {at for at, value in acknowledged.get(name, {}).items() if values.get(at) != value}
        if name in topics and lost:
            findings.append(f"{name} lacks acknowledged records at {sorted(lost)}")
    consumer.close()
    return findings


def _read(consumer: Consumer, name: str) -> dict[int, str]:
    """Return the values of a topic by offset, up to its end."""
    low, high = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=WAIT_S)
    consumer.assign([TopicPartition(name, 0, low)])
    found: dict[int, str] = {}
    while max(found, default=-1) < high - 1:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{name} ends at {high}, and nothing comes after {max(found, default=-1)}"
        assert message.error() is None, message.error()
        found[message.offset() or 0] = (message.value() or b"").decode()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge one image of a kept recording again.")
    parser.add_argument("recording", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("cut", type=int)
    parser.add_argument("--quorum", action="store_true")
    chosen = parser.parse_args()
    recording = Recording.load(chosen.recording)
    replay = Replay(recording)
    replay.run(chosen.cut)
    image = replay.draw(random.Random(f"{chosen.seed} {chosen.cut} 0"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        findings = judge_broker(image, path, recording, chosen.cut, is_quorum=chosen.quorum)
    print("\n".join(findings) or "the image is in order")
    return bool(findings)


if __name__ == "__main__":
    raise SystemExit(main())
