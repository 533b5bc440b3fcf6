"""What every coordination store keeps, rule by rule (the names are those of `store.py`).

Members are real processes: they are killed, stopped and started again.
"""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import Awaitable, Callable

from support.coordination.cluster import Cluster, Refused


def scenario(body: Callable[[Cluster], Awaitable[None]]) -> Callable[[Cluster], None]:
    @functools.wraps(body)
    def test(cluster: Cluster) -> None:
        cluster.run(body)

    del test.__wrapped__  # pytest would take the coroutine for the test
    return test


# ---- entries


@scenario
async def test_one_winner__three_contenders_for_every_number(cluster: Cluster) -> None:
    members = [await cluster.start(id) for id in (1, 2, 3)]
    wins = await asyncio.gather(*(m.call("append_next", f"m{i}", 40) for i, m in enumerate(members)))
    assert sorted(number for won in wins for number in won) == list(range(120))
    read = [await member.call("read", 0, 1000) for member in members]
    assert read[0] == read[1] == read[2]
    for i, won in enumerate(wins):
        assert [data for number, data in read[0] if number in won] == [f"m{i}-{k}" for k in range(40)]


@scenario
async def test_one_winner__a_taken_number_stays_as_it_is(cluster: Cluster) -> None:
    a, b = await cluster.start(1), await cluster.start(2)
    assert await a.call("append", 0, "first") is True
    assert await b.call("append", 0, "second") is False
    assert await a.call("append", 0, "first") is False
    assert await b.call("read", 0, 10) == [[0, "first"]]


@scenario
async def test_no_gaps__a_number_beyond_the_next_is_refused(cluster: Cluster) -> None:
    a, b = await cluster.start(1), await cluster.start(2)
    assert await a.call("append", 1, "gap") is False
    assert await a.call("append", 0, "zero") is True
    assert await b.call("append", 2, "gap") is False
    assert await b.call("append", 1, "one") is True
    assert await a.call("read", 0, 10) == [[0, "zero"], [1, "one"]]
    assert await a.call("read", 0, 1) == [[0, "zero"]]
    assert await a.call("read", 2, 10) == []


@scenario
async def test_sync_shows_all__also_at_another_member(cluster: Cluster) -> None:
    a, b = await cluster.start(1), await cluster.start(2)
    for number in range(20):
        assert await a.call("append", number, f"a-{number}") is True
        await b.call("sync")
        assert await b.call("read", number, 10) == [[number, f"a-{number}"]]


@scenario
async def test_retired_refused__a_stale_append_below_a_snapshot(cluster: Cluster) -> None:
    a, b = await cluster.start(1), await cluster.start(2)
    await a.call("append_next", "a", 10)
    assert await b.call("write_snapshot", 6, base64.b64encode(b"state at 6").decode()) is True
    for member in (a, b, await cluster.start(3)):
        for number in (0, 5, 6, 9):
            assert await member.call("append", number, "stale") is False
        refused = await member.refusal("read", 5, 10)
        assert (refused.kind, refused.number) == ("EntriesRetired", 6)
        assert await member.call("read", 6, 100) == [[n, f"a-{n}"] for n in range(6, 10)]
        assert await member.call("snapshot") == [6, base64.b64encode(b"state at 6").decode()]
    assert await a.call("append", 10, "next") is True
    assert await b.call("read", 10, 100) == [[10, "next"]]


@scenario
async def test_snapshots_only_move_forward(cluster: Cluster) -> None:
    a, b = await cluster.start(1), await cluster.start(2)
    assert await a.call("snapshot") is None
    await a.call("append_next", "a", 5)
    data = base64.b64encode(b"s").decode()
    assert (await a.refusal("write_snapshot", 6, data)).kind == "ValueError"
    assert await a.call("write_snapshot", 4, data) is True
    assert await b.call("write_snapshot", 3, data) is False
    assert await b.call("write_snapshot", 4, data) is False
    assert await b.call("write_snapshot", 5, data) is True
    assert await a.call("read", 5, 10) == []
    assert await a.call("append", 5, "on") is True


@scenario
async def test_a_late_joiner_finds_everything(cluster: Cluster) -> None:
    a = await cluster.start(1)
    await a.call("append_next", "a", 60)
    large = base64.b64encode(bytes(range(256)) * 10_000).decode()  # larger than any one entry may be
    assert await a.call("write_snapshot", 50, large) is True
    late = await cluster.start()
    number, data = await late.call("snapshot")
    assert (number, data) == (50, large)
    assert await late.call("read", number, 100) == [[n, f"a-{n}"] for n in range(50, 60)]


