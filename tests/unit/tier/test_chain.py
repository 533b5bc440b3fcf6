"""Who writes the next manifest, and where the chain ends: with two leaders, lost answers and slow readers."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec import structs

from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.object_store import Bucket, VirtualObjectStore
from nilometer.steps import at_once
from nilometer.tier.chain import MANIFESTS_KEPT, Chain, Contested, Deposed, ManifestsGone
from nilometer.tier.format import SEGMENTS_OF_A_LINE, DamagedObject, Manifest, encode_manifest, manifest_name
from support.tier.remote_segments import FOLDER, manifest, segment


class ScriptedStore(VirtualObjectStore):
    """The virtual store; ``before`` and ``after`` map a method and the end of a name to what happens then."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket, random.Random(1))
        self.before: dict[tuple[str, str], Exception] = {}
        self.after: dict[tuple[str, str], Exception] = {}
        self.requests: list[tuple[str, str]] = []
        self.attempted: dict[str, bytes] = {}
        """The last bytes with which each object was to be created, by the end of its name."""

    async def create(self, name: str, data: bytes) -> bool:
        self.attempted[name.removeprefix(FOLDER)] = data
        self._meet("create", name, self.before)
        made = await super().create(name, data)
        self._meet("create", name, self.after)
        return made

    async def put(self, name: str, data: bytes) -> None:
        self._meet("put", name, self.before)
        await super().put(name, data)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.requests.append(("get", name.removeprefix(FOLDER)))
        self._meet("get", name, self.before)
        return await super().get(name, start, length)

    async def remove(self, name: str) -> None:
        self._meet("remove", name, self.before)
        await super().remove(name)

    def _meet(self, method: str, name: str, errors: dict[tuple[str, str], Exception]) -> None:
        error = errors.pop((method, name.removeprefix(FOLDER)), None)
        if error is not None:
            raise error


LOST = ObjectStoreError("no answer")


def always(_last: Manifest) -> bool:
    return True


def chain_on(bucket: Bucket, writer: str = "a") -> tuple[Chain, ScriptedStore]:
    store = ScriptedStore(bucket)
    return Chain(store, FOLDER, writer), store


async def write(chain: Chain, epoch: int, count: int = 1) -> None:
    """Append ``count`` manifests, each with one more segment."""
    for _ in range(count):
        last = chain.last or manifest()
        one = segment(last.end_offset, last.end_offset + 9)
        assert await chain.append(epoch, at_once(last.adding(one, 0)))


def bases(last: Manifest | None) -> list[int]:
    assert last is not None
    return [one.base_offset for one in last.segments]


async def test_another_chain_of_a_writer_goes_on_with_its_times() -> None:
    """A replica that was moved away and back has another one; the clock may have been set back meanwhile."""
    bucket = Bucket()
    chain, _ = chain_on(bucket)
    assert await chain.append(1, structs.replace(manifest(), written_ms=5_000))
    again, _ = chain_on(bucket)
    last = await again.read()
    assert last is not None
    assert await again.append(1, structs.replace(last, written_ms=4_000))
    assert again.last is not None and again.last.written_ms == 5_001


@pytest.mark.parametrize("request_of", [("put", "head"), ("remove", manifest_name(0))])
async def test_what_fails_after_the_last_manifest_is_done_later(request_of: tuple[str, str]) -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    await write(chain, 0, MANIFESTS_KEPT + 1)
    store.before[request_of] = LOST
    await write(chain, 0)
    assert (FOLDER + manifest_name(0) in bucket.objects, chain.is_pruned) == (True, False)
    await chain.prune()
    assert len(bucket.objects) == 1 + MANIFESTS_KEPT + 1  # with the head
    assert chain.is_pruned
    store.before["put", "head"] = AssertionError("nothing is left to do")
    await chain.prune()


async def test_what_a_later_leader_has_written_is_pruned_by_that_one() -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    store.before["put", "head"] = LOST
    await chain.read()
    await write(chain, 0)
    assert not chain.is_pruned
    later, _ = chain_on(bucket, "later")
    await later.read()
    await write(later, 1)
    await chain.read()
    store.before["put", "head"] = AssertionError("another one's")
    await chain.prune()


