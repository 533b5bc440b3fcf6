"""The tier of a partition whose leaders change, stop, restart and lose elections, in a store that fails; and
faults in the shipped code that this must find."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from nilometer.broker.tiering.remote_partition import Decision, RemotePartition
from nilometer.tier import plan
from nilometer.tier.chain import Chain
from nilometer.tier.format import Manifest
from support.tier.changing_leaders import play


@pytest.mark.parametrize("seed", range(12))
def test_committed_records_are_read_from_the_log_or_the_tier(seed: int) -> None:
    play(seed, unclean=False)


@pytest.mark.parametrize("seed", range(8))
def test_an_unclean_election_leaves_no_divergent_records_in_the_tier(seed: int) -> None:
    play(seed, unclean=True)


Patch = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 60


def deletes_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    async def note_all(self: RemotePartition) -> None:
        self.partition.log.note_tiered(self.partition.log.segments.active.base_offset)

    patch.setattr(RemotePartition, "_note_tiered", note_all)


def keeps_divergent_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "divergent", lambda *_: ())


def drops_expired_segments_before_the_log_start_moves(patch: pytest.MonkeyPatch) -> None:
    async def expire(self: RemotePartition, epoch: int) -> None:
        config = self.partition.log.config
        retention = plan.Retention(config.retention_ms, config.retention_bytes)

        def remaining(manifest: Manifest) -> Decision:
            gone = yield from plan.expiring(manifest, self.view(), retention, self._now_ms)
            return (yield from manifest.dropping(gone, self._now_ms)) if gone else None

        if self.manifest is not None:
            await self._write(epoch, remaining)

    patch.setattr(RemotePartition, "_expire", expire)


def removes_objects_that_a_manifest_names(patch: pytest.MonkeyPatch) -> None:
    def all_but_the_last(manifest: Manifest, *_: int) -> Generator[int, None, tuple[str, ...]]:
        yield 1
        return tuple(one.index_name for one in manifest.segments[:-1])

    patch.setattr(plan, "due_removals", all_but_the_last)


def leaves_what_failed_attempts_uploaded(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: RemotePartition, epoch: int) -> None:
        return None

    patch.setattr(RemotePartition, "_sweep", nothing)


def never_removes_old_manifests(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Chain) -> None:
        self.is_pruned = True

    patch.setattr(Chain, "prune", nothing)


FAULTS: tuple[tuple[Patch, bool, int], ...] = (
    (never_removes_old_manifests, False, 0),
    (deletes_before_the_manifest, False, 0),
    (keeps_divergent_segments, True, 18),
    (drops_expired_segments_before_the_log_start_moves, False, 0),
    (removes_objects_that_a_manifest_names, False, 0),
    (leaves_what_failed_attempts_uploaded, False, 0),
)


@pytest.mark.parametrize(("fault", "unclean", "first"), FAULTS, ids=[one.__name__ for one, *_ in FAULTS])
def test_a_planted_fault_is_found(
    fault: Patch, unclean: bool, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``first``: the seed that found it when it was planted. Those after it are tried, too."""
    fault(monkeypatch)
    for seed in range(first, first + SEEDS_MAX):
        try:
            play(seed, unclean=unclean)
        except Exception:
            return
    pytest.fail(f"no seed from {first} on finds it, in {SEEDS_MAX} tried")
