"""Starts Spark in the background, and runs the demo's pipeline on it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from nilometer.cli.demo.demo_run import Demo, DemoFailed
from nilometer.cli.pipelines.pipeline_results import print_position, progress_line, tables_of
from nilometer.pipeline.run import runner
from nilometer.pipeline.run.catalogue import SHIPPED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkStart:
    """Starts Spark in a thread, while the brokers start and lines are ingested."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        from nilometer.pipeline.spark.spark_session import build_session

        try:
            session = build_session("demo", master="local[2]", quick=True, log_file=self._log_file)
            session.range(1).count()  # the first job of a session is slow
            self._session = session
        except BaseException as error:
            self._error = error

    def wait(self) -> SparkSession:
        self._thread.join()
        if self._session is None:
            raise DemoFailed(
                f"Spark did not start: {self._error} (more in {self._log_file})"
            ) from self._error
        return self._session

    def stop(self) -> None:
        self._thread.join()
        if self._session is not None:
            self._session.stop()


def run_pipeline(demo: Demo, session: SparkSession) -> dict[str, list[dict[str, object]]]:
    job = runner.Job(
        demo.topic,
        os.fspath(demo.run_dir / "tables"),
        demo.bootstrap,
        available_now=True,
        client=demo.security.client_settings() if demo.security is not None else {},
    )
    logs = SHIPPED["logs"].load()
    with demo.step("Running the logs pipeline on Spark ..."):
        last = runner.run(
            session, logs, job, on_progress=lambda progress: demo.print_step(progress_line(progress))
        )
    if last is None:
        raise DemoFailed(f"the pipeline found no record in topic {demo.topic}")
    print_position(demo.console, last)
    return tables_of(logs.results(session, job.output))
