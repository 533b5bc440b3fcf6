"""Ingest from real files into a cluster: each line once, through rotation, crashes and restarts."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from nilometer.client.ingest import ingest as ingest_module
from nilometer.client.ingest import ledger as ledger_module
from nilometer.client.ingest.ingest import Ingest
from nilometer.client.ingest.ledger import IngestTotals, LineRefused
from nilometer.client.ingest.matching import UTF16
from nilometer.client.ingest.state_file import BadState
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.ingest.runs import Crash, CrashingDisk, following, ingest_of, lines_in, write_lines
from support.scripted.log_cluster import LOSE_ANSWER, LogCluster


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


async def test_files_folders_and_compressed_files(logs: Path, tmp_path: Path) -> None:
    write_lines(logs / "a.log", ["one", "", "three"])
    (logs / "deep").mkdir()
    (logs / "deep" / "b.log").write_bytes(b"with\r\nbytes \xff\nno newline at the end")
    with gzip.open(logs / "c.log.gz", "wt") as file:
        file.write("packed 1\npacked 2\n")
    (logs / "binary").write_bytes(b"\x7fELF\x00\x00\n")
    (logs / ".hidden").write_text("secret\n")
    (logs / "empty.log").write_text("")
    async with LogCluster(topics={"t": 2}) as cluster:
        totals = await ingest_of(cluster, tmp_path).run()
        assert lines_in(cluster) == [
            ("a.log", 1, b"one"),
            ("a.log", 2, b""),
            ("a.log", 3, b"three"),
            ("b.log", 1, b"with"),
            ("b.log", 2, b"bytes \xff"),
            ("b.log", 3, b"no newline at the end"),
            ("c.log.gz", 1, b"packed 1"),
            ("c.log.gz", 2, b"packed 2"),
        ]
        assert totals.lines == 8
        assert totals.errors == []
        assert list(totals.skipped) == [str(logs / "binary")]
        assert "no text" in totals.skipped[str(logs / "binary")]
        again = await ingest_of(cluster, tmp_path).run()
        assert (again.lines, again.lines_there) == (0, 0)
        write_lines(logs / "a.log", ["four"])
        assert (await ingest_of(cluster, tmp_path).run()).lines == 1
        assert lines_in(cluster)[3] == ("a.log", 4, b"four")


@pytest.mark.parametrize("hole", [10, 40_000])
async def test_what_a_writer_without_append_leaves_is_read_without_the_hole(
    logs: Path, tmp_path: Path, hole: int
) -> None:
    """copytruncate under such a writer: the next line is written where the last one ended."""
    content = b"\0" * hole + b"after 1\nafter 2\n"
    (logs / "a.log").write_bytes(content)
    with gzip.open(logs / "b.log.gz", "wb") as file:
        file.write(content)
    async with LogCluster(topics={"t": 1}) as cluster:
        totals = await ingest_of(cluster, tmp_path).run()
        assert lines_in(cluster) == [
            (name, number, b"after %d" % number) for name in ("a.log", "b.log.gz") for number in (1, 2)
        ]
        assert totals.holes == {str(logs / "a.log"): hole, str(logs / "b.log.gz"): hole}
        assert totals.skipped == {}


async def test_a_followed_log_that_is_truncated_under_its_writer_stays_one(
    logs: Path, tmp_path: Path
) -> None:
    path = logs / "a.log"
    async with LogCluster(topics={"t": 1}) as cluster:
        work = ingest_of(cluster, tmp_path, follow=True)
        async with following(work) as sent:
            with path.open("wb", buffering=0) as writer:
                for turn in range(3):
                    writer.writelines(b"turn %d line %d\n" % (turn, number) for number in range(200))
                    await sent(200 * (turn + 1))
                    shutil.copy(path, logs / f"a.log.{turn + 1}")
                    os.truncate(path, 0)
        assert sorted(value for _, _, value in lines_in(cluster)) == sorted(
            b"turn %d line %d" % (turn, number) for turn in range(3) for number in range(200)
        )
        assert work.totals.holes[str(path)] > 0


async def test_a_byte_order_mark_and_crlf_are_no_part_of_a_line(logs: Path, tmp_path: Path) -> None:
    (logs / "a.log").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n\xef\xbb\xbfx\ry\r\r\n')
    async with LogCluster(topics={"t": 1}) as cluster:
        await ingest_of(cluster, tmp_path).run()
        assert [value for _, _, value in lines_in(cluster)] == [b'{"a": 1}', b"", b"\xef\xbb\xbfx\ry\r"]


@pytest.mark.parametrize("named", [False, True])
async def test_utf16_is_refused_by_name_and_other_files_are_read(
    logs: Path, tmp_path: Path, named: bool
) -> None:
    (logs / "wide.log").write_text("one\r\ntwo\r\n", encoding="utf-16")
    write_lines(logs / "a.log", ["one"])
    paths = [logs / "a.log", logs / "wide.log"] if named else []
    async with LogCluster(topics={"t": 1}) as cluster:
        for _ in range(2):
            totals = await ingest_of(cluster, tmp_path, *paths).run()
            said = totals.errors if named else [f"{path}: {why}" for path, why in totals.skipped.items()]
            assert said == [f"{logs / 'wide.log'}: {UTF16}"]
        assert lines_in(cluster) == [("a.log", 1, b"one")]


async def test_all_lines_of_a_file_can_share_a_partition(logs: Path, tmp_path: Path) -> None:
    for name in "abcdef":
        write_lines(logs / name, [f"{name} {number}" for number in range(50)])
    async with LogCluster(topics={"t": 3}) as cluster:
        await ingest_of(cluster, tmp_path, key_by_path=True).run()
        for log in cluster.logs.values():
            seen: dict[bytes, int] = {}
            for record in log.records():
                headers = dict(record.headers)
                assert record.key == headers["path"]
                assert record.key is not None
                line = int(headers["line"] or b"0")
                assert line == seen.get(record.key, 0) + 1
                seen[record.key] = line
        assert len(lines_in(cluster)) == 300


async def test_rotated_between_two_runs(logs: Path, tmp_path: Path) -> None:
    log = logs / "app.log"
    async with LogCluster(topics={"t": 1}) as cluster:
        write_lines(log, ["1", "2"])
        await ingest_of(cluster, tmp_path, log).run()
        write_lines(log, ["3"])
        log.rename(logs / "app.log.1")
        write_lines(log, ["new 1"])
        await ingest_of(cluster, tmp_path, log).run()
        with (logs / "app.log.1").open("rb") as plain, gzip.open(logs / "app.log.2.gz", "wb") as packed:
            shutil.copyfileobj(plain, packed)
        (logs / "app.log.1").unlink()
        write_lines(log, ["new 2"])
        await ingest_of(cluster, tmp_path, log).run()
        await ingest_of(cluster, tmp_path, logs).run()
        assert lines_in(cluster) == [
            ("app.log", 1, b"1"),
            ("app.log", 1, b"new 1"),
            ("app.log", 2, b"2"),
            ("app.log", 2, b"new 2"),
            ("app.log", 3, b"3"),
        ]


@pytest.mark.parametrize("at", range(1, 4))
async def test_crash_between_acknowledgement_and_state(logs: Path, tmp_path: Path, at: int) -> None:
    for name in "ab":
        write_lines(logs / f"{name}.log", [f"{name} {number}" for number in range(120)])
    async with LogCluster(topics={"t": 2}) as cluster:
        with pytest.raises(Crash):
            await ingest_of(cluster, tmp_path, disk=CrashingDisk(at)).run()
        before = len(lines_in(cluster))
        totals = await ingest_of(cluster, tmp_path).run()
        lines = lines_in(cluster)
        assert len(lines) == 240 == len(set(lines))
        assert totals.lines == 240 - before


async def test_written_but_not_acknowledged_is_not_repeated(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "CHECKPOINT_LINES", 50)
    write_lines(logs / "a.log", [f"{number}" for number in range(300)])
    async with LogCluster(topics={"t": 3}) as cluster:
        cluster.fault = lambda key, number: LOSE_ANSWER if key == ApiKey.PRODUCE and number > 4 else None
        run = asyncio.create_task(ingest_of(cluster, tmp_path).run())
        await cluster.brokers[0].wait_for(ApiKey.PRODUCE, 9)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        cluster.fault = lambda _key, _number: None
        totals = await ingest_of(cluster, tmp_path).run()
        assert totals.lines_there > 0
        assert [line for _, line, _ in lines_in(cluster)] == list(range(1, 301))


@pytest.mark.parametrize("partitions", [1, 3])
async def test_written_and_not_committed_is_waited_for(logs: Path, tmp_path: Path, partitions: int) -> None:
    write_lines(logs / "a.log", [f"{number}" for number in range(100)])
    async with LogCluster(topics={"t": partitions}) as cluster:
        for log in cluster.logs.values():
            log.held_at = 0
        run = asyncio.create_task(ingest_of(cluster, tmp_path).run())
        await cluster.brokers[0].wait_for(ApiKey.PRODUCE, 1)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        written = len(lines_in(cluster))
        assert written > 0
        again = asyncio.create_task(ingest_of(cluster, tmp_path).run())
        async with asyncio.timeout(20):
            await cluster.brokers[0].wait_for(ApiKey.LIST_OFFSETS, cluster.count(ApiKey.LIST_OFFSETS) + 6)
        assert len(lines_in(cluster)) == written, "what is not committed cannot be read: nothing may be sent"
        for log in cluster.logs.values():
            log.held_at = None
        totals = await again
        assert totals.lines_there == written
        assert [line for _, line, _ in lines_in(cluster)] == list(range(1, 101))


async def test_requests_that_a_killed_run_left_behind_are_waited_for(logs: Path, tmp_path: Path) -> None:
    """A broker that was paused takes them up after it has answered the next run's first question."""
    write_lines(logs / "a.log", [f"{number}" for number in range(100)])
    left: list[bytes] = []
    async with LogCluster(topics={"t": 1}) as cluster:
        log = cluster.logs["t", 0]
        append, log.held_at = log.append, 0

        def keep(data: bytes) -> tuple[ErrorCode, int]:
            left.append(data)
            return ErrorCode.none, 0

        log.append = keep  # type: ignore[method-assign]
        run = asyncio.create_task(ingest_of(cluster, tmp_path).run())
        await cluster.brokers[0].wait_for(ApiKey.PRODUCE, 1)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        log.append, log.held_at = append, None  # type: ignore[method-assign]
        again = asyncio.create_task(ingest_of(cluster, tmp_path).run())
        async with asyncio.timeout(20):
            await cluster.brokers[0].wait_for(ApiKey.LIST_OFFSETS, cluster.count(ApiKey.LIST_OFFSETS) + 4)
        for data in left:
            log.append(data)
        totals = await again
        assert totals.lines_there > 0
        assert [line for _, line, _ in lines_in(cluster)] == list(range(1, 101))


