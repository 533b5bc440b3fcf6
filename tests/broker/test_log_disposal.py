"""Removing files that were renamed to ``.deleted``."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from nilometer.broker.replicas.log_disposal import LogDisposal
from nilometer.broker.tasks import Tasks
from nilometer.runtime import Runtime
from nilometer.runtime.clock import SystemClock
from nilometer.runtime.entropy import SeededEntropy
from nilometer.runtime.system_disk import SystemDisk


class RacedDisk(SystemDisk):
    """Another removal of the same file comes in between whenever it can."""

    def exists(self, path: str) -> bool:
        found = super().exists(path)
        Path(path).unlink(missing_ok=True)
        return found

    def remove(self, path: str) -> None:
        if path.endswith("error.deleted"):
            raise OSError(5, "Input/output error", path)
        super().remove(path)


@pytest.mark.parametrize(("names", "failed"), [(("0.log", "0.index"), 0), (("0.log", "error"), 1)])
def test_two_removals_of_one_name_do_not_fail_the_log_directory(
    tmp_path: Path, names: tuple[str, ...], failed: int
) -> None:
    """A segment, or a log, that was created again at the same offset is deleted under the same name."""
    failures: list[str] = []
    paths = [str(tmp_path / f"t-0/{name}.deleted") for name in names]

    async def twice() -> None:
        tasks = Tasks()
        runtime = Runtime(SystemClock(), RacedDisk(), cast(Any, None), SeededEntropy(random.Random(1)))
        logs: Any = type("Logs", (), {"is_offline": lambda _, directory: bool(failures)})()
        disposal = LogDisposal(
            runtime, logs, tasks, cast(Any, None), lambda directory, _error: failures.append(directory)
        )
        before = asyncio.all_tasks()
        disposal.remove_files(paths, 0)
        disposal.remove_files(paths, 0)
        await asyncio.gather(*(asyncio.all_tasks() - before))

    (tmp_path / "t-0").mkdir()
    for path in paths:
        Path(path).touch()
    asyncio.run(twice())
    assert failures[:1] == [str(tmp_path)] * failed
    assert [path for path in paths if Path(path).exists() and "error" not in path] == []
