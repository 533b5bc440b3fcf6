"""A coordinator that loads its log does not miss what the cluster decides meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker import coordinator_shell as shells
from nilometer.broker.coordinator_shell import CoordinatorShell, ShellState
from nilometer.broker.tasks import Tasks
from nilometer.coordinators import Effects

CLOCK = SimpleNamespace(monotonic_ms=lambda: 0, monotonic_us=lambda: 0, wall_ms=lambda: 0)


class Shard:
    def __init__(self) -> None:
        self.images: list[object] = []

    def on_loaded(self, *_: int) -> Generator[int, None, Effects[Any, Any, Any]]:
        yield 1
        return Effects()

    def on_image(self, image: object, *_: int) -> Effects[Any, Any, Any]:
        self.images.append(image)
        return Effects()

    def next_deadline_ms(self) -> None:
        return None


def test_the_newest_image_that_came_while_loading_is_seen_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[object]:
        may_end = asyncio.Event()

        async def nothing(*_: object) -> AsyncIterator[list[object]]:
            await may_end.wait()
            yield []

        monkeypatch.setattr(shells, "read_records", nothing)
        shard = Shard()
        log = SimpleNamespace(log_start_offset=0, log_end_offset=0)
        partition = SimpleNamespace(leader_epoch=1, log=log, replica=None, hold_until_committed=None)
        kind = SimpleNamespace(make_shard=lambda: shard, name="test")
        shell = CoordinatorShell[Any, Any, Any, Any](
            cast(Any, partition),
            cast(Any, SimpleNamespace(clock=CLOCK)),
            Tasks(),
            cast(Any, kind),
            lambda _: None,
        )
        shell.load()
        for image in ("first", "second"):
            await asyncio.sleep(0)
            shell.on_image(cast(Any, image))
        assert not shard.images
        may_end.set()
        async with asyncio.timeout(60):
            while shell.state is not ShellState.ACTIVE or not shard.images:  # noqa: ASYNC110
                await asyncio.sleep(0)
        return shard.images

    assert asyncio.run(scenario()) == ["second"]