async def test_a_run_that_was_closed_is_not_waited_for(logs: Path, tmp_path: Path) -> None:
    write_lines(logs / "a.log", ["1"])
    async with LogCluster(topics={"t": 1}) as cluster:
        await ingest_of(cluster, tmp_path).run()
        before = cluster.count(ApiKey.LIST_OFFSETS)
        await ingest_of(cluster, tmp_path).run()
        looked = cluster.count(ApiKey.LIST_OFFSETS) - before
        assert looked == 3, "the log's end, the high watermark, the log's start: each once"


async def test_topic_created_again_is_filled_again(logs: Path, tmp_path: Path) -> None:
    write_lines(logs / "a.log", ["1", "2"])
    async with LogCluster(topics={"t": 1}) as first:
        await ingest_of(first, tmp_path).run()
    async with LogCluster(topics={"other": 1, "t": 1}) as second:
        assert (await ingest_of(second, tmp_path).run()).lines == 2


async def test_line_that_the_topic_refuses_is_named(logs: Path, tmp_path: Path) -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.fault = lambda key, _number: ErrorCode.invalid_record if key == ApiKey.PRODUCE else None
        (logs / "a.log").write_text("refused by the broker\n")
        with pytest.raises(LineRefused, match=r"a\.log, line 1: INVALID_RECORD"):
            await ingest_of(cluster, tmp_path).run()


