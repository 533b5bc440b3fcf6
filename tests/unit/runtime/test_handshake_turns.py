"""When TLS handshakes begin: one in each turn of the event loop, addresses one after another."""

from __future__ import annotations

import asyncio
from functools import partial

from nilometer.runtime.handshakes import Turns


async def _played(*addresses: str, later: str = "") -> str:
    """Return what begins, ``|`` for each turn of the event loop that others have meanwhile.

    ``later``: an address that comes when all others have begun.
    """
    loop, turns, seen = asyncio.get_running_loop(), Turns(), list[str]()
    waiting, done = list(addresses), asyncio.Event()

    def begin(address: str) -> None:
        waiting.remove(address)
        seen.append(address)
        if not waiting:
            done.set()

    def other() -> None:
        if waiting:
            seen.append("|")
            loop.call_soon(other)

    for address in addresses:
        turns.add(address, partial(begin, address))
    loop.call_soon(other)
    await done.wait()
    if later:
        done.clear()
        waiting.append(later)
        turns.add(later, partial(begin, later))
        await done.wait()
    return "".join(seen)


async def test_others_have_a_turn_after_each_handshake() -> None:
    assert await _played("a", "a", "a") == "a|a|a"


async def test_an_address_with_one_does_not_wait_for_all_of_another() -> None:
    assert (await _played("a", "a", "a", "a", "b", "c", "b")).replace("|", "") == "abcabaa"


async def test_one_that_comes_later_has_its_turn() -> None:
    assert await _played("a", later="b") == "ab"
