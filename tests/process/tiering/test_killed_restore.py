"""`nilometer tier restore` whose process is killed goes on when the same command is given again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.logs.stopped_brokers import EVENTS, broker_folder, opened
from support.tier.former_partition import former

KILLED_AT = """
import os, signal, sys
from nilometer.cli.main import run
from nilometer.runtime.object_store import FileObjectStore as Store

method, left = sys.argv[1], int(sys.argv[2])
work = getattr(Store, method)

async def dying(self, name, data):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return await work(self, name, data)

setattr(Store, method, dying)
run(sys.argv[3:])
"""


@pytest.mark.parametrize(("method", "calls"), [("put", 1), ("upload", 2), ("create", 0)])
def test_the_same_command_goes_on_after_a_kill_within_the_copy(
    method: str, calls: int, tmp_path: Path
) -> None:
    for name, data in former().store.bucket.objects.items():
        (tmp_path / "tier" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tier" / name).write_bytes(data)
    place = broker_folder(tmp_path / "broker")
    command = ["tier", "restore", "--from", (tmp_path / "tier").as_uri(), "--topic", "events"]
    command += ["--log-dirs", str(place), "--json"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AT, method, str(calls), *command], check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL
    again = subprocess.run(
        [sys.executable, "-m", "nilometer.cli", *command], check=False, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    (part,) = json.loads(again.stdout)["partitions"]
    assert (part["start"], part["end"], part["records"]) == (0, 18, 18)
    manager = opened(place)
    assert manager.logs[EVENTS].log_end_offset == 18
    manager.close({}, broker_epoch=17, wall_ms=1)
