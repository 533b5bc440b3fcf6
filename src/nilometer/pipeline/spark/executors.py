"""Executors on other machines: what they are given (this package as an archive, the name of their Python),
what they lack, and whether they share a folder with the driver.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import os
import posixpath
import re
import shlex
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import nilometer
from nilometer.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

# Packs this package into one archive, for executors on machines where it is not installed.
#
# Executors still need Python and ``EXECUTOR_PACKAGES``, which contain machine code. The archive has the
# machine code that numba has made of the decoding kernels, so that an executor whose processor is that of the
# driver begins with its first record, not with some seconds of compiling. numba recognises it by the hash of
# the source file (older versions than 0.68: by its time, and so they compile again).
#
# Invariant: the same sources on the same machine give the same archive, byte by byte.

ARCHIVE_NAME = "nilometer.tar.gz"
DAEMON_SETTINGS = {"spark.python.daemon.module": "nilometer.pipeline.spark.worker_daemon"}
_UNPACKED = "nilometer-package"
_TIME = 1_600_000_000
EXECUTOR_PACKAGES = (
    "pyarrow",
    "numpy",
    "numba",
    "kio",
    "crc32c",
    "cramjam",
    "zstandard",
    "msgspec",
    "google-re2",
)
"""The distributions that executors import, beside pyspark, which Spark brings along."""


def write_archive(folder: Path) -> Path:
    """Write the archive to ``folder`` and return its path."""
    package = Path(nilometer.__file__).parent
    source = package.parent
    files = [*package.rglob("*.py"), *package.rglob("*.toml"), *source.glob("pyspark_nilometer*.py")]
    contents = {str(file.relative_to(source)): file.read_bytes() for file in files} | _kernels(source)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARCHIVE_NAME
    temporary = folder / f"{ARCHIVE_NAME}.{os.getpid()}"  # renamed below: other jobs never see a part
    with (
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), _TIME
            archive.addfile(entry, io.BytesIO(data))
    temporary.replace(path)
    return path


def _kernels(source: Path) -> dict[str, bytes]:
    """Return the files in which numba keeps the compiled kernels."""
    from nilometer.pipeline.decode import batch_kernels, decode_kernels
    from nilometer.pipeline.decode.column_decoder import warm_up

    warm_up()
    found: dict[str, bytes] = {}
    for module in (Path(batch_kernels.__file__), Path(decode_kernels.__file__)):
        folder = (module.parent / "__pycache__").relative_to(source)
        for file in sorted(one for cache in decode_kernels.cache_folders() for one in cache.iterdir()):
            if file.name.startswith(f"{module.stem}.") and file.suffix in (".nbi", ".nbc"):
                found[str(folder / file.name)] = file.read_bytes()
    return found


def shipping_settings(archive: Path, others: str | None = None) -> dict[str, str]:
    """Return the Spark settings by which executors get the archive and import from it.

    ``others`` are the archives of the job itself. ``addPyFile`` does not work: Spark does not give the
    session's Python files to the workers of data sources. But an executor has the session's archives in its
    working folder, where its Python workers start.
    """
    archives = f"{archive.resolve()}#{_UNPACKED}"
    return {
        "spark.archives": f"{others},{archives}" if others else archives,
        "spark.executorEnv.PYTHONPATH": f"./{_UNPACKED}",
    }


def missing_package_text(module: str) -> str:
    """Return what to do about a module that an executor could not import."""
    names = importlib.metadata.packages_distributions().get(module, [module])
    return (
        f"an executor's Python has no package {names[0]}. On every worker, with the Python that Spark uses "
        f"there: pip install {' '.join(EXECUTOR_PACKAGES)}"
    )


# Spark starts the workers of a Python data source by one name of a program, on the driver and on executors. A
# path of one machine need not exist on the other. So executors get a name without a path, and look for it in
# their own ``PATH``; the driver's ``PATH`` begins with a folder where that name is this Python.

PYTHON_SETTING = "spark.pyspark.python"
DRIVER_PYTHON_SETTING = "spark.pyspark.driver.python"
PATH_SETTING = "spark.executorEnv.PATH"
USUAL_PYTHON = "python3"
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([A-Za-z0-9_]+)", re.MULTILINE)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)".*error=2\b')
_VERSIONS = re.compile(r"different version: ([0-9.]+) than that in driver: ([0-9.]+)")
PROBES = 32
"""The tasks that look for a probe file: more than one for each executor, so that most executors run one."""


def python_settings(given: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the name of the executors' Python, and the settings by which they find it.

    It is ``spark.pyspark.python`` of the settings ``given``, else ``PYSPARK_PYTHON``, else Spark's python3.
    """
    program = given.get(PYTHON_SETTING) or environment.get("PYSPARK_PYTHON") or USUAL_PYTHON
    folder, name = posixpath.split(program)
    if not folder:
        return name, {}
    return name, {PATH_SETTING: f"{folder}:{given.get(PATH_SETTING, USUAL_PATH)}"}


def driver_environment(
    name: str, folder: Path, environment: Mapping[str, str], python: str = sys.executable
) -> dict[str, str]:
    """Return the variables with which a driver's Spark finds this Python by the executors' name for it.

    Writes a program of this name to ``folder``, which is to last as long as the driver.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"{folder.resolve()}:{environment.get('PATH', USUAL_PATH)}"
    # Spark would give the driver's name to executors, too.
    return {"PATH": path, "PYSPARK_PYTHON": name, "PYSPARK_DRIVER_PYTHON": name}


def lack_of(error: BaseException) -> str | None:
    """Return what an executor lacks and what to do, if that is what Spark's ``error`` says; else None."""
    text = str(error)
    if (missing := _MISSING.search(text)) is not None:
        return missing_package_text(missing[1])
    if (versions := _VERSIONS.search(text)) is not None:
        return (
            f"an executor has Python {versions[1]}, and this machine {versions[2]}: they need the same minor "
            f"version. Give the path of another Python on the workers with --conf {PYTHON_SETTING}=PATH"
        )
    if (program := _NO_PYTHON.search(text)) is not None:
        return (
            f"an executor does not find its Python, {program[1]}: give its path there with "
            f"--conf {PYTHON_SETTING}=PATH"
        )
    return None


def require_shared(spark: SparkSession, folder: Path) -> None:
    """Check that executors see the driver's files in ``folder``, and the driver theirs. Raises PipelineError.

    Otherwise the files of a table stay on the workers, where no reader finds them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder.resolve() / f".probe-{uuid.uuid4().hex}"
    probe.write_text("driver", encoding="utf-8")
    try:
        rows = spark.range(PROBES, numPartitions=PROBES).mapInArrow(
            _prober(str(probe)), "host string, file string"
        )
        found = [(row.host, row.file) for row in rows.collect()]
        for host, file in found:
            if not file or not Path(file).exists():
                raise PipelineError(
                    f"the executor on {host} does not share the folder {folder.resolve()} with this machine: "
                    "its files would be on that machine only. Give --home a folder of a shared file system"
                )
    finally:
        for one in folder.glob(f"{probe.name}*"):
            one.unlink(missing_ok=True)


def _prober(
    probe: str,
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return what executors run. It imports nothing of this package, whose absence has its own message."""

    def look(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import os
        import socket
        import uuid

        import pyarrow as pa

        for _ in batches:
            file = ""
            if os.path.exists(probe):
                file = f"{probe}-{uuid.uuid4().hex}"
                with open(file, "w") as own:
                    own.write("executor")
            yield pa.RecordBatch.from_arrays(
                [pa.array([socket.gethostname()]), pa.array([file])], names=["host", "file"]
            )

    return look
