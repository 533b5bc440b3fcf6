"""Exports of segment folders to Parquet files, without Spark: the rows of the source, each once, by runs."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines.folder_commands import export_command
from nilometer.pipeline.errors import DataLoss, OptionError, PipelineError, SourceError
from nilometer.pipeline.export import topic_export
from nilometer.pipeline.export.topic_export import COLUMNS, export, write_slice
from nilometer.pipeline.source.log_folders.log_plan import parse_log_options, plan
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.positions import Bounds
from nilometer.pipeline.spark import spark_session
from nilometer.wire.compression import Codec
from support.logs.folder_logs import FolderLog


def run_tasks(tasks):
    return [file for one in tasks if (file := write_slice(one)) is not None]


def export_to(folder, place, *, run=run_tasks, columns=COLUMNS, compression="zstd", **options):
    return export(run, {"path": str(place), **options}, folder, columns=columns, compression=compression)


def read_rows(place, columns=COLUMNS, **options):
    """The rows of the data source, in order."""
    parsed = parse_log_options({"path": str(place), **options})
    slices = plan(parsed, Bounds())
    found = [row for one in slices for batch in read_slice(parsed, columns, one) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def exported_rows(folder):
    """The rows of all files below ``data``, in order."""
    files = sorted((folder / "data").rglob("*.parquet"))
    found = [row for path in files for row in parquet.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def offsets_in(folder):
    return [row["offset"] for row in exported_rows(folder)]


def filled(log_dir, partition=0, count=40):
    """Batches of 10 records in every codec, and segments of 100; some keys, values and times are null."""
    log = FolderLog(log_dir, "events", partition)
    for number in range(count):
        if number and number % 10 == 0:
            log.roll()
        first = number * 10
        rows = [
            (
                -1 if n % 7 == 0 else 1_000 + n,
                None if n % 3 == 0 else b"k%d" % n,
                None if n % 5 == 0 else b"v",
            )
            for n in range(first, first + 10)
        ]
        log.append(rows, epoch=number // 16, codec=Codec(number % 5))
    log.checkpoint()
    return log


@pytest.fixture
def log(tmp_path):
    return filled(tmp_path / "logs")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "export"


# --- the rows


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "none"])
def test_the_files_have_the_rows_and_types_of_the_source(tmp_path, log, folder, compression):
    filled(log.log_dir, partition=1, count=7)
    exported = export_to(folder, log.log_dir, compression=compression, bytesPerPartition="1500")
    expected = read_rows(log.log_dir)
    assert exported_rows(folder) == expected
    assert (exported.rows, len(expected)) == (470, 470)
    assert exported.files == len(list((folder / "data").rglob("*.parquet"))) > 4
    path = next((folder / "data").rglob("*.parquet"))
    assert str(parquet.ParquetFile(path).schema_arrow.field("timestamp").type) == "timestamp[us, tz=UTC]"


def test_a_file_of_several_row_groups_has_all_rows(log, folder, monkeypatch):
    monkeypatch.setattr(topic_export, "ROW_GROUP_BYTES", 1)
    export_to(folder, log.log_dir, columns=("offset", "value", "topic", "partition"))
    assert exported_rows(folder) == read_rows(log.log_dir, columns=("offset", "value", "topic", "partition"))


def test_gaps_of_a_compacted_log_are_no_loss(tmp_path, folder):
    log = FolderLog(tmp_path / "logs", "events")
    for number in range(20):
        log.append([(1_000 + number, b"k", b"v%d" % number)], skip=number % 4)
        if number % 6 == 5:
            log.roll()
    log.checkpoint()
    export_to(folder, log.log_dir)
    assert exported_rows(folder) == read_rows(log.log_dir)
    assert len(offsets_in(folder)) == 20


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_transactions_are_read_as_the_source_reads_them(tmp_path, folder, level):
    log = FolderLog(tmp_path / "logs", "events")
    log.append([(1, b"k", b"committed")], producer_id=7, transactional=True)
    log.append([(2, b"k", b"aborted")], producer_id=8, transactional=True)
    log.append([(3, b"k", b"plain")])
    log.end_transaction(7, commit=True)
    log.end_transaction(8, commit=False)
    log.index_aborted(8, 1, 4, 5)
    log.append([(4, b"k", b"open")], producer_id=9, transactional=True)
    log.checkpoint()
    options = {"isolation.level": level}
    export_to(folder, log.log_dir, **options)
    assert exported_rows(folder) == read_rows(log.log_dir, **options)
    found = [0, 2] if level == "read_committed" else [0, 1, 2, 5]
    assert offsets_in(folder) == found
    log.end_transaction(9, commit=True)
    log.append([(5, b"k", b"later")])
    log.checkpoint()
    export_to(folder, log.log_dir, **options)
    assert offsets_in(folder) == [*[one for one in found if one != 5], 5, 7]


@pytest.mark.parametrize("topic", ["_schemas", ".hidden", "t" * 249])
def test_readers_find_the_files_of_every_topic(tmp_path, folder, topic):
    """Spark and Arrow skip files that begin with `_` or `.`, and a file's name has at most 255 bytes."""
    log = FolderLog(tmp_path / "logs", topic)
    log.append([(1, b"k", b"v")])
    log.checkpoint()
    export_to(folder, log.log_dir)
    [path] = (folder / "data").rglob("*.parquet")
    assert path.name[0] not in "_." and topic[:200] in path.name
    assert exported_rows(folder) == read_rows(log.log_dir)


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_can_be_exported_alone(log, folder, column):
    export_to(folder, log.log_dir, columns=(column,))
    paths = (folder / "data").rglob("*.parquet")
    assert {tuple(parquet.read_schema(path).names) for path in paths} == {(column,)}


