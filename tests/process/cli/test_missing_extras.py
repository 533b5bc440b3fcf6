"""The base package has no Spark: commands that need it say what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.cli.main import EXTRAS

WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from nilometer.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("spark", "audit --log-dirs ."),
        ("spark", "spark packages"),
        ("spark", "spark submit job.py"),
        ("spark", "spark pipelines run --spec spec.yml"),
        ("spark", "pipeline run logs --topic t"),
        ("spark", "pipeline report logs --output ."),
        ("console", "console --port 0"),
        ("secure", "up --secure --detach"),
        ("postgres", "pipeline capture --dsn postgresql://localhost --table a.b"),
    ],
)
def test_a_command_says_which_extra_it_needs(extra: str, arguments: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yml").write_text("name: x\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(EXTRAS[extra]), *arguments.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert f"pip install 'nilometer[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