async def test_what_cannot_be_read_is_reported_and_the_rest_read(logs: Path, tmp_path: Path) -> None:
    write_lines(logs / "a.log", ["good"])
    torn = logs / "torn.log.gz"
    with gzip.open(torn, "wt") as file:
        file.writelines(f"line {random.random()}\n" for _ in range(2_000))
    torn.write_bytes(torn.read_bytes()[:-1000])
    async with LogCluster(topics={"t": 1}) as cluster:
        totals = await ingest_of(cluster, tmp_path, logs, logs / "missing.log").run()
        assert len(totals.errors) == 2
        assert any("missing.log: No such file" in error for error in totals.errors)
        assert any("torn.log.gz: " in error for error in totals.errors)
        assert ("a.log", 1, b"good") in lines_in(cluster)


async def test_state_of_something_else_is_refused(logs: Path, tmp_path: Path) -> None:
    write_lines(logs / "a.log", ["1"])
    async with LogCluster(topics={"t": 1, "u": 1}) as cluster:
        await ingest_of(cluster, tmp_path).run()
        (tmp_path / "state" / "ingest.json").write_text("rubbish")
        with pytest.raises(BadState):
            await ingest_of(cluster, tmp_path).run()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "POLL_MS", 5)
    monkeypatch.setattr(ingest_module, "RESCAN_MS", 20)
    monkeypatch.setattr(ingest_module, "LOOK_SHARE", 1)  # a look of a second would be followed by a minute
    monkeypatch.setattr(ingest_module, "RETIRE_MS", 60)