# --- runs


def test_a_run_adds_what_is_new_and_a_new_partition(log, folder):
    assert export_to(folder, log.log_dir).rows == 400
    assert export_to(folder, log.log_dir).files == 0
    log.append([(9_000, b"k", b"v")])
    log.checkpoint()
    filled(log.log_dir, partition=1, count=2)
    exported = export_to(folder, log.log_dir)
    assert {str(part): ends for part, ends in exported.ranges.items()} == {
        "events-0": (400, 401),
        "events-1": (0, 20),
    }
    assert exported_rows(folder) == read_rows(log.log_dir)
    assert len(list((folder / "_commits").iterdir())) == 2


def test_the_options_of_the_start_hold_for_the_first_run(log, folder):
    start = json.dumps({"events": {"0": 395}})
    export_to(folder, log.log_dir, startingOffsets=start, endingOffsets=start)
    assert offsets_in(folder) == []
    export_to(folder, log.log_dir)
    assert offsets_in(folder) == [395, 396, 397, 398, 399]
    export_to(folder, log.log_dir, startingOffsets=start)
    assert offsets_in(folder) == [395, 396, 397, 398, 399]


def test_a_run_that_fails_adds_nothing_and_the_next_one_adds_everything(log, folder):
    def killed(tasks):
        for one in tasks:
            write_slice(one)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_to(folder, log.log_dir, run=killed)
    assert offsets_in(folder) == []
    export_to(folder, log.log_dir)
    assert offsets_in(folder) == list(range(400))
    assert not (folder / "_staged").exists() or not list((folder / "_staged").rglob("*.parquet"))


def test_files_of_attempts_that_do_not_count_are_removed(log, folder):
    def twice(tasks):
        run_tasks(tasks)
        return run_tasks(tasks)

    export_to(folder, log.log_dir, run=twice, bytesPerPartition="1500")
    assert offsets_in(folder) == list(range(400))


