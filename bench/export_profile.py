"""Where the processor time of `nilometer export` goes, step by step: in this process, without Spark.

    python -m bench.export_profile --records 2000000

The steps are those that a task runs in a Python worker of Spark, over one broker's folder.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from nilometer.pipeline.decode.column_decoder import KAFKA_COLUMNS, ColumnDecoder
from nilometer.pipeline.export import topic_export
from nilometer.pipeline.export.topic_export import SliceTask
from nilometer.pipeline.source.log_folders.log_plan import parse_log_options, plan
from nilometer.pipeline.source.positions import Bounds

from . import load
from .run import SCRATCH
from .spark import SPARK_COMPRESSION, TOPIC, WARM_TOPIC, SparkOnNilometer

STEPS = {"_check": "checks and CRCs", "_measure": "lengths of the records", "_lay_out": "Arrow columns"}


def profile(folder: Path, topic: str, out: Path) -> tuple[int, dict[str, float]]:
    """Export a topic; return its rows, and the seconds of processor time of each step."""
    seconds: dict[str, float] = defaultdict(float)

    def timed(title: str, step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def run(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return step(*given, **named)
            finally:
                seconds[title] += time.process_time() - began

        return run

    class Writer:
        """A Parquet writer whose calls are timed."""

        def __init__(self, file: Any, task: SliceTask) -> None:
            self._writer = make_writer(file, task)
            self.write_table = timed("Parquet", self._writer.write_table)
            self.close = timed("Parquet", self._writer.close)

        def __enter__(self) -> Writer:
            return self

        def __exit__(self, *_: object) -> None:
            self._writer.close()

    make_writer = topic_export._writer  # pyright: ignore[reportPrivateUsage]
    options = parse_log_options({"path": str(folder), "subscribe": topic})
    out.mkdir()
    steps: Any = {name: timed(title, getattr(ColumnDecoder, name)) for name, title in STEPS.items()}
    began = time.process_time()
    rows = 0
    with patch.multiple(ColumnDecoder, **steps), patch.object(topic_export, "_writer", Writer):
        for one in plan(options, Bounds()):
            written = topic_export.write_slice(
                SliceTask(options, KAFKA_COLUMNS, SPARK_COMPRESSION, str(out), one)
            )
            rows += written.rows if written is not None else 0
    total = time.process_time() - began
    seconds["reading the files, and the rest"] = total - sum(seconds.values())
    return rows, {**seconds, "all": total}


@click.command()
@click.option("--records", type=click.IntRange(10_000), default=2_000_000, show_default=True)
def main(records: int) -> None:
    """Microseconds of processor time for a record, and the share of each step."""
    load.compile_load()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=SCRATCH)).resolve()
    system = SparkOnNilometer(folder, records)
    try:
        system.launch()
        try:
            system.fill()
        finally:
            system.stop()
        profile(system.data_dir, WARM_TOPIC, folder / "warm-up")
        rows, seconds = profile(system.data_dir, TOPIC, folder / "out")
    finally:
        shutil.rmtree(folder)
    if rows != records:
        raise click.ClickException(f"{rows} records were exported, not {records}")
    for title, taken in seconds.items():
        click.echo(f"{title:34} {taken / rows * 1e6:6.3f} us {taken / seconds['all']:6.0%}")


if __name__ == "__main__":
    main()
