"""`nilometer completion`: what the scripts complete in bash, and what they ask for in zsh and fish."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Nilometer

PROGRAMS = Path(sys.executable).parent


def run(command: list[str], **more: str) -> str:
    environment = {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", **more}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_bash_completes_commands_and_options() -> None:
    script = """
        eval "$(nilometer completion bash)"
        words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _nilometer_completion nilometer; echo "${COMPREPLY[@]}"
        }
        words nilometer topi
        words nilometer topic of
        words nilometer topic offsets --par
    """
    assert run(["bash", "-c", script]).splitlines() == ["topic", "offsets", "--partition"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_what_they_ask_for(nilometer: Nilometer, shell: str) -> None:
    script = nilometer("completion", shell).out
    assert f"_NILOMETER_COMPLETE={shell}_complete" in script
    words = "nilometer topic of" if shell == "zsh" else "nilometer topic"
    asked = {"_NILOMETER_COMPLETE": f"{shell}_complete", "COMP_WORDS": words}
    current = "2" if shell == "zsh" else "of"
    assert "offsets" in run([str(PROGRAMS / "nilometer")], COMP_CWORD=current, **asked)
