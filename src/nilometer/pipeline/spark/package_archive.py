"""Packs this package into one archive, for executors on machines where it is not installed.

Executors still need Python and the package's dependencies (kio, crc32c, cramjam, msgspec, numpy, pyarrow,
numba); these contain machine code and must be in the executors' image or environment.

Invariant: the same sources give the same archive, byte by byte.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import nilometer

ARCHIVE_NAME = "nilometer.zip"
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def write_archive(folder: Path) -> Path:
    """Write the archive to ``folder`` and return its path."""
    package = Path(nilometer.__file__).parent
    source = package.parent
    files = [*package.rglob("*.py"), *package.rglob("*.toml"), *source.glob("pyspark_nilometer*.py")]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARCHIVE_NAME
    temporary = folder / f"{ARCHIVE_NAME}.{os.getpid()}"  # renamed below: other jobs never see a part
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            name = str(file.relative_to(source))
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), file.read_bytes(), zipfile.ZIP_DEFLATED)
    temporary.replace(path)
    return path


def shipping_settings(archive: Path) -> dict[str, str]:
    """Return the Spark settings by which executors get the archive and import from it.

    ``addPyFile`` does not work: Spark does not give the session's Python files to the workers of data
    sources. But an executor has the session's files in its working folder, where its Python workers start.
    """
    return {"spark.files": str(archive.resolve()), "spark.executorEnv.PYTHONPATH": f"./{ARCHIVE_NAME}"}
