"""`make docs` builds the site with every warning an error: a link that leads nowhere fails it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).resolve().parents[1]
_COMMAND = re.compile(r"^\t\$\(BIN\)/(sphinx-build .+) build/docs$", re.MULTILINE)
_LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]+)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site by the command of the Makefile, into another folder."""
    commands = _COMMAND.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert len(commands) == 1
    folder = tmp_path_factory.mktemp("site")
    program, *options = shlex.split(commands[0])
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *options, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file(), page
    assert 'url=docs/index.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = {
        (page.name, address)
        for page in site.rglob("*.html")
        for address in _LOADED.findall(page.read_text(encoding="utf-8"))
    }
    assert loaded == set()
