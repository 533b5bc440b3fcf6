"""Removing files that were renamed to ``.deleted``."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.replicas.file_work import LogDisposal
from nilometer.broker.replicas.hosted_logs import LogConfigs
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy, SystemClock
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LONG_MAX, LogConfig


class RacedDisk(SystemDisk):
    """Each file is gone already when it is to be removed; one cannot be removed at all."""

    def remove(self, path: str) -> None:
        if path.endswith("error.deleted"):
            raise OSError(5, "Input/output error", path)
        Path(path).unlink(missing_ok=True)
        super().remove(path)


def disposal_on(disk: SystemDisk, tasks: Tasks, failures: list[str]) -> LogDisposal:
    runtime = Runtime(SystemClock(), disk, cast(Any, None), SeededEntropy(random.Random(1)))
    logs: Any = type("Logs", (), {"is_offline": lambda _, directory: bool(failures)})()
    return LogDisposal(
        runtime, logs, tasks, cast(Any, None), lambda directory, _error: failures.append(directory)
    )


async def until_timers_have_run(delay_s: float) -> None:
    """Timers run in the order of their times: those before ``delay_s`` have run, and so have their tasks."""
    before = asyncio.all_tasks()
    await asyncio.sleep(delay_s)
    await asyncio.gather(*(asyncio.all_tasks() - before))


def files(folder: Path, *names: str) -> list[str]:
    folder.mkdir()
    paths = [folder / f"{name}.deleted" for name in names]
    for path in paths:
        path.touch()
    return [str(path) for path in paths]


@pytest.mark.parametrize(("names", "failed"), [(("0.log", "0.index"), 0), (("0.log", "error"), 1)])
def test_a_file_that_is_gone_already_does_not_fail_the_log_directory(
    tmp_path: Path, names: tuple[str, ...], failed: int
) -> None:
    failures: list[str] = []
    paths = files(tmp_path / "t-0", *names)

    async def remove() -> None:
        disposal_on(RacedDisk(), Tasks(), failures).remove_files(paths, 0)
        await until_timers_have_run(0.01)

    asyncio.run(remove())
    assert failures == [str(tmp_path)] * failed
    assert [path for path in paths if Path(path).exists() and "error" not in path] == []


def test_a_name_that_is_deleted_again_keeps_its_file_for_the_whole_delay(tmp_path: Path) -> None:
    """Rounds of compaction delete the same base offset again and again: one removal waits, not all."""
    failures: list[str] = []
    again, once = files(tmp_path / "t-0", "0.log", "1.log")

    async def remove() -> None:
        disposal = disposal_on(SystemDisk(), Tasks(), failures)
        disposal.remove_files([again, once], 1)
        disposal.remove_files([again], 60_000)
        await until_timers_have_run(0.01)

    asyncio.run(remove())
    assert (Path(again).exists(), Path(once).exists(), failures) == (True, False, [])


def test_a_broker_that_stops_leaves_the_files_to_its_next_start(tmp_path: Path) -> None:
    paths = files(tmp_path / "t-0", "0.log")

    async def remove() -> None:
        tasks = Tasks()
        disposal_on(SystemDisk(), tasks, []).remove_files(paths, 1)
        await tasks.stop()
        await until_timers_have_run(0.01)

    asyncio.run(remove())
    assert Path(paths[0]).exists()


def test_the_delay_follows_the_brokers_settings_while_it_runs() -> None:
    key = "log.segment.delete.delay.ms"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:1",
        "log.dirs": "/l",
        "nilometer.coordination": "local:/c",
    }
    configs = LogConfigs(BrokerConfig({"node.id": "1", key: "7", **settings}))
    dynamic: dict[str, str] = {}
    image = cast(Any, SimpleNamespace(config=lambda _kind, _name: dynamic))
    assert configs.deletion_delay_ms(image) == 7
    dynamic[key] = "600000"
    configs.on_settings_changed()
    assert configs.deletion_delay_ms(image) == 600_000


@pytest.mark.parametrize(("limit_ms", "stays"), [(1, False), (LONG_MAX, True)])
def test_the_folder_of_a_deleted_log_stays_no_longer_than_the_broker_says(
    tmp_path: Path, limit_ms: int, stays: bool
) -> None:
    """Who creates topics chooses their settings, and sees nothing more of what it has deleted."""
    folder = tmp_path / "t-0-delete"
    folder.mkdir()
    log = SimpleNamespace(
        config=LogConfig(file_delete_delay_ms=LONG_MAX), producers=SimpleNamespace(producers={})
    )
    logs = SimpleNamespace(
        get=lambda _: log,
        directory_of=lambda _: str(tmp_path),
        delete=lambda _: str(folder),
        seconds={},
        is_offline=lambda _: False,
    )

    async def remove() -> None:
        tasks = Tasks()
        runtime = Runtime(SystemClock(), SystemDisk(), cast(Any, None), SeededEntropy(random.Random(1)))
        checkpoints = SimpleNamespace(request=lambda _: None)
        disposal = LogDisposal(runtime, cast(Any, logs), tasks, cast(Any, checkpoints), lambda *_: None)
        disposal.delete(TopicPartition("t", 0), limit_ms)
        await asyncio.wait(list(tasks._tasks), timeout=0.05 if stays else None)
        await tasks.stop()

    asyncio.run(remove())
    assert folder.exists() is stays
