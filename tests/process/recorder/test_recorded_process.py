"""A recorded broker process: what it was told is told again, and it does the same, whatever ended it."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from nilometer.broker.settings.config import is_sensitive
from nilometer.cli.recorder import recorder
from nilometer.recorder.folder import new_header, new_recording
from nilometer.recorder.replaying import Diverged
from nilometer.recorder.tape import Header, NotARecording
from nilometer.recorder.tape_file import SlotFile
from nilometer.runtime.runtime import SystemClock
from nilometer.simulation.recorded_cluster import OtherSource, RecordedBroker, RecordingFile
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.values import produce, side_of, values
from support.ports import HOST
from support.wire.wire_peer import WirePeer, make

TOPIC = "recorded"
LOGGER = "nilometer.coordination.local.secret"


def recorded(folder: Path, **more: str) -> NilometerBroker:
    return NilometerBroker(folder / "logs", {"nilometer.recorder": "on", **more})


def recordings(folder: Path) -> list[Path]:
    return sorted((folder / "logs-recordings").iterdir())


@contextmanager
def replayed(path: Path) -> Generator[RecordedBroker]:
    """The broker as it was at the end of its recording."""
    with closing(RecordedBroker(RecordingFile(path))) as broker:
        assert not broker.play(lambda: False)
        yield broker


def high_watermark(broker: RecordedBroker) -> int:
    assert broker.broker is not None
    (found,) = (one for one in broker.broker.parts.replication.replicas if str(one) == f"{TOPIC}-0")
    return found.replica.high_watermark


def test_a_killed_broker_is_replayed_to_its_last_turn(tmp_path: Path) -> None:
    with recorded(tmp_path) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        for number in range(20):
            assert produce(side, TOPIC, b"%d" % number) is ErrorCode.none
        assert len(values(side, TOPIC)) == 20
        broker.kill()
        (path,) = recordings(tmp_path)
        with replayed(path) as again:
            assert high_watermark(again) == 20
            assert again.replay.ended is None  # it could not say so

        side.hang_up()
        broker.start()  # with an unclean log, in a recording of its own
        assert produce(side, TOPIC, b"after") is ErrorCode.none
        assert len(values(side, TOPIC)) == 21
        broker.stop()
    first, second = recordings(tmp_path)
    assert first == path
    with replayed(second) as again:
        assert high_watermark(again) == 21
        assert again.replay.ended == "the broker has ended"


def test_a_process_that_finds_the_log_directories_in_use_hides_nothing_of_the_other(tmp_path: Path) -> None:
    with recorded(tmp_path) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        with pytest.raises(RuntimeError, match=r"give this broker other log\.dirs"):
            recorded(tmp_path).start()
        assert produce(side, TOPIC, b"a record") is ErrorCode.none
        broker.stop()
    found = CliRunner().invoke(
        recorder, ["replay", str(tmp_path / "logs-recordings"), "--why", f"{TOPIC}-0", "--json"]
    )
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert [one["end"] for one in document["brokers"]] == ["the broker has ended"] * 2
    (replica,) = document["why"]["replicas"]
    assert (replica["log_end_offset"], replica["is_down"]) == (1, True)
    assert [one for one in document["doubts"] if "there were two processes" in one]
    assert document["doubts"][0] in found.stderr


def test_a_recording_that_was_changed_differs_where_it_was_changed(tmp_path: Path) -> None:
    with recorded(tmp_path) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        assert produce(side, TOPIC, b"the record") is ErrorCode.none
        broker.stop()
    (path,) = recordings(tmp_path)
    recording = RecordingFile(path)
    frames = list(recording.frames())
    at = next(number for number, frame in enumerate(frames) if b"the record" in frame)
    frames[at] = frames[at].replace(b"the record", b"the recxrd")

    class Changed(RecordingFile):
        def frames(self):
            return iter(frames)

    with closing(RecordedBroker(Changed(path))) as broker, pytest.raises(Diverged, match="the recording has"):
        broker.play(lambda: False)


def test_another_source_is_refused_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(tmp_path) as broker:
        side_of(broker).create(TOPIC)
        broker.stop()
    (path,) = recordings(tmp_path)
    monkeypatch.setattr("nilometer.simulation.recorded_cluster.digest_of_sources", lambda: "another")
    with pytest.raises(OtherSource, match=r"other sources, of version"):
        RecordedBroker(RecordingFile(path))
    with closing(RecordedBroker(RecordingFile(path), any_source=True)) as broker:
        assert not broker.play(lambda: False)


def test_the_oldest_recordings_of_a_broker_make_room_for_new_ones(tmp_path: Path) -> None:
    folder = tmp_path / "logs-recordings"
    folder.mkdir()
    sizes = {"20200101T0": 10, "20210101T0": 20, "20220101T0": 40, "20220102T0": 5}
    for name, megabytes in sizes.items():
        with (folder / f"{name}-broker-1.recording").open("wb") as file:
            file.truncate(megabytes * 1024 * 1024)
    (folder / "20190101T0-broker-2.recording").write_bytes(bytes(1024 * 1024))
    with recorded(tmp_path, **{"nilometer.recorder.max.bytes": str(64 * 1024 * 1024)}) as broker:
        broker.stop()
    left = [path.name for path in recordings(tmp_path)]
    assert left[:2] == ["20190101T0-broker-2.recording", "20220102T0-broker-1.recording"]
    assert len(left) == 3


def test_the_newest_and_those_that_are_written_stay(tmp_path: Path) -> None:
    with (tmp_path / "20220101T0-broker-1.recording").open("wb") as newest:
        newest.truncate(1024 * 1024)
    header = Header(
        source="", version="", python="", settings={}, started_ms=0, started_monotonic_ms=0, open_files_max=1
    )
    path = tmp_path / "20210101T0-broker-1.recording"
    written = SlotFile(str(path), header, 64 * 1024 * 1024)
    new_recording(str(tmp_path), 1, 0, bytes_max=1)
    assert len(list(tmp_path.iterdir())) == 2
    written.close()
    new_recording(str(tmp_path), 1, 0, bytes_max=1)
    assert [one.name[:4] for one in tmp_path.iterdir()] == ["2022"]


def test_a_broker_whose_recording_cannot_be_written_serves_without(tmp_path: Path) -> None:
    (tmp_path / "logs-recordings").write_text("a file, where the folder would be")
    with recorded(tmp_path) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        assert produce(side, TOPIC, b"a record") is ErrorCode.none
        assert "This broker is not recorded" in broker.output


def test_no_secret_of_the_settings_is_in_a_recording(tmp_path: Path) -> None:
    key = "a-secret-of-more-than-thirty-two-bytes"
    uri = f"s3://key:{key}@bucket/tier?endpoint=http://{HOST}:1"
    header = new_header({"nilometer.tier.uri": uri, "node.id": "1"}, ["nilometer.tier.uri"], SystemClock(), 1)
    SlotFile(str(tmp_path / "one"), header, 64 * 1024 * 1024).close()
    assert key.encode() not in (tmp_path / "one").read_bytes()
    assert header.sensitive == ["nilometer.tier.uri"]
    assert is_sensitive("nilometer.tier.uri")
    assert is_sensitive("listener.name.ssl.ssl.key.password")


def test_another_file_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("text")
    with pytest.raises(NotARecording):
        RecordingFile(path)


def test_a_replay_stops_where_the_high_watermark_moves_and_says_why_it_is_there(tmp_path: Path) -> None:
    with recorded(tmp_path) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        assert produce(side, TOPIC, b"a record") is ErrorCode.none
        broker.stop()
    (path,) = recordings(tmp_path)
    runner = CliRunner()
    stop = ["--break-on", f"high watermark of {TOPIC}-0 moves", "--why", f"{TOPIC}-0"]
    found = runner.invoke(recorder, ["replay", str(path), *stop, "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["stopped"]["changes"][0]["partition"] == f"{TOPIC}-0"
    (replica,) = document["why"]["replicas"]
    assert (replica["role"], replica["high_watermark"]) == ("leader", 1)
    said = runner.invoke(recorder, ["replay", str(path), *stop, "--quiet"])
    assert f"{TOPIC}-0: Not held: every record is on all in-sync replicas." in said.output
    never = runner.invoke(
        recorder, ["replay", str(path), "--break-on", "ISR of nothing-0 changes", "--quiet"]
    )
    assert never.exit_code == 1
    shown = runner.invoke(recorder, ["info", str(path), "--json"])
    (row,) = json.loads(shown.stdout)
    assert (row["broker"], row["end"], row["is_of_these_sources"]) == (1, "the broker has ended", True)


def test_levels_of_loggers_are_shown_as_recorded_and_changed_in_no_other_process(tmp_path: Path) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    level = make(key, 1, "AlterableConfig", name=LOGGER, config_operation=0, value="TRACE")
    altered = make(key, 1, "AlterConfigsResource", resource_type=8, resource_name="1", configs=(level,))
    asked = make(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        "DescribeConfigsResource",
        resource_type=8,
        resource_name="1",
        configuration_keys=None,
    )
    with recorded(tmp_path) as broker:
        with WirePeer(broker.bootstrap) as peer:
            answer = peer.ask(key, 1, resources=(altered,), validate_only=False)
            assert answer.responses[0].error_code == ErrorCode.none
            (shown,) = peer.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=(asked,)).results
            assert ("root", "INFO") in {(one.name, one.value) for one in shown.configs}
        broker.stop()
    (path,) = recordings(tmp_path)
    logging.getLogger("a.logger.of.the.replaying.process")
    before = logging.getLogger(LOGGER).level
    with replayed(path) as again:
        assert again.replay.ended == "the broker has ended"
    assert logging.getLogger(LOGGER).level == before
