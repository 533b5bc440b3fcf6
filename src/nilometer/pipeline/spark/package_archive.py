"""Packs this package into one archive, for executors on machines where it is not installed.

Executors still need Python and ``EXECUTOR_PACKAGES``, which contain machine code. The archive has the machine
code that numba has made of the decoding kernels, so that an executor whose processor is that of the driver
begins with its first record, not with some seconds of compiling. numba recognises it by the hash of the
source file (older versions than 0.68: by its time, and so they compile again).

Invariant: the same sources on the same machine give the same archive, byte by byte.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import os
import tarfile
from pathlib import Path

import nilometer

ARCHIVE_NAME = "nilometer.tar.gz"
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
