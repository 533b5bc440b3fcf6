"""What the daemon of Python workers imports before it forks them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

SHOW = """
import sys
import threading
from pathlib import Path

import nilometer.pipeline.spark.worker_daemon

threads = Path("/proc/self/task")
count = len(list(threads.iterdir())) if threads.exists() else threading.active_count()
print(count, *(name for name in ("numpy", "pandas", "pyarrow", "numba") if name in sys.modules))
"""


def test_it_imports_the_sources_and_starts_no_thread() -> None:
    """A thread that was started before the fork is missing in the workers, with the locks that it held."""
    shown = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["1"]


INSTALLED = Path(pyspark.__file__).parent
VERSION = (INSTALLED / "version.py").read_text()


@pytest.mark.parametrize(("version", "taken"), [(VERSION, INSTALLED), (f"{VERSION}# another", None)])
def test_it_takes_the_installed_pyspark_if_it_is_that_of_sparks_archive(tmp_path, version, taken) -> None:
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("pyspark/__init__.py", "")
        packed.writestr("pyspark/version.py", version)
    places = os.pathsep.join([str(archive), str(tmp_path / "py4j-src.zip")])
    show = "import nilometer.pipeline.spark.worker_daemon, pyspark; print(pyspark.__file__)"
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(
        [sys.executable, "-c", show], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent == (taken or archive / "pyspark")