async def test_another_process_reads_what_was_written() -> None:
    bucket = Bucket()
    chain, _ = chain_on(bucket)
    assert await chain.read() is None and chain.is_read
    await write(chain, 3, 2)
    other, _ = chain_on(bucket)
    assert await other.read() == chain.last
    await write(chain, 3)
    assert bases(await other.read()) == [0, 10, 20]


async def test_a_reader_that_knows_the_end_asks_for_two_objects() -> None:
    bucket = Bucket()
    chain, _ = chain_on(bucket)
    await chain.read()
    await write(chain, 0, 40)
    other, store = chain_on(bucket)
    await other.read()
    store.requests.clear()
    await other.read()
    assert store.requests == [("get", manifest_name(40)), ("get", manifest_name(39))]


async def test_a_leader_goes_on_from_what_an_earlier_one_wrote_meanwhile() -> None:
    bucket = Bucket()
    old, new = chain_on(bucket, "old")[0], chain_on(bucket, "new")[0]
    await old.read()
    await new.read()
    await write(old, 1)
    assert not await new.append(2, manifest(segment(0, 99)))
    assert new.last == old.last
    await write(new, 2)
    assert bases(new.last) == [0, 10]


async def test_a_deposed_leader_writes_nothing_more() -> None:
    bucket = Bucket()
    old, new = chain_on(bucket, "old")[0], chain_on(bucket, "new")[0]
    await old.read()
    await write(old, 1)
    await new.read()
    await write(new, 2)
    for _ in range(2):
        with pytest.raises(Deposed, match="epoch 2"):
            await old.append(1, manifest(segment(0, 99)))
    assert bases(await new.read()) == [0, 10]


async def test_a_manifest_of_a_lower_epoch_is_void() -> None:
    bucket = Bucket()
    chain, _ = chain_on(bucket)
    await chain.read()
    await write(chain, 5)
    stray = structs.replace(manifest(segment(0, 99)), number=1, oldest=0, leader_epoch=4)
    bucket.write(FOLDER + manifest_name(1), encode_manifest(stray))
    other, _ = chain_on(bucket, "b")
    assert bases(await other.read()) == [0]
    await write(other, 6)
    assert bases(await chain.read()) == [0, 10]
    assert chain.last is not None and chain.last.number == 2


async def test_a_higher_claim_takes_the_chain_from_any_epoch_of_a_lower_one() -> None:
    bucket = Bucket()
    former, _ = chain_on(bucket)
    await former.read()
    await write(former, 9)
    present = Chain(ScriptedStore(bucket), FOLDER, "b", 1)
    await present.read()
    await write(present, 2)
    with pytest.raises(Contested, match=r"taken over by a cluster whose nilometer\.tier\.claim is 1"):
        await write(former, 10)
    stray = structs.replace(manifest(segment(0, 99)), number=2, oldest=0, leader_epoch=11)
    bucket.write(FOLDER + manifest_name(2), encode_manifest(stray))  # the former one's, too late
    assert bases(await present.read()) == [0, 10]
    await write(present, 2)
    with pytest.raises(Contested):
        await former.remove_all(always)
    assert bases(await present.read()) == [0, 10, 20]


async def test_brokers_write_nothing_to_an_archive() -> None:
    bucket = Bucket()
    archive, leader = chain_on(bucket, "archive")[0], chain_on(bucket, "leader")[0]
    await archive.read()
    for end in (9, 19):
        following = structs.replace(manifest(segment(0, end)), is_archive=True)
        assert await archive.append_at_rest(-1, following)
    await leader.read()
    with pytest.raises(Contested, match="is in an archive"):
        await write(leader, 3)
    with pytest.raises(Contested, match="is in an archive"):
        await leader.remove_all(always)
    assert await leader.read() == archive.last


async def test_two_processes_that_write_under_one_epoch_stop() -> None:
    """Two clusters with the same metadata: the epochs of their leaders may be the same."""
    bucket = Bucket()
    one, two = chain_on(bucket, "one")[0], chain_on(bucket, "two")[0]
    await one.read()
    await two.read()
    await write(one, 3)
    with pytest.raises(Contested, match="a second cluster"):
        await write(two, 3)
    await write(one, 3)
    await two.read()
    await write(two, 4)
    with pytest.raises(Deposed):
        await write(one, 3)


