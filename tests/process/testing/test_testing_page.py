"""Every code block of docs/testing.md is a file of a test run that passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.documentation.code_blocks import code_blocks, files_of
from support.kafka.apache_kafka import ensure_java

FILES = files_of("testing.md")
SPARK = "test_spark.py"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def run(folder: Path, names: list[str]) -> None:
    for name in ("conftest.py", "pytest.ini", *names):
        (folder / name).write_text(FILES[name], encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # As in an activated environment: Spark finds its Python workers by PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    environment.pop("PYSPARK_PYTHON", None)
    environment["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{QUICK_JAVA}' pyspark-shell"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(names)} passed" in done.stdout


def test_every_block_is_a_file():
    assert (
        len(FILES) == len(code_blocks("testing.md", "python")) + len(code_blocks("testing.md", "ini")) == 12
    )


def test_the_examples_pass(tmp_path: Path):
    run(tmp_path, [name for name in FILES if name.startswith("test_") and name != SPARK])


@pytest.mark.spark
def test_the_example_with_spark_passes(tmp_path: Path):
    ensure_java()
    run(tmp_path, [SPARK])
