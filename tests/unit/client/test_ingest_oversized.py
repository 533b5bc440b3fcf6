"""Lines that no record of the topic can hold: the other lines and files go their way, and each is counted."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.ingest import ledger as ledger_module
from nilometer.client.ingest import state_file
from nilometer.client.ingest.ingest import Ingest
from nilometer.client.ingest.ledger import IngestOptions, LineRefused, Oversized
from nilometer.client.ingest.line_sender import LongLine, RecordLimit
from nilometer.runtime import Runtime
from nilometer.runtime.system_disk import SystemDisk
from nilometer.wire.compression import Codec
from nilometer.wire.records import BatchBuilder
from support.eventually import becomes
from support.ingest.runs import Crash, CrashingDisk
from support.scripted.log_cluster import LogCluster

TOPIC_BYTES = 3_000
LONG = "äöü€🙂 0123456789 " * 500

texts = st.text("ab€🙂", max_size=60).map(str.encode) | st.binary(max_size=60)


@given(texts, st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(4, 30))
def test_pieces_are_the_line_however_its_bytes_come(line: bytes, sizes: list[int], limit: int) -> None:
    found = _made(Oversized.SPLIT, line, sizes, limit)
    assert found == _made(Oversized.SPLIT, line, [len(line) + 1], limit)
    assert b"".join(value for value, _ in found) == line
    assert all(len(value) <= limit for value, _ in found)
    numbers = [int(dict(headers)["piece"]) for _, headers in found]
    assert numbers == list(range(1, len(found) + 1))
    assert [dict(headers).get("pieces") for _, headers in found] == [None] * (len(found) - 1) + [
        b"%d" % len(found)
    ]
    if _is_text(line):
        assert all(_is_text(value) for value, _ in found), "no character is cut"


@given(texts, st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(4, 30))
def test_a_truncated_line_is_its_beginning(line: bytes, sizes: list[int], limit: int) -> None:
    [(value, headers)] = _made(Oversized.TRUNCATE, line, sizes, limit)
    assert line.startswith(value)
    assert min(len(line), limit - 3) <= len(value) <= limit
    assert headers == (("truncated", b"%d" % len(line)),)
    assert not _is_text(line) or _is_text(value)
    assert _made(Oversized.SKIP, line, sizes, limit) == []


def _made(action: Oversized, line: bytes, sizes: list[int], limit: int) -> list[Any]:
    long, found, position = LongLine(action, limit), [], 0
    for turn in range(len(line)):
        size = sizes[turn % len(sizes)]
        found += long.feed(line[position : position + size])
        position += size
    return found + long.finish()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.integers(0, 9_000), st.none() | st.binary(max_size=300), st.sampled_from(list(Codec)))
def test_what_surely_fits_does(spare: int, key: bytes | None, codec: Codec) -> None:
    headers = (("path", b"/var/log/app.log"), ("line", b"1"))
    limit = RecordLimit(1_000 + spare, 5_000, codec)
    surely, at_most = limit.value_bytes(key, headers), limit.value_bytes_max(key, headers)
    value = random.Random(spare).randbytes(surely)
    batch = BatchBuilder()
    batch.append(0, key, value, headers)
    assert len(batch.build()) <= 5_000
    assert limit.fits(key, value, headers) or codec is not Codec.NONE  # which may make more of random bytes
    assert not limit.fits(key, b"x" * (at_most + 1), headers)


def ingest_of(cluster: LogCluster, folder: Path, *, disk: SystemDisk | None = None, **options: Any) -> Ingest:
    system = Runtime.system()
    config = {"bootstrap.servers": cluster.addresses, "linger.ms": 1, **options.pop("config", {})}
    given = IngestOptions(
        paths=[str(folder / "logs")], topic="t", state_path=str(folder / "ingest.json"), **options
    )
    return Ingest(Runtime(system.clock, disk or SystemDisk(), system.network, system.entropy), config, given)


Sent = dict[tuple[str, int], list[tuple[bytes, dict[str, bytes]]]]


def sent_to(cluster: LogCluster) -> Sent:
    """By name of the file and line: the records, each its value and its headers."""
    found: Sent = defaultdict(list)
    for log in cluster.logs.values():
        for record in log.records():
            headers = {name: value or b"" for name, value in record.headers}
            place = (headers.pop("path").decode().rpartition("/")[2], int(headers.pop("line")))
            del headers["source"]
            found[place].append((record.value or b"", headers))
    for records in found.values():
        records.sort(key=lambda record: int(record[1].get("piece", b"0")))
    return dict(found)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


LINES = {
    "within one reading": LONG,
    "over several readings": "x" * 600_000,
    "above max.request.size": "y" * 3_000_000,
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
async def test_the_file_is_read_up_to_it_and_other_files_whole(logs: Path, tmp_path: Path, line: str) -> None:
    (logs / "a.log").write_text(f"a1\n{line}\na3\n")
    (logs / "b.log").write_text("b1\nb2\n")
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.max_message_bytes = TOPIC_BYTES
        for _ in range(2):
            totals = await ingest_of(cluster, tmp_path).run()
            [error] = totals.errors
            assert error.startswith(f"{logs}/a.log: line 2 does not fit into a record (max.request.size is")
            assert "max.message.bytes 3000)" in error and "--oversized skip, truncate or split" in error
            assert sorted(sent_to(cluster)) == [("a.log", 1), ("b.log", 1), ("b.log", 2)]
        totals = await ingest_of(cluster, tmp_path, oversized=Oversized.SKIP).run()
        assert (totals.errors, totals.oversized) == ([], {f"{logs}/a.log": 1})
        assert sent_to(cluster)["a.log", 3] == [(b"a3", {})]
        assert len(sent_to(cluster)) == 4


@pytest.mark.parametrize("action", [Oversized.SKIP, Oversized.TRUNCATE, Oversized.SPLIT])
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
async def test_what_is_done_about_long_lines(
    logs: Path, tmp_path: Path, line: str, action: Oversized
) -> None:
    (logs / "a.log").write_text(f"a1\n{line}\na3\n{line}")  # the last one without a newline
    async with LogCluster(topics={"t": 3}) as cluster:
        cluster.max_message_bytes = TOPIC_BYTES
        totals = await ingest_of(cluster, tmp_path, oversized=action).run()
        sent = sent_to(cluster)
        assert (totals.errors, totals.oversized) == ([], {f"{logs}/a.log": 2})
        assert totals.lines == (2 if action is Oversized.SKIP else 4)
        assert (sent["a.log", 1], sent["a.log", 3]) == ([(b"a1", {})], [(b"a3", {})])
        for number in (2, 4):
            records = sent.get(("a.log", number), [])
            if action is Oversized.SKIP:
                assert records == []
            elif action is Oversized.TRUNCATE:
                [(value, headers)] = records
                assert len(value) > TOPIC_BYTES // 2 and line.encode().startswith(value)
                assert headers == {"truncated": b"%d" % len(line.encode())}
            else:
                assert b"".join(value for value, _ in records) == line.encode()
                assert records[-1][1] == {"piece": b"%d" % len(records), "pieces": b"%d" % len(records)}
        again = await ingest_of(cluster, tmp_path, oversized=action).run()
        assert (again.lines, again.lines_there) == (0, 0)


async def test_a_line_that_fits_compressed_is_sent_as_it_is(logs: Path, tmp_path: Path) -> None:
    (logs / "a.log").write_text(f"{LONG}\n")
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.max_message_bytes = TOPIC_BYTES
        totals = await ingest_of(cluster, tmp_path, config={"compression.type": "zstd"}).run()
        assert totals.errors == []
        assert sent_to(cluster) == {("a.log", 1): [(LONG.encode(), {})]}


async def test_a_limit_that_may_not_be_read_is_named_by_the_refusal(logs: Path, tmp_path: Path) -> None:
    (logs / "a.log").write_text(f"a1\n{LONG}\n")
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.max_message_bytes, cluster.tells_configs = TOPIC_BYTES, False
        with pytest.raises(LineRefused, match=r"a\.log, line 2: MESSAGE_TOO_LARGE.*set max\.request\.size"):
            await ingest_of(cluster, tmp_path).run()
        totals = await ingest_of(
            cluster, tmp_path, oversized=Oversized.SPLIT, config={"max.request.size": TOPIC_BYTES - 61}
        ).run()
        assert totals.oversized == {f"{logs}/a.log": 1}
        sent = sent_to(cluster)
        assert sent["a.log", 1] == [(b"a1", {})]
        assert b"".join(value for value, _ in sent["a.log", 2]) == LONG.encode()


async def test_a_run_that_follows_goes_on_with_the_other_files(logs: Path, tmp_path: Path) -> None:
    (logs / "a.log").write_text(f"a1\n{LONG}\na3\n")
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.max_message_bytes = TOPIC_BYTES
        ingest = ingest_of(cluster, tmp_path, follow=True)
        task = asyncio.create_task(ingest.run())
        await becomes(lambda: bool(ingest.totals.errors), "the line is met")
        (logs / "b.log").write_text("b1\n")
        await becomes(lambda: ("b.log", 1) in sent_to(cluster), "the other file is read")
        ingest.stop()
        await task
        assert sorted(sent_to(cluster)) == [("a.log", 1), ("b.log", 1)]
        assert len(ingest.totals.errors) == 1


@pytest.mark.parametrize("seed", range(6))
async def test_pieces_are_sent_once_through_crashes(
    logs: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay one: pytest tests/unit/client/test_ingest_oversized.py -k "through_crashes and SEED"."""
    monkeypatch.setattr(ledger_module, "CHECKPOINT_LINES", 7)
    monkeypatch.setattr(state_file, "LOOK_MS", 5)
    chance = random.Random(seed)
    lines = ["x" * chance.choice([10, 2_000, 9_000, 40_000]) + str(number) for number in range(40)]
    async with LogCluster(topics={"t": 3}) as cluster:
        cluster.max_message_bytes = TOPIC_BYTES
        for turn in range(8):
            with (logs / "a.log").open("a") as file:
                file.writelines(line + "\n" for line in lines[5 * turn : 5 * turn + 5])
            disk = CrashingDisk(chance.randint(1, 5))
            task = asyncio.create_task(
                crashing(ingest_of(cluster, tmp_path, disk=disk, oversized=Oversized.SPLIT))
            )
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.05)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await ingest_of(cluster, tmp_path, oversized=Oversized.SPLIT).run()
        sent = sent_to(cluster)
        joined = [b"".join(value for value, _ in sent["a.log", number + 1]).decode() for number in range(40)]
        assert joined == lines, f"seed {seed}: lines were lost or repeated"


async def crashing(ingest: Ingest) -> None:
    try:
        await ingest.run()
    except Crash:
        pass
