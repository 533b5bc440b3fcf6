"""The unit for systemd and the Containerfile: as their own tools judge them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.broker.settings.config import BrokerConfig
from nilometer.config import parse_properties
from support.documentation.code_blocks import DOCS, code_blocks
from support.documentation.parsed_commands import parse_command

ROOT = DOCS.parent
UNIT = ROOT / "packaging" / "systemd" / "nilometer@.service"
CONTAINERFILE = ROOT / "packaging" / "container" / "Containerfile"
INSTALLED = "/opt/nilometer/bin/nilometer"
EXPOSURE_MAX = 20
"""systemd's judgement of what a service could do, in tenths: 0 to 100."""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


def setting(text: str, name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
    return found


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("nilometer")
    text = UNIT.read_text(encoding="utf-8")
    assert INSTALLED in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace(INSTALLED, str(program)), encoding="utf-8")  # it must exist
    done = run("systemd-analyze", "verify", "--man=no", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_leaves_a_broker_little_to_do() -> None:
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", UNIT)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_units_command_exists() -> None:
    program, *words = shlex.split(setting(UNIT.read_text(encoding="utf-8"), "ExecStart"))
    assert program == INSTALLED
    parse_command(words)


@pytest.mark.parametrize("number", [0, 1])
def test_the_settings_of_the_page_are_in_the_folder_that_the_unit_makes(number: int) -> None:
    found = code_blocks("how-to/systemd.md", "properties")
    config = BrokerConfig(parse_properties(found[number], "systemd.md"))
    state = setting(UNIT.read_text(encoding="utf-8"), "StateDirectory")
    folders = (f"/var/lib/{state.replace('%i', str(config.node_id))}", "/var/lib/nilometer/logs")
    assert config.log_dirs == (folders[number],)


def test_a_linter_accepts_the_containerfile() -> None:
    done = run(Path(sys.executable).with_name("hadolint"), "--no-color", CONTAINERFILE)
    assert done.returncode == 0, done.stdout


def test_the_containers_command_exists() -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8")
    entry, command = (
        re.findall(rf"^{name} (\[.*\])$", text, re.MULTILINE)[0] for name in ("ENTRYPOINT", "CMD")
    )
    program, *words = [word.strip(' "') for part in (entry, command) for word in part.strip("[]").split(",")]
    assert program == "nilometer"
    parse_command(words)
