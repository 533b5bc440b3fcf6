"""Sessions end when they should, are bounded in number, and close what they opened."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.console.web.login import (
    ADDRESSES_MAX,
    DELAY_MAX_S,
    FORGET_MS,
    IDLE_MS,
    LIFETIME_MS,
    SESSIONS_MAX,
    SESSIONS_OF_USER_MAX,
    WAITING_MAX,
    LoginAttempts,
    Sessions,
    TooManyAttempts,
    delay_s,
)
from support.console.sessions import Clock, Opened, Sleeps

# --- sessions


def test_a_session_is_found_by_its_token_until_it_ends() -> None:
    async def main() -> None:
        sessions, pages = Sessions(Clock()), Opened()
        token, other = await sessions.begin("alice", pages), await sessions.begin("bob", Opened())
        found = sessions.find(token)
        assert found is not None and (found.user, found.pages) == ("alice", pages)
        assert [sessions.find(one) for one in (None, "", f"{token}x", token[:-1])] == [None] * 4
        await sessions.end(token)
        await sessions.end(token)
        assert (sessions.find(token), pages.closed) == (None, 1)
        assert sessions.find(other) is not None

    asyncio.run(main())


def test_a_session_that_is_not_used_ends() -> None:
    async def main() -> None:
        clock = Clock()
        sessions, pages = Sessions(clock), Opened()
        token = await sessions.begin("alice", pages)
        session = sessions.find(token)
        assert session is not None
        clock.now_ms += IDLE_MS - 1
        with sessions.used(session):
            clock.now_ms += IDLE_MS + 1  # an open page
            assert sessions.find(token) is session
        clock.now_ms += IDLE_MS - 1
        assert sessions.find(token) is session
        clock.now_ms += 1
        assert sessions.find(token) is None
        await sessions.end_over()
        assert (len(sessions), pages.closed) == (0, 1)

    asyncio.run(main())


def test_a_session_ends_after_its_lifetime_however_much_it_is_used() -> None:
    async def main() -> None:
        clock = Clock()
        sessions, pages = Sessions(clock), Opened()
        token = await sessions.begin("alice", pages)
        session = sessions.find(token)
        assert session is not None
        with sessions.used(session):
            clock.now_ms += LIFETIME_MS - 1
            assert sessions.find(token) is session
            clock.now_ms += 1
            assert sessions.find(token) is None
            await sessions.end_over()
        assert pages.closed == 1, "its open pages end, too"

    asyncio.run(main())


def test_a_user_has_few_sessions_and_the_one_used_longest_ago_gives_way() -> None:
    async def main() -> None:
        clock = Clock()
        sessions = Sessions(clock)
        opened = [Opened() for _ in range(SESSIONS_OF_USER_MAX + 1)]
        tokens: list[str] = []
        for pages in opened[:-1]:
            clock.now_ms += 1
            tokens.append(await sessions.begin("alice", pages))
        first = sessions.find(tokens[0])
        assert first is not None
        clock.now_ms += 1
        with sessions.used(first):
            pass
        await sessions.begin("alice", opened[-1])
        assert [pages.closed for pages in opened] == [0, 1, *[0] * (SESSIONS_OF_USER_MAX - 1)]

    asyncio.run(main())


def test_the_number_of_sessions_is_bounded() -> None:
    async def main() -> None:
        clock = Clock()
        sessions = Sessions(clock)
        opened = [Opened() for _ in range(SESSIONS_MAX + 3)]
        for number, pages in enumerate(opened):
            clock.now_ms += 1
            await sessions.begin(f"user{number}", pages)
        assert len(sessions) == SESSIONS_MAX
        assert [pages.closed for pages in opened] == [1] * 3 + [0] * SESSIONS_MAX
        await sessions.close()
        assert [pages.closed for pages in opened] == [1] * len(opened)

    asyncio.run(main())


# --- attempts


async def fail(attempts: LoginAttempts, address: str, *, has_failed: bool | None = True) -> None:
    async with attempts.attempt(address) as attempt:
        attempt.has_failed = has_failed


def test_each_failure_doubles_the_delay() -> None:
    assert [delay_s(failures) for failures in (1, 2, 3, 5, 6, 10_000)] == [
        1,
        2,
        4,
        16,
        DELAY_MAX_S,
        DELAY_MAX_S,
    ]


def test_failures_of_an_address_delay_its_answers_until_a_login_succeeds() -> None:
    async def main() -> None:
        clock, sleeps = Clock(), Sleeps()
        attempts = LoginAttempts(clock, sleeps.sleep)
        await fail(attempts, "192.0.2.1")
        await fail(attempts, "192.0.2.1")
        await fail(attempts, "192.0.2.9")
        await fail(attempts, "192.0.2.1", has_failed=None)  # no broker responded
        await fail(attempts, "192.0.2.1")
        assert sleeps.seconds == [1, 2, 1, 4]
        await fail(attempts, "192.0.2.1", has_failed=False)
        await fail(attempts, "192.0.2.1")
        assert sleeps.seconds[4:] == [1]
        clock.now_ms += FORGET_MS
        await fail(attempts, "192.0.2.1")
        assert sleeps.seconds[5:] == [1]

    asyncio.run(main())


def test_a_network_of_ipv6_is_one_address() -> None:
    async def main() -> None:
        sleeps = Sleeps()
        attempts = LoginAttempts(Clock(), sleeps.sleep)
        for address in (
            "2001:db8::1",
            "2001:db8::2:3%eth0",
            "2001:db8:0:1::1",
            "::ffff:192.0.2.1",
            "192.0.2.1",
        ):
            await fail(attempts, address)
        assert sleeps.seconds == [1, 2, 1, 1, 2]

    asyncio.run(main())


def test_an_address_makes_one_attempt_at_a_time_and_few_wait() -> None:
    async def main() -> None:
        attempts = LoginAttempts(Clock(), Sleeps().sleep)
        under_way = most = 0
        go_on = asyncio.Event()

        async def one() -> None:
            nonlocal under_way, most
            async with attempts.attempt("192.0.2.1"):
                under_way += 1
                most = max(most, under_way)
                await go_on.wait()
                under_way -= 1

        waiting = [asyncio.ensure_future(one()) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyAttempts):
            await one()
        async with attempts.attempt("192.0.2.2"):
            pass  # others do not wait for it
        go_on.set()
        await asyncio.gather(*waiting)
        assert most == 1
        await one()

    asyncio.run(main())


def test_the_number_of_addresses_that_are_remembered_is_bounded() -> None:
    async def main() -> None:
        sleeps = Sleeps()
        attempts = LoginAttempts(Clock(), sleeps.sleep)
        for number in range(ADDRESSES_MAX + 1):
            await fail(attempts, f"10.0.{number // 256}.{number % 256}")
        await fail(attempts, "10.0.0.1")
        assert sleeps.seconds[-1] == 2, "it is remembered"
        await fail(attempts, "10.0.0.0")
        assert sleeps.seconds[-1] == 1, "the oldest is forgotten"

    asyncio.run(main())
