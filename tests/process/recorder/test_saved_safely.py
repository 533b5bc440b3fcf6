"""What `nilometer recorder save` refuses, tells, and does not leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import nilometer
from nilometer.cli.recorder import recorder
from nilometer.cli.recorder_save import save_copies
from nilometer.recorder.tape import Header
from nilometer.simulation.recorded_cluster import RecordingFile, recordings_in
from nilometer.simulation.recorded_copies import write_copy
from nilometer.simulation.stand_ins import StandIns
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api, encode_request
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.values import produce, side_of
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

TOPIC = "warehouse"
VALUE = "a value that is not for others"
SENT = b"what a client has sent"
RECORDS = 40
RECORD_BYTES = 10_000


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(recorder, [str(one) for one in arguments])


def contents(path: Path) -> bytes:
    return b"".join(frame for recording in recordings_in(path) for frame in recording.frames())


async def write(servers: str) -> None:
    async with nilometer.connect(servers, settings={"compression.type": "none"}) as kafka:
        for number in range(RECORDS):
            await kafka.send(TOPIC, f"{VALUE} {number} ".ljust(RECORD_BYTES, "x"))


async def read(servers: str) -> int:
    settings = {"max.partition.fetch.bytes": "20000"}
    async with nilometer.connect(servers, settings=settings) as kafka:
        return len([one async for one in kafka.consume(TOPIC, until_end=True)])


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a broker that a client has sent the topic's name as a password."""
    folder = tmp_path_factory.mktemp("recorded")
    with NilometerBroker(folder / "logs", {"nilometer.recorder": "on"}) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        assert produce(side, TOPIC, VALUE.encode()) is ErrorCode.none
        key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        setting = make(key, 1, "AlterableConfig", name="ssl.key.password", config_operation=0, value=TOPIC)
        asked = make(key, 1, "AlterConfigsResource", resource_type=4, resource_name="1", configs=(setting,))
        with WirePeer(broker.bootstrap) as peer:
            answer = peer.ask(key, 1, resources=(asked,), validate_only=False)
            assert answer.responses[0].error_code != ErrorCode.none
        broker.stop()
    (path,) = folder.rglob("*.recording")
    return path


def test_what_a_client_says_is_a_secret_is_told_and_does_not_prevent_a_copy(
    recording: Path, tmp_path: Path
) -> None:
    saved = run("save", recording, "--output", tmp_path / "out.zip")
    assert saved.exit_code == 0, saved.output
    assert "has in entry " in saved.stderr
    assert "what a client sent as a password" in saved.stderr