async def test_while_no_leader_runs_the_rank_stays() -> None:
    bucket = Bucket()
    chain, other = Chain(ScriptedStore(bucket), FOLDER, "a", 2), chain_on(bucket, "b")[0]
    await other.read()
    assert await other.append_at_rest(0, manifest(segment(0, 9)))
    assert other.last is not None and other.last.rank == (0, 0)
    await chain.read()
    await write(chain, 5)
    await other.read()
    assert await other.append_at_rest(0, manifest(segment(0, 9)))
    assert other.last is not None and other.last.rank == (2, 5)


async def test_a_leader_that_was_stopped_for_long_finds_out() -> None:
    """The number that it writes was removed long ago, so it is free."""
    bucket = Bucket()
    old, new = chain_on(bucket, "old")[0], chain_on(bucket, "new")[0]
    await old.read()
    await write(old, 1)
    await new.read()
    await write(new, 2, MANIFESTS_KEPT + 5)
    assert FOLDER + manifest_name(1) not in bucket.objects
    with pytest.raises(Deposed, match="stopped"):
        await old.append(1, manifest(segment(0, 99)))
    assert (await old.read()) == new.last
    fresh, _ = chain_on(bucket, "fresh")
    assert await fresh.read() == new.last


async def test_a_reader_that_was_stopped_for_long_begins_again() -> None:
    bucket = Bucket()
    reader, writer = chain_on(bucket)[0], chain_on(bucket, "w")[0]
    await writer.read()
    await write(writer, 1)
    await reader.read()
    await write(writer, 1, MANIFESTS_KEPT + 5)
    assert await reader.read() == writer.last


async def chain_with_a_late_request(bucket: Bucket) -> tuple[Chain, Chain, bytes]:
    """Return a chain whose first manifest took two attempts, a reader that knows that one only, and what the
    first attempt has still to write, now that this manifest was removed."""
    chain, store = chain_on(bucket, "w")
    await chain.read()
    store.before["create", manifest_name(0)] = LOST
    with pytest.raises(ObjectStoreError, match="no answer"):
        await write(chain, 1)
    late = store.attempted[manifest_name(0)]
    await write(chain, 1)
    reader, _ = chain_on(bucket, "r")
    await reader.read()
    await write(chain, 1, MANIFESTS_KEPT + 5)
    assert FOLDER + manifest_name(0) not in bucket.objects
    return chain, reader, late


async def test_a_manifest_that_is_created_again_late_is_not_the_one_that_was_known() -> None:
    bucket = Bucket()
    chain, reader, late = await chain_with_a_late_request(bucket)
    bucket.write(FOLDER + manifest_name(0), late)
    assert await reader.read() == chain.last


async def test_no_leader_goes_on_from_a_manifest_that_was_created_again_late() -> None:
    bucket = Bucket()
    chain, successor, late = await chain_with_a_late_request(bucket)
    bucket.write(FOLDER + manifest_name(0), late)
    with pytest.raises(Deposed, match="stopped"):
        await write(successor, 2)
    await successor.read()
    await write(successor, 2)
    assert bases(await chain.read()) == [10 * number for number in range(MANIFESTS_KEPT + 7)]


async def test_a_late_head_does_not_lead_to_a_manifest_that_was_created_again_late() -> None:
    bucket = Bucket()
    chain, _ = chain_on(bucket, "w")
    await chain.read()
    await write(chain, 1, 2)
    late = bucket.objects[FOLDER + manifest_name(1)]
    await write(chain, 1, MANIFESTS_KEPT + 5)
    bucket.write(FOLDER + manifest_name(1), late)
    bucket.write(f"{FOLDER}head", b"1")
    assert await chain_on(bucket)[0].read() == chain.last


async def test_a_search_that_begins_with_a_listing_does_not_begin_with_a_void_manifest() -> None:
    bucket = Bucket()
    chain, _ = chain_on(bucket)
    await chain.read()
    await write(chain, 5, MANIFESTS_KEPT + 5)
    end = MANIFESTS_KEPT + 5
    stray = structs.replace(manifest(segment(0, 99)), number=end, oldest=0, leader_epoch=4)
    bucket.write(FOLDER + manifest_name(end), encode_manifest(stray))
    bucket.write(f"{FOLDER}head", b"1")
    assert await chain_on(bucket)[0].read() == chain.last


