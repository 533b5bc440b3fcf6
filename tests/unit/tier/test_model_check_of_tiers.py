"""Every state of a small tiered partition with former leaders, failing requests and deletions keeps every
property; and what is planted in the rules is found, by a shortest path."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
from msgspec import structs

from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.model_check.explorer import Exploration, Violation
from nilometer.simulation.model_check.tier import (
    KEPT,
    NO_ORPHANS,
    NOT_LOST,
    READABLE,
    READERS,
    SAME_LOG,
    SOUND,
    STABLE,
    TierBounds,
    TierWorld,
    tier_violation,
)
from nilometer.tier import chain, plan
from nilometer.tier.chain import Chain
from nilometer.tier.format import Manifest, RemoteSegment, encode_manifest
from support.simulation.model_check_tally import explore

STATES_MAX = 10_000
"""With some of what is planted there is no end of states."""
UNCLEAN = TierBounds(values=2, rolls=(1, 2), unclean=1)
EXPIRING = TierBounds(values=2, retention=1)
FAILING = TierBounds(values=2, rolls=(1,), losses=1, grace_periods=1)
LARGER = (
    TierBounds(values=2, crashes=1),
    TierBounds(values=2, transactions=1),
    TierBounds(values=2, deletions=1),
    TierBounds(values=2, losses=1),
    TierBounds(values=2, grace_periods=1),
    TierBounds(values=3, unclean=1),
)
LARGEST = (
    TierBounds(values=3, losses=1, elections=0, grace_periods=2),
    TierBounds(values=3, retention=1, grace_periods=2, elections=0),
    TierBounds(values=3, rolls=(1, 2), unclean=1, deletions=1),
    TierBounds(values=3, transactions=1, unclean=1),
    TierBounds(values=2, losses=1, grace_periods=1),
    TierBounds(values=2, elections=2, unclean=2),
    TierBounds(values=2, crashes=1, losses=1),
)


def check(bounds: TierBounds, states_max: int | None = None) -> Exploration:
    return explore(TierWorld(bounds), judge=tier_violation, states_max=states_max)


def assert_complete(bounds: TierBounds) -> None:
    seen = check(bounds)
    assert seen.violation is None, (seen.violation, [step for step, _ in seen.counterexample])
    assert seen.is_complete


@pytest.mark.parametrize("bounds", [UNCLEAN, EXPIRING, FAILING], ids=["unclean", "expiring", "failing"])
def test_every_state_keeps_every_property(bounds: TierBounds) -> None:
    assert_complete(bounds)


@pytest.mark.thorough
@pytest.mark.interpreted
@pytest.mark.parametrize("bounds", LARGER)
def test_every_state_of_a_larger_world_keeps_every_property(bounds: TierBounds) -> None:
    assert_complete(bounds)


@pytest.mark.soak
@pytest.mark.interpreted
@pytest.mark.parametrize("bounds", LARGEST)
def test_every_state_of_the_largest_worlds_keeps_every_property(bounds: TierBounds) -> None:
    assert_complete(bounds)


def test_manifests_are_removed_as_the_chain_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MANIFESTS_KEPT", 0)
    assert_complete(UNCLEAN)


LATE_CLAIM = (
    "produce 0", "produce 0", "produce 0", "look 0", "go on alone 0", "claim, late 0", "claim 0", "upload 0",
    "look 1", "name 0", "upload 0", "name 0", "delete locally 0", "follow 1", "elect 1", "arrive 0", "look 1",
)  # fmt: skip
"""Broker 1 knows the first manifest only; a late request creates it again when both others have followed."""


def after_late_claim() -> Violation | None:
    world = TierWorld(TierBounds(values=3, losses=1))
    state = world.first_state()
    for wanted in LATE_CLAIM:
        state = next(after for (name, index, _), after in world.steps(state) if f"{name} {index}" == wanted)
    return tier_violation(world, state)


def test_a_manifest_that_was_created_again_late_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MANIFESTS_KEPT", 0)
    assert after_late_claim() is None


def test_a_chain_that_is_said_to_end_with_it_lacks_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MANIFESTS_KEPT", 0)
    monkeypatch.setattr(chain, "manifest_start", lambda manifest: b"")
    violation = after_late_claim()
    assert violation is not None and violation.sentence == NOT_LOST


# What is planted.

Patch = Callable[[pytest.MonkeyPatch], None]


def planned(name: str, by: Callable[..., Any]) -> Patch:
    return lambda patch: patch.setattr(plan, name, by)


def chained(name: str, by: Callable[..., Any]) -> Patch:
    return lambda patch: patch.setattr(Chain, name, by)


def copy_what_is_undecided(manifest: Manifest, log: plan.LogView) -> plan.LocalSegment | None:
    tiered = manifest.end_offset if manifest.segments else log.log_start_offset
    return next((one for one in log.sealed if one.end_offset > tiered), None)


def end_of_what_is_sealed(manifest: Manifest, log: plan.LogView) -> Generator[int, None, int]:
    yield 1
    return log.sealed[-1].end_offset if log.sealed else log.log_start_offset


def compare_nothing_beyond_the_end(manifest: Manifest, log: plan.LogView) -> tuple[RemoteSegment, ...]:
    within = [one for one in manifest.segments if one.end_offset <= log.log_end_offset]
    return divergent(structs.replace(manifest, segments=tuple(within)), log)


divergent = plan.divergent


def compare_by_the_last_epoch(manifest: Manifest, log: plan.LogView) -> tuple[RemoteSegment, ...]:
    newest = log.epochs[-1][0] if log.epochs else -1
    return tuple(one for one in manifest.segments if one.epochs[-1][0] != newest)


def remove_at_once(manifest: Manifest, now_ms: int, grace_ms: int) -> Generator[int, None, tuple[str, ...]]:
    yield 1
    return tuple(one.name for one in manifest.dropped)


def sweep_what_was_dropped(manifest: Manifest, names: Sequence[str]) -> Generator[int, None, tuple[str, ...]]:
    named = {name for one in manifest.segments for name in (one.log_name, one.index_name)}
    yield 1
    return tuple(name for name in names if name.endswith((".log", ".index")) and name not in named)


def sweep_indexes_only(manifest: Manifest, names: Sequence[str]) -> Generator[int, None, tuple[str, ...]]:
    found = yield from orphans(manifest, names)
    return tuple(name for name in found if name.endswith(".index"))


orphans = plan.orphans


def expire_one_more(
    manifest: Manifest, log: plan.LogView, retention: plan.Retention, now_ms: int
) -> Generator[int, None, tuple[RemoteSegment, ...]]:
    found = yield from expiring(manifest, log, retention, now_ms)
    return manifest.segments[: len(found) + (retention.bytes >= 0)]


expiring = plan.expiring


def begin_where_the_own_log_does(
    manifest: Manifest, log: plan.LogView, leader_epoch: int, same_until: int
) -> int:
    return log.log_start_offset


def let_every_leader_write(patch: pytest.MonkeyPatch) -> None:
    async def read(self: Any) -> Manifest | None:
        while (found := await self._get(self._end + 1)) is not None:
            self._last, self._end = found, found.number
        self.is_read = True
        return self._last

    patch.setattr(Chain, "read", read)
    patch.setattr(Chain, "check_may_write", lambda self, leader_epoch: None)


async def take_no_answer_for_success(self: Any, manifest: Manifest) -> bool:
    name = self._folder + chain.manifest_name(manifest.number)
    try:
        return await self._store.create(name, encode_manifest(manifest))
    except ObjectStoreError:
        return True


async def read_the_first_only(self: Any) -> Manifest | None:
    self._last = await self._get(0)
    self._end = -1 if self._last is None else 0
    self.is_read = True
    return self._last


def keep_what_is_covered(patch: pytest.MonkeyPatch) -> None:
    def adding(self: Manifest, segment: RemoteSegment, now_ms: int) -> Generator[int, None, Manifest]:
        yield 1
        return structs.replace(self, segments=(*self.segments, segment))

    patch.setattr(Manifest, "adding", adding)


def forget_what_was_dropped(patch: pytest.MonkeyPatch) -> None:
    def dropping(
        self: Manifest, gone: Sequence[RemoteSegment], now_ms: int
    ) -> Generator[int, None, Manifest]:
        yield 1
        return structs.replace(self, segments=tuple(one for one in self.segments if one not in gone))

    patch.setattr(Manifest, "dropping", dropping)


OPEN = TierBounds(values=2, transactions=1, rolls=(1,))
GRACE = TierBounds(values=2, retention=1, grace_periods=1, rolls=(1,))
PLANTED: dict[str, tuple[Patch, TierBounds, str]] = {
    "what is undecided is copied": (planned("next_to_copy", copy_what_is_undecided), OPEN, STABLE),
    "what is sealed is deleted locally": (
        planned("bounding", end_of_what_is_sealed), EXPIRING, READABLE),
    "divergent records stay": (planned("divergent", lambda manifest, log: ()), UNCLEAN, SAME_LOG),
    "records beyond the end stay": (planned("divergent", compare_nothing_beyond_the_end), UNCLEAN, SAME_LOG),
    "earlier epochs are cut": (planned("divergent", compare_by_the_last_epoch), EXPIRING, READABLE),
    "objects are removed at once": (planned("due_removals", remove_at_once), GRACE, READERS),
    "what was dropped is swept": (planned("orphans", sweep_what_was_dropped), GRACE, READERS),
    "log files stay": (planned("orphans", sweep_indexes_only), FAILING, NO_ORPHANS),
    "one more expires": (
        planned("expiring", expire_one_more), TierBounds(values=2, rolls=(1,), retention=2), KEPT),
    "a new leader begins at its own start": (
        planned("inherited_log_start", begin_where_the_own_log_does), EXPIRING, NOT_LOST),
    "former leaders write": (let_every_leader_write, TierBounds(values=2), READABLE),
    "no answer is success": (chained("_create", take_no_answer_for_success), FAILING, SOUND),
    "the chain is not read to its end": (chained("read", read_the_first_only), EXPIRING, READABLE),
    "covered segments stay": (keep_what_is_covered, TierBounds(values=3, rolls=(1, 2)), SOUND),
    "what was dropped is forgotten": (forget_what_was_dropped, GRACE, READERS),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, bounds, sentence = PLANTED[name]
    plant(monkeypatch)
    seen = check(bounds, STATES_MAX)
    assert seen.violation is not None
    assert seen.violation.sentence == sentence
    assert seen.counterexample
