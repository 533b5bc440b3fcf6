"""What the daemon of Python workers imports before it forks them."""

from __future__ import annotations

import subprocess
import sys

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