@scenario
async def test_appends_and_snapshots_at_once_leave_one_sequence(cluster: Cluster) -> None:
    writers = [await cluster.start(id) for id in (1, 2)]
    keeper = await cluster.start(3)
    writing = [member.start("append_next", f"w{i}", 40) for i, member in enumerate(writers)]
    taken = 0
    following = 0
    seen = -1
    entries: dict[int, str] = {}
    while not all(write.done() for write in writing):
        seen = await keeper.call("wait_changed", seen) if following < 80 else seen
        for number, data in await keeper.call("read", following, 1000):
            entries[number] = data
            following = number + 1
        if following > taken:
            assert await keeper.call("write_snapshot", following, "") is True
            taken = following
    entries |= dict(await keeper.call("read", following, 1000))
    wins = [await write for write in writing]
    assert sorted(entries) == list(range(80)) == sorted(wins[0] + wins[1])
    for i, won in enumerate(wins):
        assert [entries[number] for number in won] == [f"w{i}-{k}" for k in range(40)]


@scenario
async def test_an_entry_too_large_is_refused(cluster: Cluster) -> None:
    a = await cluster.start(1)
    refused = await a.refusal("append_of_size", 0, 900_001)
    assert refused.kind == "EntryTooLarge"
    assert "900,001 bytes exceeds the limit of 900,000" in refused.message
    assert await a.call("append_of_size", 0, 900_000) is True
    assert len((await a.call("read", 0, 1))[0][1]) == 900_000


# ---- sessions


@scenario
async def test_one_live_id__a_duplicate_is_refused(cluster: Cluster) -> None:
    await cluster.start(1)
    second = await cluster.start()
    refused = await second.refusal("register", 1, "another")
    assert refused.kind == "BrokerIdInUse"
    assert "broker id 1 is in use" in refused.message
    assert [s[0] for s in await second.call("sessions")] == [1]
    await second.call("register", 2, "mine")
    assert [(s[0], s[2]) for s in await second.call("sessions")] == [(1, "payload of 1"), (2, "mine")]


@scenario
async def test_dies_with_owner__killed(cluster: Cluster) -> None:
    a, b = await cluster.start(1), await cluster.start(2)
    assert await a.call("claim") is True
    assert (await b.until("controller", lambda c: c is not None))[0] == 1
    await a.kill()
    await b.until("sessions", lambda live: [s[0] for s in live] == [2])
    await b.until("controller", lambda c: c is None)
    assert await b.call("claim") is True


@scenario
async def test_dies_with_owner__closed(cluster: Cluster) -> None:
    a, b = await cluster.start(1), await cluster.start(2)
    await a.call("claim")
    await a.call("close")
    assert [s[0] for s in await b.call("sessions")] == [2]
    assert await b.call("controller") is None
    again = await cluster.start(1)
    assert [s[0] for s in await again.call("sessions")] == [1, 2]


@scenario
async def test_dies_with_owner__hung_then_back(cluster: Cluster) -> None:
    """LOSS_IS_LEARNT too: it comes back, is notified, is refused, and starts a new incarnation."""
    a, b = await cluster.start(1), await cluster.start(2)
    assert await a.call("claim") is True
    before = (await a.call("sessions"))[0][1]
    a.stop()
    await b.until("sessions", lambda live: [s[0] for s in live] == [2])
    assert await b.call("claim") is True
    assert await b.call("append", 0, "of the successor") is True
    a.go_on()
    late = await a.refusal("append", 1, "of the deposed")
    assert late.kind == "SessionLost"
    assert await a.call("wait_lost")
    assert await a.call("is_live") is False
    assert (await a.refusal("claim")).kind == "SessionLost"
    assert (await a.call("controller"))[0] == 2
    assert await a.call("register", 1, "again") != before
    assert [s[0] for s in await b.until("sessions", lambda live: len(live) == 2)] == [1, 2]
    assert await a.call("claim") is False
    assert await a.call("append", 1, "of the new incarnation") is True


@scenario
async def test_fresh_incarnation__expiry_racing_a_new_one(cluster: Cluster) -> None:
    """All watchers end the old incarnation while the new one begins: the new one must not be ended with
    it."""
    watchers = [await cluster.start(id) for id in (2, 3)]
    incarnations: list[int] = []
    for _ in range(3):
        a = await cluster.start(1)
        live = await watchers[0].until("sessions", lambda live: [s[0] for s in live] == [1, 2, 3])
        incarnations.append(live[0][1])
        await a.kill()
    a = await cluster.start()
    incarnations.append(await a.call("register", 1, "last"))
    assert len(set(incarnations)) == 4
    for watcher in watchers:
        live = await watcher.until("sessions", lambda live: [s[0] for s in live] == [1, 2, 3])
        assert live[0][1] == incarnations[-1]
    assert await a.call("append", 0, "alive") is True


@scenario
async def test_one_controller__claims_race(cluster: Cluster) -> None:
    members = [await cluster.start(id) for id in (1, 2, 3)]
    for _ in range(5):
        claims = await asyncio.gather(*(member.call("claim") for member in members))
        assert sorted(claims) == [False, False, True]
        winner = claims.index(True)
        for member in members:
            assert (await member.until("controller", lambda c: c is not None))[0] == winner + 1
        assert await members[winner].call("claim") is True  # still
        await members[winner].call("resign")
        for member in members:
            await member.until("controller", lambda c: c is None)


@scenario
async def test_one_controller__only_a_session_may_claim(cluster: Cluster) -> None:
    tool = await cluster.start()
    assert (await tool.refusal("claim")).kind == "ValueError"
    assert await tool.call("controller") is None


