"""The folder store under processes that die or stop in the middle of an append, at every one of its steps."""

from __future__ import annotations

import signal

from support.coordination.cluster import Cluster


async def _steps_of_an_append(cluster: Cluster) -> int:
    member = await cluster.start(9)
    number = len(await member.call("read", 0, 1000))
    assert await member.call("append_at_step", number, "whole", -1, signal.SIGKILL) is True
    steps = await member.call("steps")
    await member.call("close")
    assert {"open", "append", "sync", "link", "sync_directory", "remove"} <= set(steps)
    return len(steps)


def test_killed_at_any_step__no_process_waits_and_nothing_is_half_there(local: Cluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        survivor = await cluster.start(1)
        outcomes: set[bool] = set()
        for step in range(await _steps_of_an_append(cluster)):
            victim = await cluster.start(2)
            number = len(await victim.call("read", 0, 1000))
            victim.start("append_at_step", number, f"victim {step}", step, signal.SIGKILL).add_done_callback(
                lambda call: call.exception()
            )
            await victim.gone
            won = await survivor.call("append", number, f"survivor {step}")
            expected = f"survivor {step}" if won else f"victim {step}"
            assert await survivor.call("read", number, 10) == [[number, expected]]
            outcomes.add(won)
        assert outcomes == {True, False}, "some steps lie before the link, some behind it"
        late = await cluster.start(3)
        assert await late.call("read", 0, 1000) == await survivor.call("read", 0, 1000)

    local.run(scenario)


def test_stopped_at_any_step__the_late_append_wins_or_loses_but_never_both(local: Cluster) -> None:
    """The deposed controller: it stops before its append, others go on, it comes back and may even win."""

    async def scenario(cluster: Cluster) -> None:
        survivor = await cluster.start(1)
        steps = await _steps_of_an_append(cluster)
        victim = await cluster.start(2)
        outcomes: set[bool] = set()
        for step in range(steps):
            number = len(await victim.call("read", 0, 1000))
            call = victim.start("append_at_step", number, f"victim {step}", step, signal.SIGSTOP)
            await victim.wait_stopped()
            survived = await survivor.call("append", number, f"survivor {step}")
            victim.go_on()
            late = await call
            assert late is not survived, "exactly one of them holds the number"
            expected = f"victim {step}" if late else f"survivor {step}"
            for member in (survivor, victim):
                assert await member.call("read", number, 10) == [[number, expected]]
            outcomes.add(late)
        assert outcomes == {True, False}

    local.run(scenario)


def test_stopped_at_any_step__a_retired_folder_takes_no_late_entry(local: Cluster) -> None:
    """While the writer is stopped the sequence moves to another folder: its number stays refused."""

    async def scenario(cluster: Cluster) -> None:
        survivor = await cluster.start(1)
        steps = await _steps_of_an_append(cluster)
        for step in range(steps):
            victim = await cluster.start(step + 2)
            snapshot = await victim.call("snapshot")
            base = snapshot[0] if snapshot else 0
            number = base + len(await victim.call("read", base, 1000))
            call = victim.start("append_at_step", number, "late", step, signal.SIGSTOP)
            await victim.wait_stopped()
            won = await survivor.call("append", number, "in time")
            assert await survivor.call("append", number + 1, "next") is True
            assert await survivor.call("write_snapshot", number + 2, "") is True
            victim.go_on()
            try:
                late = await call
            except Exception as error:
                assert getattr(error, "kind", None) == "OutcomeUnknown"
                assert not won  # it stood, and is part of the snapshot
                late = True
            assert late is not won
            assert await victim.call("read", number + 2, 10) == []
            assert await victim.call("append", number, "later still") is False
            await victim.call("close")

    local.run(scenario)


def test_a_snapshot_writer_killed_at_any_step_leaves_one_sequence(local: Cluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        survivor = await cluster.start(1)
        assert await survivor.call("append", 0, "0") is True
        number = 1
        step = 0
        finished = False
        sealed = 0
        while not finished:
            assert await survivor.call("append", number, str(number)) is True
            victim = await cluster.start(2)
            call = victim.start("snapshot_at_step", number, step, signal.SIGKILL)
            try:
                finished = await call
            except ConnectionError:
                await victim.gone
            else:
                await victim.kill()
            assert (
                await survivor.call("read", number + 1, 1) == []
            )  # a client that meets a seal completes its work
            base = (await survivor.call("snapshot") or [0])[0]
            sealed += base == number
            expected = [[n, str(n)] for n in range(base, number + 1)]
            assert await survivor.call("read", base, 10_000) == expected
            late = await cluster.start()
            assert await late.call("read", base, 10_000) == expected
            await late.call("close")
            number += 1
            step += 1
        assert step > 15
        assert 0 < sealed < step, "some steps lie before the seal, some behind it"

    local.run(scenario)


def test_a_blocked_event_loop_loses_its_session(local: Cluster) -> None:
    """The process runs on and holds its lock: only the heartbeat tells."""

    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.start(1), await cluster.start(2)
        a.start("block", 2.5)
        live = a.start("is_live")
        await b.until("sessions", lambda sessions: [s[0] for s in sessions] == [2])
        assert await live is False, "the first question after the absence is answered by the disk"
        assert "session timeout" in await a.call("wait_lost")

    local.run(scenario)


def test_a_short_absence_is_forgiven(local: Cluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.start(1), await cluster.start(2)
        a.start("block", 0.6)  # more than half the timeout, less than all of it
        assert await a.call("is_live") is True
        assert [s[0] for s in await b.call("sessions")] == [1, 2]

    local.run(scenario)


def test_a_hung_process_still_holds_its_id(local: Cluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.start(1), await cluster.start(2)
        a.stop()
        await b.until("sessions", lambda sessions: [s[0] for s in sessions] == [2])
        again = await cluster.start()
        refused = await again.refusal("register", 1, "second")
        assert refused.kind == "BrokerIdInUse"
        assert f"process {a.pid}" in refused.message

    local.run(scenario)
