"""``nilometer export``: writes what is new in topics to Parquet files, from brokers' folders, on Spark.

Nothing of Spark is imported before the folders have been found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, parse_pairs, print_json, print_table
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.log_folder_options import chosen_places, data_dir_option, log_dirs_option
from nilometer.cli.signals import exit_on_sigterm
from nilometer.pipeline.errors import PipelineError, readable

if TYPE_CHECKING:
    from nilometer.pipeline.export.slice_files import Compression
    from nilometer.pipeline.export.topic_export import Exported

COMPRESSIONS = ("zstd", "snappy", "lz4", "none")
_INSTEAD: dict[str, str] = {
    **dict.fromkeys(("subscribe", "subscribepattern", "assign"), "--topic"),
    **dict.fromkeys(("path", "paths", "logdirs"), "--data-dir or --log-dirs"),
}
"""Options of the data source that have one of the command's, by their name in lower case."""


@commands.command("export")
@click.option("--topic", "topics", multiple=True, required=True, help="The topic to export; repeatable.")
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the export; a later run adds to it what is new.",
)
@data_dir_option
@log_dirs_option
@click.option("--columns", metavar="NAME[,…]", help="Only these columns.  [default: all of nilometer-log]")
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="zstd",
    show_default=True,
    help="The codec of the files.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option KEY=VALUE of the data source nilometer-log; repeatable.",
)
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option(
    "--spark-log",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(".nilometer/export/spark.log"),
    show_default=True,
    help="The file that Spark's log goes to.",
)
@json_option
def export_command(
    topics: tuple[str, ...],
    folder: Path,
    data_dir: Path | None,
    log_dirs: str | None,
    columns: str | None,
    compression: str,
    options: tuple[str, ...],
    master: str,
    spark_log: Path,
    as_json: bool,
) -> None:
    """Write the records of topics to Parquet files, as fast as the files can be read.

    Reads the log directories of brokers, running or not, up to the checkpointed high watermark, and changes
    nothing in them. A run adds the records that the folder does not have yet, all or none of them. The files
    are below data, in a folder for each run.
    """
    given = parse_pairs(options, "--option")
    for name in given:
        if name.lower() in _INSTEAD:
            raise click.UsageError(f"--option {name}: use {_INSTEAD[name.lower()]}")
    try:
        places = chosen_places(data_dir, log_dirs)
        given |= {"paths": json.dumps(places), "subscribe": ",".join(topics)}
        exported = _run(given, folder, columns, cast("Compression", compression), master, spark_log)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json(_as_json(exported))
        return
    ranges = [(str(part), start, end) for part, (start, end) in exported.ranges.items()]
    print_table(("partition", "from offset", "up to offset"), ranges)
    click.echo(f"Wrote {exported.rows:,} records to {exported.files:,} files, {exported.bytes:,} bytes.")


def _run(
    given: dict[str, str],
    folder: Path,
    columns: str | None,
    compression: Compression,
    master: str,
    spark_log: Path,
) -> Exported:
    from nilometer.pipeline.export.topic_export import COLUMNS, check_export, export_topics
    from nilometer.pipeline.spark.spark_session import build_session

    exit_on_sigterm()
    names = tuple(one.strip() for one in columns.split(",")) if columns is not None else COLUMNS
    check_export(given, names, folder)  # before the slow start of Spark
    with OutputConsole(stderr=True).status("Starting Spark ...") as status:
        spark = build_session("export", master=master, log_file=spark_log, quick=True)
        try:
            status.update("Exporting ...")
            return export_topics(spark, given, folder, columns=names, compression=compression)
        except PipelineError:
            raise
        except OSError as error:
            raise PipelineError(f"{error.filename or folder}: {error.strerror or error}") from error
        except Exception as error:
            words = readable(error)
            raise PipelineError(words or f"{type(error).__name__} (more in {spark_log})") from error
        finally:
            spark.stop()


def _as_json(exported: Exported) -> dict[str, object]:
    return {
        "records": exported.rows,
        "files": exported.files,
        "bytes": exported.bytes,
        "partitions": [
            {"topic": part.topic, "partition": part.partition, "start_offset": start, "end_offset": end}
            for part, (start, end) in exported.ranges.items()
        ],
    }