@scenario
async def test_all_killed_at_once_come_back(cluster: Cluster) -> None:
    members = [await cluster.start(id) for id in (1, 2, 3)]
    await members[0].call("claim")
    await members[1].call("append_next", "a", 5)
    await asyncio.gather(*(member.kill() for member in members))
    again = await asyncio.gather(*(cluster.start(id) for id in (1, 2, 3)))
    assert await again[2].call("read", 0, 10) == [[n, f"a-{n}"] for n in range(5)]
    live = await again[0].until("sessions", lambda live: len(live) == 3)
    assert [s[0] for s in live] == [1, 2, 3]
    await again[0].until("controller", lambda c: c is None)
    assert sorted(await asyncio.gather(*(member.call("claim") for member in again))) == [False, False, True]


# ---- the secret


@scenario
async def test_secret_one_winner__contenders_for_the_first_and_for_the_next(cluster: Cluster) -> None:
    members = [await cluster.start(id) for id in (1, 2, 3)]
    assert [await member.call("secret") for member in members] == [None, None, None]
    for number in range(3):
        told = await asyncio.gather(
            *(member.call("put_secret", number, f"{number} of {i}") for i, member in enumerate(members))
        )
        assert sorted(told) == [False, False, True]
        for member in (*members, await cluster.start()):
            assert await member.call("secret") == [number, f"{number} of {told.index(True)}"]


@scenario
async def test_secret_one_winner__a_number_that_does_not_follow_is_refused(cluster: Cluster) -> None:
    member = await cluster.start(1)
    assert await member.call("put_secret", 1, "gap") is False
    assert await member.call("secret") is None
    assert await member.call("put_secret", 0, "first") is True
    for number in (0, 2):
        assert await member.call("put_secret", number, "refused") is False
    assert await member.call("secret") == [0, "first"]


@scenario
async def test_secret_apart__it_outlives_its_writers_and_is_no_entry(cluster: Cluster) -> None:
    members = [await cluster.start(id) for id in (1, 2)]
    assert await members[0].call("append", 0, "entry") is True
    assert await members[0].call("put_secret", 0, "for members") is True
    assert await members[0].call("write_snapshot", 1, base64.b64encode(b"state").decode()) is True
    await asyncio.gather(*(member.kill() for member in members))
    again = await cluster.start()
    assert await again.call("secret") == [0, "for members"]
    assert await again.call("put_secret", 1, "by a tool without a session") is True
    assert await again.call("read", 1, 10) == []


# ---- the signal


@scenario
async def test_nothing_missed__followers_see_every_entry(cluster: Cluster) -> None:
    followers = [await cluster.start(), await cluster.start(1)]
    following = [follower.start("follow", 0, 90) for follower in followers]
    writers = [await cluster.start(id) for id in (2, 3, 4)]
    await asyncio.gather(*(w.call("append_next", f"w{i}", 30) for i, w in enumerate(writers)))
    async with asyncio.timeout(20):
        seen = [await each for each in following]
    assert [number for number, _ in seen[0]] == list(range(90))
    assert seen[0] == seen[1]


@scenario
async def test_nothing_missed__every_kind_of_change_wakes(cluster: Cluster) -> None:
    watcher, actor = await cluster.start(1), await cluster.start()

    async def wakes(*call: object) -> None:
        seen = await watcher.call("wait_changed", -1)
        waiting = watcher.start("wait_changed", seen)
        await actor.call(*call)  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            assert await waiting != seen

    await wakes("register", 2, "two")
    await wakes("claim")
    await wakes("append", 0, "zero")
    await wakes("write_snapshot", 1, "")
    await wakes("append", 1, "one")
    await wakes("resign")
    await wakes("close")


# ---- opening


@scenario
async def test_members_agree_on_the_cluster_id(cluster: Cluster) -> None:
    members = await asyncio.gather(*(cluster.start(opened=False) for _ in range(4)))
    ids = await asyncio.gather(*(member.call("open") for member in members))
    assert len(set(ids)) == 1
    assert len(ids[0]) == 22
    same = await cluster.start(opened=False, cluster_id=ids[0])
    assert await same.call("open") == ids[0]
    stranger = await cluster.start(opened=False, cluster_id="another-cluster")
    refused = await stranger.refusal("open")
    assert refused.kind == "StoreRefused"
    assert ids[0] in refused.message
    assert "another-cluster" in refused.message


@scenario
async def test_a_closed_store_says_so(cluster: Cluster) -> None:
    member = await cluster.start(1)
    seen = await member.call("wait_changed", -1)
    waiting = member.start("wait_changed", seen)
    await member.call("close")
    try:
        while True:  # changes may have come first
            waiting = member.start("wait_changed", await waiting)
    except Refused as refused:
        assert refused.kind == "StoreUnavailable"
    assert (await member.refusal("read", 0, 1)).kind == "StoreUnavailable"
    assert (await member.refusal("append", 0, "x")).kind == "StoreUnavailable"
