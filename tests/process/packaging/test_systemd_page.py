"""The commands of the page about systemd, run word for word on a scratch copy of this machine.

Two things are not done as on the page: the program in /opt is a link to the one that is tested, since no
index of packages is reached from there; and systemd is not running, so that the unit is enabled only, and its
command started by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.documentation.code_blocks import DOCS, code_blocks
from support.documentation.shell_samples import shell_blocks
from support.scratch_machine import needs_scratch_machine, run_on_scratch_machine

ROOT = DOCS.parent
PAGE = DOCS / "how-to" / "systemd.md"
LINK = f"mkdir -p /opt/nilometer/bin; ln -s {Path(sys.executable).with_name('nilometer')} /opt/nilometer/bin/"
INSTEAD = {
    "python3 -m venv /opt/nilometer": LINK,
    "/opt/nilometer/bin/pip install .": "",
    "systemctl enable --now nilometer@1": "systemctl enable nilometer@1",
    "journalctl -u nilometer@1 --follow": "",
}
SERVED = """
$(sed -n 's/^ExecStart=//p' /etc/systemd/system/nilometer@.service | sed 's/%i/1/') > /tmp/broker.out 2>&1 &
broker=$!
tries=0
until STATUS; do
  kill -0 $broker && [ $((tries += 1)) -lt 300 ] || { cat /tmp/broker.out; exit 1; }
done
kill $broker
wait $broker
stat -c '%A %G %n' /etc/nilometer/1.properties
getent passwd nilometer
ls -l /etc/systemd/system/multi-user.target.wants/
"""


def commands() -> tuple[list[str], str]:
    """Return the commands of the page up to the first start, and the one that shows whether it serves."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## A container")[0]
    *install, status = [line.strip() for block in shell_blocks(text) for line in block.splitlines()]
    return [INSTEAD.get(line, line) for line in install], status


@needs_scratch_machine
def test_the_page_installs_a_broker_that_serves(tmp_path: Path) -> None:
    install, status = commands()
    assert all(line in PAGE.read_text(encoding="utf-8") for line in INSTEAD)
    settings = code_blocks("how-to/systemd.md", "properties")[0]
    write = "cat > 1.properties <<'END'\n" + re.sub(r"^ +", "", settings, flags=re.MULTILINE) + "END"
    script = "\n".join((write, *install, SERVED.replace("STATUS", status)))
    printed = run_on_scratch_machine(tmp_path, ROOT, script)
    assert "is healthy" in printed
    assert "-rw-r----- nilometer /etc/nilometer/1.properties" in printed
    assert "nilometer@1.service -> /etc/systemd/system/nilometer@.service" in printed
    assert not Path("/opt/nilometer/bin/nilometer").is_symlink()
