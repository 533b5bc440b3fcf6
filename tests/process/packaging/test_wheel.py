"""The wheel, built from the sdist, works where nothing but its base requirements is installed: no Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nilometer
from nilometer.compiled import VARIABLE
from nilometer.compiled.modules import MODULES
from support.empty_environment import (
    COMMIT,
    REPOSITORY,
    build_both,
    build_wheel,
    find_python,
    install_alone,
    install_with,
    source_files,
)
from support.ports import free_ports


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_both(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def programs(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_alone(built[1], tmp_path_factory.mktemp("installed") / "environment")


def other_versions() -> list[str]:
    """Return the versions of Python that the package names, but for the one of the tests."""
    classifiers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [found[1] for one in classifiers if (found := re.fullmatch(r".* :: Python :: (3\.\d+)", one))]
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [version for version in named if version != own]


Run = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def empty_folder(programs: Path, parent: Path) -> Iterator[Run]:
    """Run programs of the environment in an empty folder; stop a cluster that is left in it."""
    folder = parent / "empty"
    folder.mkdir()
    environment = {"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(parent)}

    def command(*arguments: str, code: int = 0, input: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(programs / arguments[0]), *arguments[1:]],
            input=input,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    yield command
    if (folder / ".nilometer").exists():
        command("nilometer", "down")


@pytest.fixture
def run(programs: Path, tmp_path: Path) -> Iterator[Run]:
    with empty_folder(programs, tmp_path) as command:
        yield command


def check_a_cluster(run: Run, *options: str) -> None:
    """Start one, write, read, stop it."""
    (port,) = free_ports(1)
    ready = json.loads(run("nilometer", "up", "--detach", "--port", str(port), "--json", *options).stdout)
    assert ready["bootstrap_servers"] == f"127.0.0.1:{port}"
    server = ("--bootstrap-server", ready["bootstrap_servers"])
    run("nilometer", "produce", "t", *server, "--compression", "zstd", input="1\n2\n3\n")
    assert run("nilometer", "consume", "t", *server, "--tail", "3").stdout == "1\n2\n3\n"
    assert "Stopped 1 broker." in run("nilometer", "down").stdout


def test_both_have_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        assert "License-Expression: Apache-2.0" in archive.read(metadata).decode()
    in_wheel = {name for name in names if ".dist-info/" not in name}
    assert in_wheel == source_files() | {"nilometer/commit"}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert in_sdist >= {f"src/{name}" for name in source_files()} | {"pyproject.toml", "README.md", "LICENSE"}
    assert not any(name.startswith(("tests", "bench")) for name in in_sdist)


def test_the_version_names_the_commit(built: tuple[Path, Path], run: Run) -> None:
    said = run("nilometer", "--version").stdout
    shown = re.fullmatch(r"nilometer, version ([0-9.]+) \(commit ([0-9a-f]{7,}), interpreted\)\n", said)
    assert shown is not None
    assert shown[1] == nilometer.__version__
    assert built[0].with_name(COMMIT).read_text().startswith(shown[2])


def modules_in(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return sum(name.startswith("nilometer/compiled/built/nilometer.") for name in archive.namelist())


def test_a_wheel_is_compiled_where_there_is_a_compiler(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel = build_wheel(built[0], tmp_path / "compiled", {})
    assert modules_in(wheel) == len(MODULES)
    assert not wheel.name.endswith("-any.whl")
    programs = install_alone(wheel, tmp_path / "environment")
    environment = {"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin"}
    for wanted, form in (({}, "compiled"), ({VARIABLE: "0"}, "interpreted")):
        said = subprocess.run(
            ["nilometer", "--version"], env=environment | wanted, capture_output=True, text=True, check=True
        )
        assert said.stdout.endswith(f", {form})\n")


def test_a_wheel_without_a_compiler(built: tuple[Path, Path], tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path)}
    wheel = build_wheel(built[0], tmp_path / "plain", nowhere)
    assert modules_in(wheel) == 0
    assert wheel.name.endswith("-none-any.whl")
    with pytest.raises(AssertionError, match="there is no C compiler"):
        build_wheel(built[0], tmp_path / "asked", nowhere | {VARIABLE: "1"})


def test_a_cluster_from_the_wheel_alone(run: Run) -> None:
    where = run("python", "-c", "import nilometer; print(nilometer.__file__)").stdout
    assert "/environment/lib/" in where
    spark = "import importlib.util; print(importlib.util.find_spec('pyspark'))"
    assert run("python", "-c", spark).stdout == "None\n"
    check_a_cluster(run)


@pytest.mark.parametrize("version", other_versions())
def test_a_cluster_with_another_version_of_python_is_replayed_with_this_one(
    version: str, built: tuple[Path, Path], run: Run, tmp_path: Path
) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    there = tmp_path / version
    programs = install_with(python, built[1], there / "environment")
    with empty_folder(programs, there) as run_there:
        often = "replica.high.watermark.checkpoint.interval.ms=100"
        check_a_cluster(run_there, "--record", "--override", often)
    (recording,) = there.glob("empty/.nilometer/data/broker-1/logs-recordings/*")
    assert ", as recorded; " in run("nilometer", "recorder", "replay", "--quiet", str(recording)).stdout


def test_a_simulation_from_the_wheel_alone(run: Run) -> None:
    done = run("nilometer", "simulate", "--seed", "1", "--minutes", "0.1", "--json")
    assert json.loads(done.stdout)["exit"] == 0


def test_what_needs_spark_says_so(run: Run) -> None:
    done = run("nilometer", "audit", "--log-dirs", ".", code=1)
    assert "pip install 'nilometer[spark]'" in done.stderr
