"""Builds the programs of tests/go, each a Go module with its dependencies in `go.sum`, once per change."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "go"
BUILD_TIMEOUT_S = 600.0


def why_not() -> str | None:
    """Return why programs cannot be built here; None if they can."""
    return None if shutil.which("go") else "Go is not installed (1.26 or newer, https://go.dev/dl)"


def built(name: str) -> Path:
    """Return the program of a folder. Raises RuntimeError with Go's output if it cannot be built."""
    target = PROJECT / "target" / name
    command = ["go", "build", "-o", str(target), "."]
    build = subprocess.run(
        command, cwd=PROJECT / name, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
    )
    if build.returncode:
        raise RuntimeError(f"tests/go/{name} cannot be built: {build.stderr.strip()}")
    return target