def test_a_secret_of_the_cluster_that_is_left_is_refused_with_its_entry(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def same(_: StandIns, secret: bytes) -> bytes:
        return secret

    monkeypatch.setattr(StandIns, "of_bytes", same)
    saved = run("save", recording, "--output", tmp_path / "out.zip")
    assert saved.exit_code == 1
    assert "would have a secret of the cluster, in entry " in saved.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_all_copies_leave_out_is_said_and_which_leave_out_less(tmp_path: Path) -> None:
    for _ in range(2):
        with NilometerBroker(tmp_path / "logs", {"nilometer.recorder": "on"}) as broker:
            broker.stop()
    recording, other = sorted(tmp_path.rglob("*.recording"))
    one, both = tmp_path / "one.zip", tmp_path / "both.zip"
    assert run("save", recording, "--output", one, "--without-payloads").exit_code == 0
    for given in ((one, other), (other, one)):
        saved = run("save", *given, "--output", both)
        assert saved.exit_code == 0, saved.output
        assert "2 recordings without secrets; with payloads: " in saved.stdout
        said = run("replay", both, "--quiet").stdout
        assert f"Records' keys and values have stand-ins in both.zip:{recording.name}: " in said
        both.unlink()


def test_the_name_is_not_there_before_all_is_checked(recording: Path, tmp_path: Path) -> None:
    out, copied = tmp_path / "out.zip", list[str]()

    def on_copied(name: str, _: Header) -> None:
        assert not out.exists()
        copied.append(name)

    write_copy([RecordingFile(recording)], out, b"random", on_copied=on_copied)
    assert copied == [f"{out}:{recording.name}"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_copy_may_have_a_name_of_letters_with_many_bytes(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / ("名" * 83 + ".zip")
    assert len(os.fsencode(out.name)) == 253
    write_copy([RecordingFile(recording)], out, b"random")
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_is_there_meanwhile_stays(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zip"

    def on_copied(_name: str, _header: Header) -> None:
        out.write_text("another's")

    with pytest.raises(FileExistsError):
        write_copy([RecordingFile(recording)], out, b"random", on_copied=on_copied)
    assert out.read_text() == "another's"
    assert list(tmp_path.iterdir()) == [out]


def test_a_recording_that_is_removed_meanwhile_is_named(recording: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(recording.read_bytes())
    file = RecordingFile(given)
    given.unlink()
    with pytest.raises(click.ClickException, match=f"{given} cannot be read: No such file"):
        save_copies([file], tmp_path / "out.zip", with_payloads=True, is_quiet=True)
    assert list(tmp_path.iterdir()) == []


def produce_request(records: bytes) -> bytes:
    key = ApiKey.PRODUCE
    part = make(key, 9, "PartitionProduceData", index=0, records=records)
    topic = make(key, 9, "TopicProduceData", name=TOPIC, partition_data=(part,))
    fields = {"transactional_id": None, "acks": 1, "timeout_ms": 1, "topic_data": (topic,)}
    return encode_request(7, "me", api(key, 9).request(**fields))[4:]


def odd_requests() -> Iterator[list[bytes]]:
    """Yield what clients send on a connection each, which brokers close, or answer with an error."""
    header = b"\0\0\0\x07\0\x02me"
    builder = BatchBuilder()
    builder.append(1, None, SENT)
    batch = bytes(builder.build())
    produced = produce_request(b"w")
    old = b"\0\x01" + bytes(4) + b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\x01" + bytes(4)
    handshake = encode_request(7, "me", api(ApiKey.SASL_HANDSHAKE, 0).request(mechanism="PLAIN"))[4:]
    versions = encode_request(7, "me", api(ApiKey.API_VERSIONS, 0).request())[4:]
    yield [handshake, versions, handshake, versions]
    yield [b"\0\x12\0\x63" + header + SENT, versions]
    for no_text in (b"\xff\xfe", b"\xc3\xfe"):
        yield [b"\0\x10\0\0" + bytes(4) + b"\0\x02" + no_text]
    yield [b"\0bob\0" + SENT]
    yield [b"\0B\0" + SENT]
    for version in (0, 3, 8, 9):
        yield [b"\0\0\0" + bytes([version]) + header + b"\0\x09" + SENT]
    yield [b"\0\0\0\x02" + header + old + len(SENT).to_bytes(4, "big") + SENT, versions]
    yield [produced, produced + SENT, versions]
    for at, value in ((17, b"\0\0\0\1"), (8, b"\xff" * 4), (16, b"\x77")):  # CRC, length, magic
        yield [produce_request(batch[:at] + value + batch[at + len(value) :]), versions]
    yield [produced[:-1] + b"\x01\x63" + bytes([len(SENT)]) + SENT, versions]  # a tagged field


def test_no_request_of_a_client_prevents_a_copy_or_leaves_what_it_sent(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "logs", {"nilometer.recorder": "on"}) as broker:
        side_of(broker).create(TOPIC)
        for frames in odd_requests():
            with WirePeer(broker.bootstrap) as peer, contextlib.suppress(ConnectionEnded, OSError):
                for frame in frames:
                    peer.socket.sendall(len(frame).to_bytes(4, "big") + frame)
                    peer.receive()
        broker.stop()
    (path,) = tmp_path.rglob("*.recording")
    assert contents(path).count(SENT) == 13
    saved = run("save", path, "--output", tmp_path / "out.zip")
    assert saved.exit_code == 0, saved.output
    saved = run("save", path, "--output", tmp_path / "without.zip", "--without-payloads")
    assert saved.exit_code == 0, saved.output
    assert SENT not in contents(tmp_path / "without.zip")


class _Growing(RecordingFile):
    """Has one frame more each time that it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._times = 0

    @property
    def is_being_written(self) -> bool:
        return True

    def frames(self) -> Iterator[bytes]:
        self._times += 1
        return itertools.islice(super().frames(), self._times)


def test_what_is_written_while_a_recording_is_copied_is_not_in_the_copy(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with NilometerBroker(logs) as broker:
        side_of(broker).create(TOPIC)
        asyncio.run(write(broker.bootstrap))
        broker.stop()
    with NilometerBroker(logs, {"nilometer.recorder": "on"}) as broker:
        for _ in range(2):
            assert asyncio.run(read(broker.bootstrap)) == RECORDS
        broker.stop()
    (path,) = tmp_path.rglob("*.recording")
    frames = len(list(RecordingFile(path).frames()))
    assert frames > 4
    assert VALUE.encode() in contents(path)
    for passes in range(frames):
        file, out = _Growing(path), tmp_path / f"{passes}.zip"
        for _ in range(passes):
            file.frames()
        write_copy([file], out, b"random", with_payloads=False)
        assert VALUE.encode() not in contents(out)
        assert run("replay", out, "--quiet").exit_code == 0


def test_what_the_disk_changed_stays_a_difference(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "logs", {"nilometer.recorder": "on"}) as broker:
        side_of(broker).create(TOPIC)
        asyncio.run(write(broker.bootstrap))
        (log,) = (tmp_path / "logs").glob(f"{TOPIC}-0/*.log")
        with log.open("r+b") as file:
            file.seek(12)
            file.write(b"\0\0\0\7")  # the leader epoch, which no checksum covers
        asyncio.run(read(broker.bootstrap))
        broker.stop()
    (path,) = tmp_path.rglob("*.recording")
    for more in ((), ("--without-payloads",)):
        saved = run("save", path, "--output", tmp_path / "out.zip", *more)
        assert saved.exit_code == 1
        assert "cannot be copied: its replay differs from the recording: " in saved.stderr
        assert "the disk or another program changed them" in saved.stderr
