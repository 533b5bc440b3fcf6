"""When the oldest garbage is collected."""

from __future__ import annotations

import asyncio
import gc

import pytest

from nilometer.runtime import event_loop
from nilometer.runtime.event_loop import GARBAGE_CHECKS_MAX, collect_old_garbage


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each wait and each collection, in their order; a collection is due until there was one."""
    seen: list[str] = []

    async def sleep(_: float) -> None:
        seen.append("wait")
        if len(seen) > 100:
            raise asyncio.CancelledError

    monkeypatch.setattr(event_loop.asyncio, "sleep", sleep)
    monkeypatch.setattr(
        gc, "get_count", lambda: (0, 0, 0 if "collect" in seen else event_loop.OLD_COLLECTIONS)
    )
    monkeypatch.setattr(gc, "collect", lambda: seen.append("collect"))
    return seen


def run_to_its_end(is_busy: list[bool], seen: list[str]) -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(
            collect_old_garbage(lambda: is_busy.pop() if is_busy else False, lambda: seen.append("noted"))
        )


def test_garbage_is_collected_once_no_request_is_under_way(collections: list[str]) -> None:
    run_to_its_end([True] * 3, collections)
    assert collections[:6] == ["wait"] * 4 + ["collect", "noted"]
    assert collections.count("collect") == 1, "it is not due any more"


def test_requests_without_end_do_not_put_it_off_for_ever(collections: list[str]) -> None:
    run_to_its_end([True] * 90, collections)
    assert collections.index("collect") == GARBAGE_CHECKS_MAX + 1