async def test_no_more_manifests_stay_than_slow_readers_need() -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    await write(chain, 1, 20)
    store.before["remove", manifest_name(11)] = LOST
    await write(chain, 1, 10)
    kept = [name for name in bucket.objects if "manifest" in name]
    assert kept == [FOLDER + manifest_name(number) for number in range(29 - MANIFESTS_KEPT, 30)]
    successor, _ = chain_on(bucket, "b")
    await successor.read()
    await write(successor, 2, 1)
    assert FOLDER + manifest_name(29 - MANIFESTS_KEPT) not in bucket.objects


async def test_a_lost_answer_is_looked_up() -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    store.after["create", manifest_name(0)] = LOST
    await write(chain, 1)
    assert chain.is_settled and bases(chain.last) == [0]


async def test_a_write_whose_outcome_is_unknown_may_take_effect_later() -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    store.after["create", manifest_name(0)] = LOST
    store.before["get", manifest_name(0)] = LOST
    with pytest.raises(ObjectStoreError, match="no answer"):
        await chain.append(1, manifest(segment(0, 9)))
    assert not chain.is_settled
    assert not await chain.append(1, manifest(segment(0, 19)))
    assert chain.is_settled and bases(chain.last) == [0]
    assert chain.last is not None and chain.last.end_offset == 10


async def test_a_write_is_settled_when_its_number_is_found() -> None:
    """Nothing more may have to be written, and what failed attempts left is removed only then."""
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    store.before["create", manifest_name(0)] = LOST
    with pytest.raises(ObjectStoreError, match="no answer"):
        await chain.append(1, manifest(segment(0, 9)))
    await chain.read()
    assert not chain.is_settled, "it may yet be created"
    late = structs.replace(manifest(segment(0, 9)), leader_epoch=1)
    bucket.write(FOLDER + manifest_name(0), encode_manifest(late))
    await chain.read()
    assert chain.is_settled


async def test_a_head_that_is_not_written_is_written_later() -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    for number in range(MANIFESTS_KEPT + 3):
        store.before["put", "head"] = LOST
        await write(chain, 1)
        assert bases(await chain_on(bucket)[0].read())[-1] == 10 * number
    assert len(bucket.objects) == MANIFESTS_KEPT + 3
    await write(chain, 1)
    assert len(bucket.objects) == MANIFESTS_KEPT + 2


async def test_a_head_that_was_set_back_costs_a_listing_only() -> None:
    bucket = Bucket()
    chain, _ = chain_on(bucket)
    await chain.read()
    await write(chain, 1, 20)
    for delayed in (b"3", b"99", b"", b"x"):
        bucket.write(f"{FOLDER}head", delayed)
        assert await chain_on(bucket)[0].read() == chain.last


async def test_a_chain_whose_head_is_lost_is_not_empty() -> None:
    bucket = Bucket()
    chain, _ = chain_on(bucket)
    await chain.read()
    await write(chain, 1, 20)
    del bucket.objects[f"{FOLDER}head"]
    assert await chain_on(bucket)[0].read() == chain.last


async def test_a_chain_that_is_empty_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    (chain, store), listed = chain_on(bucket), list[str]()
    names = store.names

    async def counted(prefix: str) -> list[str]:
        listed.append(prefix)
        return await names(prefix)

    monkeypatch.setattr(store, "names", counted)
    for _ in range(3):
        assert await chain.read() is None
    assert len(listed) == 1


async def test_a_chain_whose_manifests_are_gone_is_damaged_and_not_empty() -> None:
    bucket = Bucket({f"{FOLDER}head": b"7"})
    chain, _ = chain_on(bucket)
    with pytest.raises(DamagedObject, match="no manifest"):
        await chain.read()
    assert not chain.is_read


async def test_a_deleted_topic_has_no_further_manifest_and_leaves_no_object() -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    await write(chain, 1, 12)
    other, _ = chain_on(bucket, "b")
    await other.read()
    store.before["remove", manifest_name(10)] = LOST
    with pytest.raises(ObjectStoreError, match="no answer"):
        await chain.remove_all(always)
    with pytest.raises(Deposed, match="deleted"):
        await other.append(2, manifest(segment(0, 99)))
    assert f"{FOLDER}head" in bucket.objects, "what finds the manifests is removed last"
    await other.remove_all(always)
    assert bucket.objects == {}


