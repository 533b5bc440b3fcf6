"""What the simulation says of each change of remote storage: it reads manifests as they are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from nilometer.simulation.checkers.tier import (
    GRACE_SLACK,
    MANIFESTS_MAX,
    RemoteChanges,
    not_converged,
    remote_batches,
)
from nilometer.simulation.object_store import Bucket
from nilometer.simulation.world import HostClock
from nilometer.tier.format import SEGMENTS_OF_A_LINE, Manifest, encode_manifest, manifest_name
from nilometer.wire.records import BatchBuilder
from support.tier.remote_segments import FOLDER, manifest, segment

GRACE_MS = 10_000
EARLY_MS = 100
MANY = SEGMENTS_OF_A_LINE + 1


class Store:
    def __init__(self) -> None:
        self.now_ms = 0
        self.bucket = Bucket()
        self.known: Any = SimpleNamespace(partition=None, folder=FOLDER, manifest=None)
        """What the broker knows."""
        broker = SimpleNamespace(parts=SimpleNamespace(remote_logs=[self.known]))
        self.node: Any = SimpleNamespace(name="broker-1", broker=broker, is_running=True)
        loop: Any = SimpleNamespace(time=lambda: self.now_ms / 1000)
        self.clocks = [HostClock(loop), HostClock(loop)]
        cluster: Any = SimpleNamespace(nodes={1: self.node}, leads=lambda _: False)
        self.checked = RemoteChanges(cluster, self.bucket, GRACE_MS, clocks_jump=False)

    def upload(self, *bases: int) -> None:
        for base in bases:
            for name in names_of(base):
                self.bucket.write(name, b"?", self.clocks[0])

    def write(self, number: int, held: Manifest, epoch: int = 0, machine: int = 0) -> None:
        written = structs.replace(held, number=number, leader_epoch=epoch)
        name = FOLDER + manifest_name(number)
        self.bucket.write(name, encode_manifest(written), self.clocks[machine])

    def remove_manifest(self, number: int) -> None:
        self.bucket.remove(FOLDER + manifest_name(number), self.clocks[0])

    def remove(self, base: int, machine: int = 0) -> None:
        for name in names_of(base):
            self.bucket.remove(name, self.clocks[machine])

    @property
    def found(self) -> list[str]:
        return [one.partition(f"{FOLDER}")[2].partition(" ")[2] for one in self.checked.violations]


def names_of(base: int) -> tuple[str, str]:
    one = segment(base, base + 9)
    return FOLDER + one.log_name, FOLDER + one.index_name


def held(*bases: int) -> Manifest:
    return manifest(*(segment(base, base + 9) for base in bases))


def test_what_leaders_do_is_no_violation() -> None:
    store = Store()
    store.upload(0, 10)
    store.write(0, held(0))
    store.write(1, held(0, 10))
    store.write(2, held(10))
    store.now_ms += GRACE_MS
    store.remove(0)
    store.write(3, structs.replace(held(), is_deleted=True))
    store.remove(10)
    assert store.found == []


def test_an_object_that_is_named_must_be_there_whatever_line_names_it() -> None:
    store = Store()
    bases = range(0, 10 * MANY, 10)
    store.upload(*bases[:-1])
    store.write(0, held(*bases))
    (found,) = store.found
    assert found.startswith("names") and f"{bases[-1]:020d}" in found


@pytest.mark.parametrize("base", [0, 10 * (MANY - 1)], ids=["first-line", "last-line"])
def test_what_the_last_manifest_names_is_not_removed(base: int) -> None:
    store = Store()
    bases = range(0, 10 * MANY, 10)
    store.upload(*bases)
    store.write(0, held(*bases))
    store.remove(base)
    assert store.found == ["is removed, which the last manifest names"] * 2


def test_what_has_left_the_manifest_stays_for_a_while() -> None:
    store = Store()
    store.upload(0, 10)
    store.write(0, held(0, 10))
    store.write(1, held(10))
    store.now_ms += int(GRACE_MS * GRACE_SLACK) - EARLY_MS
    store.remove(0)
    assert store.found == ["is removed before the grace period is over"] * 2


@pytest.mark.parametrize(
    ("drops", "removes", "is_early"), [(0, 0, True), (1, 1, True), (0, 1, False), (1, 0, True)]
)
def test_the_grace_period_counts_by_the_clocks_of_those_that_drop_and_remove(
    drops: int, removes: int, is_early: bool
) -> None:
    """However far the clocks have drifted apart late in a run."""
    store = Store()
    store.clocks[1].rate = 1.002
    store.now_ms = 3_600_000  # by then one is 7.2 s ahead
    store.upload(0, 10)
    store.write(0, held(0, 10))
    store.write(1, held(10), machine=drops)
    store.now_ms += int(GRACE_MS * GRACE_SLACK) - EARLY_MS
    store.remove(0, machine=removes)
    assert store.found == ["is removed before the grace period is over"] * 2 * is_early


def test_a_manifest_has_one_content_for_ever() -> None:
    store = Store()
    store.upload(0)
    store.write(0, held())
    store.write(0, held(0))
    assert store.found == ["is written a second time"]


def test_a_number_that_was_removed_may_be_created_again_by_a_late_request() -> None:
    store = Store()
    store.upload(0)
    store.write(0, held())
    store.write(1, held(0))
    store.remove_manifest(0)
    store.write(0, structs.replace(held(), written_ms=1))
    store.known.manifest = structs.replace(held(0), number=1)
    store.checked.look()
    store.remove(0)
    assert store.found == ["is removed, which the last manifest names"] * 2


def test_no_broker_goes_on_from_what_was_created_again() -> None:
    store = Store()
    store.write(0, held())
    store.remove_manifest(0)
    late = structs.replace(held(), number=0, written_ms=1)
    store.write(0, late)
    store.known.manifest = late
    store.checked.look()
    assert store.checked.violations[0].endswith(
        f"broker-1 goes on from {FOLDER + manifest_name(0)}, which was created again late"
    )


def test_what_a_former_leader_writes_late_does_not_count() -> None:
    store = Store()
    store.upload(0)
    store.write(0, held(), epoch=5)
    store.write(1, held(0), epoch=4)
    store.remove(0)
    assert store.found == []


def test_the_chain_of_a_deleted_partition_may_begin_again() -> None:
    """By a request that comes late, or a broker that has not heard of the deletion."""
    store = Store()
    store.upload(0)
    store.write(0, held(0))
    store.write(1, structs.replace(held(), is_deleted=True))
    store.write(0, held())
    assert store.found == []


def test_what_is_there_counts_also_if_its_new_leader_has_not_looked_yet() -> None:
    store, builder = Store(), BatchBuilder()
    builder.append(1, None, b"v")
    one = segment(0, 0)
    store.bucket.write(FOLDER + one.log_name, bytes(builder.build(0, 7, 0, 0)), store.clocks[0])
    store.bucket.write(FOLDER + one.index_name, b"?", store.clocks[0])
    store.write(0, manifest(one), epoch=1)
    store.write(1, held(), epoch=0)
    store.known.partition = "events-0"
    (found,) = remote_batches(store.node, store.bucket, "events-0")
    assert (found.base_offset, found.last_offset) == (0, 0)
    assert remote_batches(store.node, store.bucket, "events-1") == []


def at_rest(store: Store, last: Manifest | None) -> list[str]:
    """Return what is not as it should be, with this manifest as the last one that the leader knows."""
    store.known.partition, store.known.manifest = "events-0", last
    store.known.error, store.known.lag = None, SimpleNamespace(sealed=0)
    cluster: Any = SimpleNamespace(nodes={1: store.node}, leads=lambda _: True)
    return [one.removeprefix("not converged: ") for one in not_converged(cluster, store.bucket)]


@pytest.mark.parametrize("too_many", [0, 1])
def test_old_manifests_that_are_never_removed_are_found(too_many: int) -> None:
    store = Store()
    for number in range(MANIFESTS_MAX + too_many):
        store.write(number, held())
    folder = FOLDER.removesuffix("/")
    said = [f"{folder} has {MANIFESTS_MAX + 1} manifests, of which old ones should be removed"]
    assert at_rest(store, held()) == said * too_many


def test_a_tier_that_has_ended_although_its_topic_has_not_is_found() -> None:
    store = Store()
    store.write(0, structs.replace(held(), is_deleted=True))
    ended = structs.replace(held(), is_deleted=True)
    assert at_rest(store, ended) == ["the tier of events-0 has ended, and its topic has not"]
