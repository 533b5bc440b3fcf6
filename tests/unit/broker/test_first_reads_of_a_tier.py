"""The first read of a new leader: it compares no segment with the tier that the log has itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from nilometer.broker.tiering import remote_partition
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.log import Log
from nilometer.tier import lineage, plan
from nilometer.tier.chain import Chain
from nilometer.tier.format import Manifest, RemoteSegment
from nilometer.wire.record_batch import batches
from support.tier.former_partition import batch
from support.tier.led_log import CONFIG, LedLog

SEGMENTS, LOCAL_FROM = 8, 3
UNLIMITED = replace(CONFIG, local_retention_ms=-1, local_retention_bytes=-1)


class Leader(LedLog):
    """A new leader of a log with eight segments, all in the tier; the first three are only there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        former = LedLog(UNLIMITED)
        for offset in range(SEGMENTS):
            former.append(batch(offset, 1))
            former.log.roll_now(1)
        asyncio.run(former.tier())
        local = former.log.size - sum(one.size for one in list(former.log.segments)[:LOCAL_FROM])
        former.log.configure(replace(UNLIMITED, local_retention_bytes=local))
        while former.log.delete_old_segments(former.log.log_end_offset, self.now_ms):
            pass
        former.log.configure(UNLIMITED)
        super().__init__(log=former.log, store=former.store)
        self.leader_epoch = 1
        self.log.epochs.begin(1, SEGMENTS)
        assert self.log.local_start_offset == LOCAL_FROM
        self.compared = list[int]()
        crc_at = remote_partition.crc_at

        def noted(log: Log, offset: int) -> int | None:
            self.compared.append(offset)
            return crc_at(log, offset)

        monkeypatch.setattr(remote_partition, "crc_at", noted)

    async def offsets(self, offset: int) -> list[int]:
        records, _ = await self.reads.read(offset, 1, read_committed=False)
        return [header.base_offset for _, header in batches(records)]


def test_what_only_the_tier_has_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch)

    async def main() -> None:
        for offset in range(LOCAL_FROM):
            assert await leader.offsets(offset) == [offset]
        found = await leader.reads.offset_for_timestamp(0)
        assert found is not None and found.offset == 0
        assert leader.compared == []
        await leader.remote.run_round()
        assert leader.compared == 2 * list(range(LOCAL_FROM, SEGMENTS)), "its own first manifest, too"
        await leader.remote.run_round()
        assert len(leader.compared) == 2 * (SEGMENTS - LOCAL_FROM), "what was compared is not again"
        assert await leader.offsets(SEGMENTS - 1) == [SEGMENTS - 1]

    asyncio.run(main())


def test_what_the_log_has_is_not_read_from_the_tier_before_it_was_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = Leader(monkeypatch)

    async def main() -> None:
        with pytest.raises(OffsetOutOfRange):
            await leader.offsets(LOCAL_FROM)
        assert leader.compared == []

    asyncio.run(main())


def test_a_segment_that_began_before_those_of_the_log_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another leader had rolled its segments at other offsets."""
    leader = Leader(monkeypatch)

    async def main() -> None:
        chain = Chain(leader.store, leader.remote.folder, "another")
        last = await chain.read()
        assert last is not None
        joined = structs.replace(last.segments[LOCAL_FROM], base_offset=LOCAL_FROM - 1)
        joined = structs.replace(joined, epochs=((0, LOCAL_FROM - 1),))
        others = (*last.segments[: LOCAL_FROM - 1], joined, *last.segments[LOCAL_FROM + 1 :])
        assert await chain.append_at_rest(0, structs.replace(last, segments=others))
        assert await leader.offsets(0) == [0]
        assert leader.compared == [LOCAL_FROM]

    asyncio.run(main())


def test_a_leader_begins_where_an_earlier_one_has_said_once_all_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = Leader(monkeypatch)

    async def main() -> None:
        chain = Chain(leader.store, leader.remote.folder, "another")
        last = await chain.read()
        assert last is not None
        assert await chain.append_at_rest(0, structs.replace(last, log_start_offset=1))
        assert await leader.offsets(2) == [2]
        assert leader.log.log_start_offset == 0
        await leader.remote.run_round()
        assert leader.log.log_start_offset == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_search", [False, True], ids=["read", "search"])
def test_what_an_earlier_leader_gave_up_is_out_of_range_before_the_first_round(
    is_search: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed before it wrote the checkpoint of its log start offset."""
    leader = Leader(monkeypatch)

    async def main() -> None:
        chain = Chain(leader.store, leader.remote.folder, "earlier process")
        last = await chain.read()
        assert last is not None
        left = last.without(last.segments[:1], leader.now_ms)
        assert await chain.append_at_rest(0, structs.replace(left, log_start_offset=1))
        if is_search:
            found = await leader.reads.offset_for_timestamp(0)
            assert found is not None and found.offset == 1
        else:
            with pytest.raises(OffsetOutOfRange):
                await leader.offsets(0)
        assert leader.log.log_start_offset == 1

    asyncio.run(main())


@pytest.mark.parametrize("work", ["read", "search", "round"])
def test_what_is_first_asked_in_a_new_leader_epoch_compares_epochs_in_steps(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, steps, divergent = Leader(monkeypatch), list[int](), plan.divergent
    monkeypatch.setattr(lineage, "SEGMENTS_OF_A_LINE", 2)

    def noted(
        manifest: Manifest, log: plan.LogView, agreed: int = 0, until: int | None = None
    ) -> tuple[RemoteSegment, ...]:
        steps.append(sum(one.end_offset > agreed for one in manifest.segments[:until]))
        return divergent(manifest, log, agreed, until)

    async def main() -> None:
        await leader.remote.run_round()
        leader.leader_epoch = 2
        leader.log.epochs.begin(2, SEGMENTS)
        monkeypatch.setattr(plan, "divergent", noted)
        if work == "read":
            assert await leader.offsets(0) == [0]
        elif work == "search":
            assert await leader.reads.offset_for_timestamp(0) is not None
        else:
            await leader.remote.run_round()
        assert sum(steps) >= SEGMENTS and max(steps) == 2

    asyncio.run(main())


def test_several_reads_of_what_is_missing_read_the_chain_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins while the chain is read has it read again: what it misses may be written only then."""
    leader, count, read, begun = Leader(monkeypatch), 0, Chain.read, asyncio.Event()

    async def counted(self: Chain) -> Manifest | None:
        nonlocal count
        count += 1
        begun.set()
        await asyncio.sleep(0)
        return await read(self)

    async def main() -> None:
        await leader.remote.run_round()
        monkeypatch.setattr(Chain, "read", counted)
        missing = [asyncio.ensure_future(leader.offsets(SEGMENTS)) for _ in range(5)]
        await begun.wait()
        missing.append(asyncio.ensure_future(leader.offsets(SEGMENTS)))
        for failure in await asyncio.gather(*missing, return_exceptions=True):
            assert isinstance(failure, OffsetOutOfRange)
        assert count == 2

    asyncio.run(main())
