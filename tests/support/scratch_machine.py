"""Runs commands as root on a scratch copy of this machine: its files as an overlay, and a network of its own.

Nothing that they write, and no port, is seen outside, and all of it is gone when they end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 600
_MAKE = """
set -e
mount -t tmpfs scratch "$1"
mkdir "$1"/upper "$1"/work "$1"/root
mount -t overlay overlay -o lowerdir=/,upperdir="$1"/upper,workdir="$1"/work "$1"/root
for each in dev proc sys; do mount --rbind /$each "$1"/root/$each; done
ip link set lo up
export SYSTEMD_OFFLINE=1
exec chroot "$1"/root bash -ec "cd '$2'; $3"
"""
"""Arguments: an empty folder, the folder in which the commands run, the commands."""

needs_scratch_machine = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="needs root on Linux"
)


def run_on_scratch_machine(empty: Path, folder: Path, commands: str) -> str:
    """Run the commands in ``folder``; return what they print. Fails if one of them does.

    The programs of the tests are on the PATH; systemd is there, but does not run.
    """
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "bash",
            "-c",
            _MAKE,
            "bash",
            empty,
            folder,
            commands,
        ],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