async def test_a_higher_claim_goes_on_behind_an_end_and_loses_nothing_by_the_removal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = Bucket()
    chain, store = chain_on(bucket)
    await chain.read()
    await write(chain, 1, 3)
    names, taker = store.names, Chain(ScriptedStore(bucket), FOLDER, "b", 1)

    async def later(prefix: str) -> list[str]:
        await taker.read()
        await taker.append(1, manifest(segment(0, 9)))
        return await names(prefix)

    monkeypatch.setattr(store, "names", later)
    with pytest.raises(Contested, match="taken over"):
        await chain.remove_all(always)
    assert await chain_on(bucket)[0].read() == taker.last
    assert taker.last is not None and not taker.last.is_deleted


async def test_a_leader_that_does_not_know_of_the_deletion_does_not_begin_again() -> None:
    bucket = Bucket()
    chain, remover = chain_on(bucket)[0], chain_on(bucket, "remover")[0]
    await chain.read()
    await write(chain, 1)
    await remover.remove_all(always)
    for _ in range(2):
        with pytest.raises(ManifestsGone, match="all of them were removed"):
            await chain.read()
    await chain.remove_all(always)
    assert bucket.objects == {}


async def test_segments_that_no_manifest_names_are_those_of_a_chain_that_was_lost() -> None:
    bucket = Bucket({f"{FOLDER}x.log": b"", f"{FOLDER}x.index": b""})
    chain, _ = chain_on(bucket)
    for _ in range(2):
        assert await chain.read() is None
        with pytest.raises(ManifestsGone, match="all manifests that named them are lost"):
            await chain.append(1, manifest())
    assert len(bucket.objects) == 2


async def test_segments_of_a_leader_that_has_just_begun_are_those_of_its_chain() -> None:
    bucket = Bucket()
    (late, _), (other, _) = chain_on(bucket, "late"), chain_on(bucket, "other")
    assert await late.read() is None
    await other.read()
    await write(other, 1)
    bucket.objects[f"{FOLDER}x.log"] = b""
    assert not await late.append(2, manifest())
    assert late.last == other.last
    await write(late, 2)
    assert bases(late.last) == [0, 10]


async def test_a_removal_that_stopped_before_its_head_goes_on() -> None:
    bucket = Bucket({f"{FOLDER}head": b"7", f"{FOLDER}x.log": b""})
    await chain_on(bucket)[0].remove_all(always)
    assert bucket.objects == {}


async def test_a_manifest_that_is_damaged_is_not_taken_for_a_removal() -> None:
    bucket = Bucket({f"{FOLDER}head": b"0", FOLDER + manifest_name(0): b"x"})
    with pytest.raises(DamagedObject, match="CRC"):
        await chain_on(bucket)[0].remove_all(always)
    assert len(bucket.objects) == 2


@pytest.mark.parametrize("more", [1, MANIFESTS_KEPT + 4])
async def test_a_chain_that_goes_on_while_a_removal_ends_it_is_asked_about_again(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the number of the last manifest was removed meanwhile, and can be created again."""
    bucket, asked = Bucket(), list[int]()
    (writer, _), (remover, store) = chain_on(bucket, "writer"), chain_on(bucket, "remover")
    await writer.read()
    await write(writer, 1, 3)
    create = store.create

    async def create_late(name: str, data: bytes) -> bool:
        monkeypatch.undo()
        await write(writer, 1, more)
        return await create(name, data)

    def is_the_third(last: Manifest) -> bool:
        asked.append(last.number)
        return last.number == 2

    monkeypatch.setattr(store, "create", create_late)
    await remover.remove_all(is_the_third)
    assert asked == [2, 2 + more]
    manifests = [name for name in bucket.objects if "manifest" in name]
    assert manifests == [FOLDER + manifest_name(number) for number in range(max(0, more - 6), 3 + more)]
    assert await chain_on(bucket)[0].read() == writer.last


async def turns_of_others(count: int) -> int:
    """Read a manifest of so many segments; return how often another task had its turn meanwhile."""
    bucket = Bucket()
    segments = tuple(segment(10 * number, 10 * number + 9) for number in range(count))
    written = structs.replace(manifest(), number=0, leader_epoch=0, segments=segments)
    bucket.write(FOLDER + manifest_name(0), encode_manifest(written))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    reader, _ = chain_on(bucket)
    assert await reader.read() == written
    others.cancel()
    return turns


async def test_others_are_served_while_a_manifest_with_many_segments_is_read() -> None:
    assert await turns_of_others(4 * SEGMENTS_OF_A_LINE) >= await turns_of_others(SEGMENTS_OF_A_LINE) + 3
