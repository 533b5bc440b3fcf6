"""What executors are told of their Python, and what is said of what they lack."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nilometer.pipeline.spark.executors import (
    EXECUTOR_PACKAGES,
    driver_environment,
    lack_of,
    python_settings,
)


@pytest.mark.parametrize(
    ("given", "environment", "name", "path"),
    [
        ({}, {}, "python3", None),
        ({}, {"PYSPARK_PYTHON": "python3.11"}, "python3.11", None),
        ({}, {"PYSPARK_PYTHON": "/opt/a/bin/python"}, "python", "/opt/a/bin:/usr/local/sbin"),
        (
            {"spark.pyspark.python": "./env/bin/python"},
            {"PYSPARK_PYTHON": "/x/y"},
            "python",
            "./env/bin:/usr/local",
        ),
        (
            {"spark.pyspark.python": "/o/python3", "spark.executorEnv.PATH": "/mine"},
            {},
            "python3",
            "/o:/mine",
        ),
    ],
)
def test_executors_get_a_name_and_find_it_in_their_own_path(given, environment, name, path):
    found, settings = python_settings(given, environment)
    assert found == name
    assert (settings == {}) if path is None else settings["spark.executorEnv.PATH"].startswith(path)


def test_the_driver_finds_its_own_python_by_that_name(tmp_path):
    given = {"PATH": "/usr/bin:/bin", "PYSPARK_DRIVER_PYTHON": "jupyter"}
    variables = driver_environment("python9", tmp_path / "a folder", given)
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == "python9"
    folder, _, rest = variables["PATH"].partition(":")
    assert rest == given["PATH"]
    program = Path(folder, "python9")
    assert os.access(program, os.X_OK)
    assert sys.executable in program.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Job aborted:\nModuleNotFoundError: No module named 're2'\n\tat ...", "has no package google-re2"),
        ("x\nModuleNotFoundError: No module named 'kio.schema'", f"pip install {EXECUTOR_PACKAGES[0]} "),
        (
            'java.io.IOException: Cannot run program "python7": error=2, No such file',
            "find its Python, python7",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.13 than that in driver: "
            "3.11, PySpark cannot run",
            "an executor has Python 3.13, and this machine 3.11",
        ),
    ],
)
def test_what_an_executor_lacks_is_said_with_the_remedy(text, says):
    assert says in (lack_of(RuntimeError(text)) or "")


def test_another_error_is_no_lack():
    assert lack_of(ValueError("no such column: python3")) is None
