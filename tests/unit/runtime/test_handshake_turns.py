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


async def test_what_is_withdrawn_takes_no_turn_and_no_memory() -> None:
    loop, turns, seen = asyncio.get_running_loop(), Turns(), list[str]()
    begins = [partial(seen.append, f"{number}") for number in range(4)]
    for begin in begins:
        turns.add("a", begin)
    for begin in begins[:3]:
        turns.withdraw("a", begin)
    turns.withdraw("a", begins[0])  # again
    turns.withdraw("b", begins[3])  # of another address
    assert turns._waiting == {"a": {begins[3]: None}}
    done = asyncio.Event()
    loop.call_soon(done.set)  # the turn of the first one
    await done.wait()
    assert seen == ["3"]
    turns.add("a", begins[0])
    turns.withdraw("a", begins[0])
    await asyncio.sleep(0)  # a turn in which nothing waits
    assert turns._waiting == {}
    turns.add("a", begins[1])
    await asyncio.sleep(0)
    assert seen == ["3", "1"]
