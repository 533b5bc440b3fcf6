"""A watch returns when a process that holds a lock in its folder is killed, and the lock is free then.

So brokers notice the death of another at once. They do not poll: the watch is given an hour.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nilometer.runtime.folder_watch import NotifiedWatch
from nilometer.runtime.system_disk import SystemDisk

NEVER_MS = 3_600_000
LIMIT_S = 20.0
"""After which a wait counts as one that does not end."""
_HOLDER = """
import sys, time
from nilometer.runtime.system_disk import SystemDisk
lock = SystemDisk().lock(sys.argv[1])
print("locked", flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_lock_is_free_when_the_watch_returns(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    path = str(tmp_path / "broker.lock")
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, path], stdout=subprocess.PIPE, text=True)

    async def scenario() -> None:
        disk = SystemDisk()
        watch = NotifiedWatch([str(tmp_path)])
        assert disk.is_locked(path)
        waiting = asyncio.ensure_future(watch.wait(NEVER_MS))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        holder.kill()
        async with asyncio.timeout(LIMIT_S):
            await waiting
        assert not disk.is_locked(path)
        watch.close()

    with holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            run(scenario())
        finally:
            holder.kill()