@pytest.mark.usefixtures("impatient")
async def test_follows_a_file_through_rotations(logs: Path, tmp_path: Path) -> None:
    log = logs / "app.log"
    async with LogCluster(topics={"t": 1}) as cluster:
        async with following(ingest_of(cluster, tmp_path, log, follow=True)) as sent:
            write_lines(log, ["1"])
            await sent(1)
            with log.open("a") as writer:
                writer.write("half ")
                writer.flush()
                log.rename(logs / "app.log.1")
                write_lines(log, ["new 1"])
                await sent(2)
                writer.write("line\n")  # by a writer that has not noticed
                writer.flush()
                await sent(3)
            shutil.copy(log, logs / "app.log.0")
            os.truncate(log, 0)
            await asyncio.sleep(0.05)
            write_lines(log, ["newest 1", "newest 2"])
            await sent(5)
        assert lines_in(cluster) == [
            ("app.log", 1, b"1"),
            ("app.log", 1, b"new 1"),
            ("app.log", 1, b"newest 1"),
            ("app.log", 2, b"half line"),
            ("app.log", 2, b"newest 2"),
        ]
        again = await ingest_of(cluster, tmp_path, log).run()
        assert again.lines == 0


@pytest.mark.usefixtures("impatient")
async def test_follows_a_folder_with_new_files(logs: Path, tmp_path: Path) -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        async with following(ingest_of(cluster, tmp_path, logs, follow=True)) as sent:
            write_lines(logs / "a.log", ["a1"])
            await sent(1)
            write_lines(logs / "b.log", ["b1"])
            write_lines(logs / "a.log", ["a2"])
            await sent(3)
            (logs / "a.log").unlink()
            write_lines(logs / "b.log", ["b2"])
            await sent(4)
        assert [(name, line) for name, line, _ in lines_in(cluster)] == [
            ("a.log", 1),
            ("a.log", 2),
            ("b.log", 1),
            ("b.log", 2),
        ]


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 12))]
)
async def test_each_line_once_through_rotations_and_crashes(
    logs: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay one: pytest tests/unit/client/test_ingest.py -k "rotations_and_crashes and SEED"."""
    monkeypatch.setattr(ledger_module, "CHECKPOINT_LINES", 40)
    chance = random.Random(seed)
    written: list[bytes] = []
    log = logs / "app.log"

    def write(count: int) -> None:
        lines = [
            f"seed {seed} number {len(written) + index} {'x' * chance.randrange(60)}"
            for index in range(count)
        ]
        write_lines(log, lines)
        written.extend(line.encode() for line in lines)

    async with LogCluster(topics={"t": 3}) as cluster:
        write(50)
        for turn in range(12):
            disk = CrashingDisk(chance.randint(1, 6))
            ingest = ingest_of(cluster, tmp_path, *chance.choice([(log,), (logs,)]), disk=disk)
            task = asyncio.create_task(_crashing(ingest))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.02)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            write(chance.randrange(120))
            rotation = chance.random()
            if rotation < 0.2:
                log.rename(logs / f"app.log.{turn}")
                write(3)
            elif rotation < 0.35:
                shutil.copy(log, logs / f"app.log.{turn}")
                os.truncate(log, 0)
            elif rotation < 0.45:
                with log.open("rb") as plain, gzip.open(logs / f"app.log.{turn}.gz", "wb") as packed:
                    shutil.copyfileobj(plain, packed)
                log.unlink()
                write(2)
        await ingest_of(cluster, tmp_path, logs).run()
        counted = Counter(value for _, _, value in lines_in(cluster))
        assert [line for line in written if not counted[line]] == [], f"seed {seed}: lines were lost"
        assert [line for line, times in counted.items() if times > 1] == [], (
            f"seed {seed}: lines were repeated"
        )


async def _crashing(ingest: Ingest) -> IngestTotals | None:
    try:
        return await ingest.run()
    except Crash:
        return None