def test_a_run_that_was_killed_after_its_manifest_is_completed(log, folder, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(topic_export.ExportedFolder, "_publish", killed)
        with pytest.raises(KeyboardInterrupt):
            export_to(folder, log.log_dir)
    assert offsets_in(folder) == []
    assert export_to(folder, log.log_dir).files == 0
    assert offsets_in(folder) == list(range(400))


# --- refusals


def test_records_deleted_before_their_export_are_an_error_unless_the_option_allows_it(log, folder):
    export_to(folder, log.log_dir, endingOffsets=json.dumps({"events": {"0": 50}}))
    for suffix in (".log", ".index", ".timeindex"):
        log.path(suffix, 0).unlink()
    with pytest.raises(DataLoss, match=r"offsets 50 to 99 of events-0 are no longer available"):
        export_to(folder, log.log_dir)
    export_to(folder, log.log_dir, failOnDataLoss="false")
    assert offsets_in(folder) == [*range(50), *range(100, 400)]


def test_a_log_that_begins_in_remote_storage_is_refused_unless_the_option_allows_it(log, folder):
    (log.folder / "begins-in-remote-storage").touch()
    for suffix in (".log", ".index", ".timeindex"):
        log.path(suffix, 0).unlink()
    with pytest.raises(DataLoss, match=r"offsets 0 to 99 of events-0 are not in its folder"):
        export_to(folder, log.log_dir)
    export_to(folder, log.log_dir, failOnDataLoss="false")
    assert offsets_in(folder) == list(range(100, 400))


def test_a_log_that_ends_before_the_export_is_refused(log, folder):
    export_to(folder, log.log_dir)
    log.checkpoint(high_watermark=137)
    with pytest.raises(SourceError, match=r"up to offset 400, but here only up to 137"):
        export_to(folder, log.log_dir)


def test_a_topic_that_was_created_again_is_refused(log, folder):
    metadata = log.folder / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    export_to(folder, log.log_dir)
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    with pytest.raises(SourceError, match=r"topic events was deleted and created again"):
        export_to(folder, log.log_dir)


def test_a_folder_of_something_else_or_of_other_columns_is_refused(log, folder):
    export_to(folder, log.log_dir, columns=("offset", "topic", "partition"))
    with pytest.raises(PipelineError, match=r"has the columns offset, topic, partition"):
        export_to(folder, log.log_dir)
    with pytest.raises(PipelineError, match="has other files, such as "):
        export_to(log.log_dir, log.log_dir)


def test_one_run_at_a_time(log, folder):
    export_to(folder, log.log_dir)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PipelineError, match=r"another export to .* is under way"):
            export_to(folder, log.log_dir)


def test_a_full_disk_is_told_and_the_next_run_adds_everything(log, folder, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(topic_export.os, "fsync", full)
        with pytest.raises(PipelineError, match=r"events-0 cannot be written to .*: No space left on device"):
            export_to(folder, log.log_dir)
    assert offsets_in(folder) == []
    export_to(folder, log.log_dir)
    assert offsets_in(folder) == list(range(400))


def test_a_place_that_is_no_folder_of_this_machine_is_refused(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match="s3:/bucket/orders is no folder of this machine"):
        export_to(Path("s3://bucket/orders"), log.log_dir)
    assert not Path("s3:").exists()
    Path("file").write_text("")
    with pytest.raises(PipelineError, match="file/below cannot be used: Not a directory"):
        export_to(Path("file/below"), log.log_dir)


@pytest.mark.parametrize("columns", [(), ("offset", "offset"), ("offset", "colour")])
def test_columns_that_are_none_of_the_source_are_refused(log, folder, columns):
    with pytest.raises(OptionError, match="must be some of key, value"):
        export_to(folder, log.log_dir, columns=columns)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("subscribe=other", "--option subscribe: use --topic"),
        ("subscribePattern=.*", "--option subscribePattern: use --topic"),
        ("paths=[]", "--option paths: use --data-dir or --log-dirs"),
    ],
)
def test_an_option_that_the_command_sets_is_refused(log, folder, option, told):
    asked = ("--topic", "events", "--to", str(folder), "--log-dirs", str(log.log_dir), "--option", option)
    done = CliRunner().invoke(export_command, list(asked))
    assert done.exit_code == 2
    assert told in done.output


def test_a_disk_that_is_full_at_the_commit_is_told_by_the_command(log, folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spark_session, "build_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(topic_export, "_on_spark", lambda _, tasks: run_tasks(tasks))
    asked = ["--topic", "events", "--to", str(folder), "--log-dirs", str(log.log_dir)]
    with monkeypatch.context() as patched:
        patched.setattr(topic_export, "write_whole", full)
        done = CliRunner().invoke(export_command, asked)
        assert done.exit_code == 1
        assert f"{folder}: No space left on device" in done.output.replace("\n", "")
    assert offsets_in(folder) == []
    done = CliRunner().invoke(export_command, asked)
    assert done.exit_code == 0, done.output
    assert offsets_in(folder) == list(range(400))
