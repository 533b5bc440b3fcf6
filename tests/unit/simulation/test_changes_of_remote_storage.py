"""What the simulation says of each change of remote storage: it reads manifests as they are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from nilometer.simulation.checkers.tier import GRACE_SLACK, RemoteChanges, remote_batches
from nilometer.simulation.object_store import Bucket
from nilometer.simulation.world import HostClock
from nilometer.tier.format import SEGMENTS_OF_A_LINE, Manifest, encode_manifest, manifest_name
from nilometer.wire.records import BatchBuilder
from support.tier.remote_segments import FOLDER, manifest, segment

GRACE_S = 10.0
MANY = SEGMENTS_OF_A_LINE + 1


class Store:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.bucket = Bucket()
        self.known: Any = SimpleNamespace(partition=None, folder=FOLDER, manifest=None)
        """What the broker knows."""
        broker = SimpleNamespace(parts=SimpleNamespace(remote_logs=[self.known]))
        self.node: Any = SimpleNamespace(name="broker-1", broker=broker, is_running=True)
        loop: Any = SimpleNamespace(time=lambda: self.now_s)
        self.clocks = [HostClock(loop), HostClock(loop)]
        machines = [SimpleNamespace(clock=clock) for clock in self.clocks]
        cluster: Any = SimpleNamespace(
            world=SimpleNamespace(loop=loop),
            nodes={1: self.node},
            machines=machines,
            leads=lambda _: False,
        )
        self.checked = RemoteChanges(cluster, self.bucket, GRACE_S, clocks_agree=True)

    def upload(self, *bases: int) -> None:
        for base in bases:
            for name in names_of(base):
                self.bucket.write(name, b"?")

    def write(self, number: int, held: Manifest, epoch: int = 0) -> None:
        written = structs.replace(held, number=number, leader_epoch=epoch)
        self.bucket.write(FOLDER + manifest_name(number), encode_manifest(written))

    def remove(self, base: int) -> None:
        for name in names_of(base):
            self.bucket.remove(name)

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
    store.now_s += GRACE_S
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
    store.now_s += GRACE_S * GRACE_SLACK - 1
    store.remove(0)
    assert store.found == ["is removed before the grace period is over"] * 2


def test_a_machine_whose_clock_is_ahead_removes_earlier() -> None:
    store = Store()
    store.upload(0, 10)
    store.write(0, held(0, 10))
    store.write(1, held(10))
    store.clocks[1].rate = 1.2
    store.now_s += GRACE_S * GRACE_SLACK - 1  # by the faster clock 1.4 s more have passed
    store.remove(0)
    assert store.found == []


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
    store.bucket.remove(FOLDER + manifest_name(0))
    store.write(0, structs.replace(held(), written_ms=1))
    store.known.manifest = structs.replace(held(0), number=1)
    store.checked.look()
    store.remove(0)
    assert store.found == ["is removed, which the last manifest names"] * 2


def test_no_broker_goes_on_from_what_was_created_again() -> None:
    store = Store()
    store.write(0, held())
    store.bucket.remove(FOLDER + manifest_name(0))
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
    store.bucket.write(FOLDER + one.log_name, bytes(builder.build(0, 7, 0, 0)))
    store.bucket.write(FOLDER + one.index_name, b"?")
    store.write(0, manifest(one), epoch=1)
    store.write(1, held(), epoch=0)
    store.known.partition = "events-0"
    (found,) = remote_batches(store.node, store.bucket, "events-0")
    assert (found.base_offset, found.last_offset) == (0, 0)
    assert remote_batches(store.node, store.bucket, "events-1") == []
