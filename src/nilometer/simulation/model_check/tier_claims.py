"""The model of two clusters with one id and one store: the second is a clone of the first.

At any moment the clone is made. From then on both produce, elect leaders of the same epochs, copy and delete
what is copied, in every order. The product decides who may write, read and delete:
:class:`~nilometer.tier.chain.Chain` with its claims, :class:`~nilometer.tier.lineage.LogLineage` with the
CRCs of last batches, and :mod:`nilometer.tier.plan`. The order of a leader's steps is that of a round of
``RemotePartition`` in ``broker/tiering``.

Each cluster is a leader without followers. Each record is a batch and a segment. What may become of a request
to the store is in the model of one cluster, :mod:`nilometer.simulation.model_check.tier`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from nilometer.identifiers import LeaderEpoch
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.model_check.explorer import Step, Violation
from nilometer.simulation.model_check.tables import Table
from nilometer.simulation.model_check.tier_store import (
    FOLDER,
    TOPIC,
    Content,
    Fate,
    ModelStore,
    Record,
    Stored,
)
from nilometer.steps import at_once, without_waiting
from nilometer.tier import plan
from nilometer.tier.chain import Chain, Deposed
from nilometer.tier.format import Manifest, RemoteSegment, encode_manifest
from nilometer.tier.lineage import AsOf, LogLineage

OWN = "what a cluster reads from remote storage are the records of its own log"
HELD = "the cluster that holds the claim reads every record that it has deleted locally"
ONCE = "what a leader's manifest names are the records of its own log, each once"
STOPS = "a cluster does not write where one with a higher claim has written"
CLONE = 10
"""The values of the clone's own records begin here."""


class ClaimBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the model, and how much may happen in it."""

    claims: tuple[int, int] = (0, 1)
    """Of the cluster, and of its clone."""
    values: int = 3
    """How many records the log of each may have."""
    elections: int = 1
    """In each of them."""


class _Cluster(NamedTuple):
    chain: int
    records: tuple[Record, ...] = ()
    """By offset, of the whole log: also of what is only in remote storage."""
    local: int = 0
    epoch: int = 0
    began: int = 0
    """Where that epoch began in its log."""
    tiered: int = 0
    copied: RemoteSegment | None = None
    """What it has uploaded and not named yet."""


class ClaimState(NamedTuple):
    clusters: tuple[_Cluster, ...]
    stored: int
    attempts: int = 0
    violation: Violation | None = None


class ClaimWorld:
    """A model for :func:`~.explorer.explore`."""

    def __init__(self, bounds: ClaimBounds) -> None:
        self._bounds = bounds
        self._store = ModelStore()
        self._chains: Table[Chain] = Table()
        self._stored: Table[Stored] = Table()

    def first_state(self) -> ClaimState:
        return ClaimState((_Cluster(self._new_chain(0)),), self._number_of_objects({}))

    def steps(self, state: ClaimState) -> Iterator[tuple[Step, ClaimState]]:
        if state.violation is not None:
            return
        for index, one in enumerate(state.clusters):
            if len(one.records) < self._bounds.values:
                record = one.epoch, index * CLONE + len(one.records)
                produced = one._replace(records=(*one.records, record))
                yield ("produce", index, 0), _with(state, index, produced)
            if one.epoch < self._bounds.elections:
                elected = one._replace(epoch=one.epoch + 1, began=len(one.records), tiered=0, copied=None)
                yield ("elect", index, 0), _with(state, index, elected)
            if one.local < min(one.tiered, len(one.records) - 1):
                yield ("delete locally", index, 0), _with(state, index, one._replace(local=one.local + 1))
            yield from self._leads(state, index, one)
        if len(state.clusters) == 1:
            (one,) = state.clusters
            clone = one._replace(chain=self._new_chain(1), tiered=0, copied=None)
            yield ("clone", 0, 0), state._replace(clusters=(one, clone))

    # ── a leader's round ────────────────────────────────────────────────────────────────────────
    def _leads(self, state: ClaimState, index: int, one: _Cluster) -> Iterator[tuple[Step, ClaimState]]:
        chain = self._copied_chain(one, state)
        without_waiting(chain.read())
        after = self._noted(_with(state, index, one._replace(chain=self._number_of(chain))), index)
        if after != state:
            yield ("look", index, 0), after
        chain = self._chains.values[one.chain]
        if not (chain.is_read and self._may_write(index, one)):
            return
        last = chain.last or plan.first_manifest(TOPIC, 0)
        view, lineage = _view(one), self._lineage_of(index, one, chain.last)
        if cut := lineage.divergent(last, view, _as_of(one)):
            yield from self._appends(state, index, "cut", last.without(cut, 0))
        elif last.rank != (self._bounds.claims[index], one.epoch):
            if last.leader_epoch >= 0 or plan.next_to_copy(last, view) is not None:
                yield from self._appends(state, index, "claim", last)
        elif one.copied is not None:
            yield from self._appends(state, index, "name", at_once(last.adding(one.copied, 0)))
        elif (wanted := plan.next_to_copy(last, view)) is not None:
            yield ("upload", index, 0), self._uploaded(state, index, one, wanted)

    def _may_write(self, index: int, one: _Cluster) -> bool:
        chain = self._chains.values[one.chain]
        try:
            chain.check_may_write(one.epoch)
        except Deposed:
            return False
        return chain.last is None or self._lineage_of(index, one, chain.last).foreign is None

    def _lineage_of(self, index: int, one: _Cluster, last: Manifest | None) -> LogLineage:
        """Return what the log, all of it, says of a manifest."""
        lineage, view, as_of = LogLineage(self._bounds.claims[index]), _view(one), _as_of(one)
        if last is not None:
            while lineage.compare_some(last, view, as_of):
                pass
            while (segment := lineage.to_prove(last, view, as_of)) is not None:
                lineage.prove(segment, _crc(one.records[segment.last_offset]))
        return lineage

    def _noted(self, state: ClaimState, index: int) -> ClaimState:
        """Let a leader note what it may delete, if the last manifest that it knows is of its own epoch."""
        one = state.clusters[index]
        last = self._chains.values[one.chain].last
        if last is None or last.rank != (self._bounds.claims[index], one.epoch):
            return state
        if not self._may_write(index, one):
            return state
        bound = at_once(plan.bounding(self._visible_to(index, one, last), _view(one)))
        return _with(state, index, one._replace(tiered=max(one.tiered, bound)))

    def _visible_to(self, index: int, one: _Cluster, last: Manifest) -> Manifest:
        lineage = self._lineage_of(index, one, last)
        return lineage.own(last, len(one.records), _as_of(one), lambda: _view(one))

    def _uploaded(
        self, state: ClaimState, index: int, one: _Cluster, wanted: plan.LocalSegment
    ) -> ClaimState:
        base, (epoch, _) = wanted.base_offset, one.records[wanted.base_offset]
        entry = RemoteSegment(
            base, base, base, 1, 1, False, f"{state.attempts}", ((epoch, base),), _crc(one.records[base])
        )
        objects = self._stored.values[state.stored].objects
        objects = objects | {entry.log_name: (one.records[base],), entry.index_name: ()}
        after = _with(state, index, one._replace(copied=entry))
        return after._replace(stored=self._number_of_objects(objects), attempts=state.attempts + 1)

    def _appends(
        self, state: ClaimState, index: int, name: str, following: Manifest
    ) -> Iterator[tuple[Step, ClaimState]]:
        one, before = state.clusters[index], self._stored.values[state.stored].last
        chain, is_named = self._copied_chain(one, state), False
        try:
            is_named = without_waiting(chain.append(LeaderEpoch(one.epoch), following))
        except Deposed:
            one = one._replace(copied=None)
        if is_named and name == "name":
            one = one._replace(copied=None)
        after = _with(state, index, one._replace(chain=self._number_of(chain)))
        after = after._replace(stored=self._number_of_objects(self._store.objects))
        if is_named and before is not None and before.claim > self._bounds.claims[index]:
            after = after._replace(violation=Violation(STOPS, f"cluster {index} behind {before.claim}"))
        if is_named:
            after = self._noted(after, index)
        if after != state:
            yield (name, index, 0), after

    # ── chains and the store ────────────────────────────────────────────────────────────────────
    def _copied_chain(self, one: _Cluster, state: ClaimState) -> Chain:
        """Return a chain that may be called; what it does to the store is in that of this model."""
        self._store.begin(self._stored.values[state.stored].objects, Fate.DONE)
        return copy.copy(self._chains.values[one.chain])

    def _new_chain(self, index: int) -> int:
        return self._number_of(Chain(self._store, FOLDER, f"{index}", self._bounds.claims[index]))

    def _number_of(self, chain: Chain) -> int:
        last = chain.last
        others = tuple(value for value in vars(chain).values() if value is not last)
        return self._chains.number_of(chain, (last and encode_manifest(last), others))

    def _number_of_objects(self, objects: dict[str, Content]) -> int:
        return self._stored.number_of(Stored(objects), tuple(sorted(objects.items())))

    # ── judging ─────────────────────────────────────────────────────────────────────────────────
    def violation(self, state: ClaimState) -> Violation | None:
        """Return the first property that does not hold in ``state``, or None."""
        if state.violation is not None:
            return state.violation
        stored = self._stored.values[state.stored]
        for index, one in enumerate(state.clusters):
            if (found := self._violation_of(index, one, stored)) is not None:
                return found
        return None

    def _violation_of(self, index: int, one: _Cluster, stored: Stored) -> Violation | None:
        chain, last = self._chains.values[one.chain], stored.last
        try:
            chain.check_may_read()
            may_read = chain.last
        except ObjectStoreError:
            may_read = None
        if may_read is not None:
            visible = self._visible_to(index, one, may_read)
            for offset in range(one.local):
                found = _read(visible, stored, offset)
                if found not in (None, one.records[offset]):
                    return Violation(OWN, f"cluster {index} reads {found} at offset {offset}")
        if last is None or last.claim != self._bounds.claims[index]:
            return None
        if last.rank == (last.claim, one.epoch) and last.writer == f"{index}":
            named = [content for segment in last.segments for content in stored.contents[segment.id]]
            if tuple(named) != one.records[: len(named)]:
                return Violation(ONCE, f"cluster {index}: {named}")
        if len(set(self._bounds.claims)) > 1:
            visible = self._visible_to(index, one, last)
            for offset in range(one.local):
                if _read(visible, stored, offset) != one.records[offset]:
                    return Violation(HELD, f"offset {offset} of cluster {index}")
        return None


def claim_violation(world: ClaimWorld, state: ClaimState) -> Violation | None:
    """Return the first property that does not hold in ``state``, or None."""
    return world.violation(state)


def _read(visible: Manifest, stored: Stored, offset: int) -> Record | None:
    place = visible.holding(offset)
    if place is None:
        return None
    segment = visible.segments[place]
    return stored.contents[segment.id][offset - segment.base_offset]


def _with(state: ClaimState, index: int, one: _Cluster) -> ClaimState:
    return state._replace(clusters=(*state.clusters[:index], one, *state.clusters[index + 1 :]))


def _as_of(one: _Cluster) -> AsOf:
    return AsOf(one.epoch, 0)


def _crc(record: Record) -> int:
    return record[1]


def _view(one: _Cluster) -> plan.LogView:
    end = len(one.records)
    sealed = [plan.LocalSegment(base, base + 1, 1) for base in range(one.local, end - 1)]
    epochs = list[tuple[int, int]]()
    for offset, (epoch, _) in enumerate(one.records):
        if not epochs or epochs[-1][0] != epoch:
            epochs.append((epoch, offset))
    if not epochs or epochs[-1][0] != one.epoch:
        epochs.append((one.epoch, one.began))
    return plan.LogView(0, one.local, end, end, epochs, sealed, end - one.local)
