"""This package as one archive, for executors on machines where it is not installed.

Executors still need Python itself with what the package depends on (kio, crc32c, cramjam, msgspec, numpy,
pyarrow, numba); these have machine code and belong in an image or an environment of theirs.

Invariant: the same sources give the same archive, byte by byte, so that it is made once.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import nilometer

ARCHIVE_NAME = "nilometer.zip"
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def write_archive(folder: Path) -> Path:
    """The archive, in ``folder``."""
    package = Path(nilometer.__file__).parent
    source = package.parent
    files = [*package.rglob("*.py"), *source.glob("pyspark_nilometer*.py")]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARCHIVE_NAME
    temporary = folder / f"{ARCHIVE_NAME}.{os.getpid()}"  # a job that starts now finds a complete archive
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            name = str(file.relative_to(source))
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), file.read_bytes(), zipfile.ZIP_DEFLATED)
    temporary.replace(path)
    return path


def shipping_settings(archive: Path) -> dict[str, str]:
    """Spark's settings by which executors have the archive and import from it.

    ``addPyFile`` would not do: Spark gives the workers of data sources none of the session's Python files.
    But an executor has the session's files in its working folder, where its Python workers start.
    """
    return {"spark.files": str(archive.resolve()), "spark.executorEnv.PYTHONPATH": f"./{ARCHIVE_NAME}"}
