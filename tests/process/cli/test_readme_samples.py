"""The samples of README.md, and of the planted fault that is shown: each command succeeds and prints what the
page says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.documentation.code_blocks import DOCS
from support.documentation.shell_samples import README, missing_lines, samples_of_section
from support.ports import neighbouring_ports

ACTIVATE = "source .venv/bin/activate"
PROGRAMS = Path(sys.executable).parent


def bash(command: str, folder: Path, more: Mapping[str, str], codes: tuple[int, ...] = (0,)) -> str:
    environment = {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", **more}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_cluster_by_hand(tmp_path: Path) -> None:
    first, *samples = samples_of_section(README, "A cluster by hand")
    assert first.command == ACTIVATE
    assert [sample.command.split()[1] for sample in (samples[0], samples[-1])] == ["up", "down"]
    port = neighbouring_ports(3)
    servers = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    try:
        for command, printed in samples:
            if command.startswith("nilometer up "):
                command += f" --port {port}"  # those of the page may be in use
            output = bash(command, tmp_path, {"NILOMETER_BOOTSTRAP_SERVER": servers})
            assert missing_lines(printed, output.splitlines()) == [], f"{command}:\n{output}"
    finally:
        bash("nilometer down", tmp_path, {})


@pytest.mark.soak
def test_the_planted_fault_is_found() -> None:
    """Its seed and numbers depend on the code; a change may need another sample."""
    samples = samples_of_section(DOCS / "simulation.md", "A planted fault, found")
    assert len(samples) == 2
    for command, printed in samples:
        output = bash(command, README.parent, {}, codes=(12,))
        assert missing_lines(printed, output.splitlines()) == [], f"{command}:\n{output}"
