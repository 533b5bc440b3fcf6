"""The model of a tiered partition: leaders, of which a former one may not know that it is one, followers, the
object store that both write to, and time, in every order.

What is decided is decided by the product: :mod:`nilometer.tier.plan`, and
:class:`~nilometer.tier.chain.Chain` on a store in which each of its calls is one step. The order of a
leader's steps is that of a round of ``RemotePartition`` in ``broker/tiering``; between any two of them
another broker may act. A request to the store may fail, and have had its effect, have it later, or never.

Each record is a batch and counts one byte. Time goes on by whole grace periods; by then a request that failed
has had its effect or never will.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from nilometer.identifiers import LeaderEpoch
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.model_check.explorer import Step, Violation
from nilometer.simulation.model_check.tables import Table
from nilometer.simulation.model_check.tier_store import (
    FOLDER,
    TOPIC,
    Content,
    Fate,
    Late,
    ModelStore,
    Record,
    Stored,
)
from nilometer.steps import at_once, without_waiting
from nilometer.tier import plan
from nilometer.tier.chain import Chain, Deposed
from nilometer.tier.format import (
    HEAD,
    DamagedObject,
    Manifest,
    RemoteSegment,
    encode_manifest,
    manifest_number,
)

READABLE = "a committed record is in the leader's log or in remote storage, and is what was committed"
SAME_LOG = "what the present leader's manifest names are the records of its log"
NAMED_EXIST = "every object that the last manifest names exists"
STABLE = "nothing of an open transaction is in remote storage"
READERS = "an object stays for the grace period after the last manifest that named it"
NO_ORPHANS = "after a sweep every object belongs to the last manifest"
NOT_LOST = "a leader that was in sync finds in remote storage what its log lacks"
KEPT = "what the retention keeps does not expire"
SOUND = "every manifest can be read"


class TierBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the model, and how much may happen in it."""

    rolls: tuple[int, ...] = (1, 1)
    """For each broker, of how many records its segments are: they may differ, as those of real brokers do."""
    values: int = 3
    elections: int = 1
    unclean: int = 0
    """How often a broker may be elected that is not in sync."""
    crashes: int = 0
    losses: int = 0
    """How many requests to the store fail."""
    deletions: int = 0
    """How often a client deletes records."""
    transactions: int = 0
    retention: int = -1
    """How many records are kept; -1: all."""
    grace_periods: int = 0
    """How often time goes on."""


class _Broker(NamedTuple):
    records: tuple[Record, ...] = ()
    """By offset, of the whole log: also of what is only in remote storage or was deleted."""
    start: int = 0
    local: int = 0
    high_watermark: int = 0
    leads: int = -1
    """The epoch in which it believes to lead; -1: none."""
    began: int = 0
    """Where that epoch began in its log."""
    chain: int = 0
    tiered: int = 0
    worked: int = -1
    """The epoch of its last round as a leader."""
    orphans_since: int | None = None
    copied: RemoteSegment | None = None
    """What it has uploaded and not named yet."""
    listed: tuple[str, ...] | None = None
    """What it has found in the store, and has not removed yet."""


class TierState(NamedTuple):
    brokers: tuple[_Broker, ...]
    in_sync: frozenset[int] = frozenset()
    epoch: int = -1
    committed: tuple[Record, ...] = ()
    start: int = 0
    """What is below was deleted, by a client or by the retention."""
    open_from: int | None = None
    """Where the open transaction begins."""
    bucket: int = 0
    late: tuple[Late, ...] = ()
    left: tuple[tuple[str, int], ...] = ()
    """The objects that the last manifest does not name any more, and since when."""
    excused: frozenset[str] = frozenset()
    """What a leader has uploaded after a later one had begun: it is removed after the next election."""
    now: int = 0
    attempts: int = 0
    elections: int = 0
    unclean: int = 0
    crashes: int = 0
    losses: int = 0
    deletions: int = 0
    transactions: int = 0
    violation: Violation | None = None


class TierWorld:
    """A model for :func:`~.explorer.explore`."""

    def __init__(self, bounds: TierBounds) -> None:
        self._bounds = bounds
        self._store = ModelStore()
        self._chains: Table[Chain] = Table()
        self._buckets: Table[Stored] = Table()
        self._calls: dict[tuple[Any, ...], _Called] = {}
        self._judged: dict[tuple[Any, ...], Violation | None] = {}

    def first_state(self) -> TierState:
        bucket = self._bucket_of({})
        brokers = tuple(_Broker(chain=self._new_chain(one, 0)) for one in range(len(self._bounds.rolls)))
        state = TierState(brokers, bucket=bucket)
        return self._elected(state, 0)

    def steps(self, state: TierState) -> Iterator[tuple[Step, TierState]]:
        if state.violation is not None:
            return
        for index, broker in enumerate(state.brokers):
            if broker.leads >= 0:
                yield from self._produces(state, index, broker)
                yield from self._leads(state, index, broker)
            else:
                yield from self._follows(state, index, broker)
            yield from self._sweeps(state, index, broker)
            if broker.high_watermark and (end := self._deletable(state, index, broker)) is not None:
                yield ("delete locally", index, 0), _with(state, index, broker._replace(local=end))
        yield from self._of_the_cluster(state)
        for place, late in enumerate(state.late):
            yield ("arrive", place, 0), self._arrived(state, place, late)
        if state.now < self._bounds.grace_periods:
            yield ("time goes on", 0, 0), state._replace(now=state.now + 1, late=())

    # ── the cluster ─────────────────────────────────────────────────────────────────────────────
    def _of_the_cluster(self, state: TierState) -> Iterator[tuple[Step, TierState]]:
        bounds = self._bounds
        for index, broker in enumerate(state.brokers):
            if broker.leads == -1 and state.elections < bounds.elections:
                if index in state.in_sync:
                    yield ("elect", index, 0), self._elected(state, index)
                elif state.unclean < bounds.unclean:
                    yield ("elect uncleanly", index, 0), self._elected(state, index)
            if state.crashes < bounds.crashes:
                crashed = broker._replace(
                    leads=-1, tiered=0, chain=self._new_chain(index, state.crashes + 1), worked=-1,
                    orphans_since=None, copied=None, listed=None,
                )  # fmt: skip
                if crashed._replace(chain=0) != broker._replace(chain=0):
                    after = _with(state, index, crashed)
                    yield ("crash", index, 0), after._replace(crashes=state.crashes + 1)
        leader = self._leader(state)
        if leader is None:
            return
        index, broker = leader
        if state.in_sync != frozenset({index}) or broker.high_watermark < len(broker.records):
            alone = state._replace(in_sync=frozenset({index}))
            yield ("go on alone", index, 0), _committed(alone, index, len(broker.records))
        if state.deletions < bounds.deletions and broker.start < broker.high_watermark:
            for offset in sorted({broker.start + 1, broker.high_watermark}):
                after = _begins_at(state, index, offset)
                yield ("delete records", index, offset), after._replace(deletions=state.deletions + 1)
        if state.open_from is not None:
            yield ("end a transaction", index, 0), state._replace(open_from=None)
        elif state.transactions < bounds.transactions:
            opened = state._replace(open_from=len(broker.records), transactions=state.transactions + 1)
            yield ("begin a transaction", index, 0), opened

    def _leader(self, state: TierState) -> tuple[int, _Broker] | None:
        return next(((i, one) for i, one in enumerate(state.brokers) if one.leads == state.epoch), None)

    def _elected(self, state: TierState, index: int) -> TierState:
        broker, epoch = state.brokers[index], state.epoch + 1
        is_clean = index in state.in_sync or epoch == 0
        leader = broker._replace(leads=epoch, began=len(broker.records), tiered=0)
        committed = state.committed
        if not is_clean:
            committed = committed[: _common(committed, broker.records)]
        opened = state.open_from
        return _with(state, index, leader)._replace(
            epoch=epoch,
            in_sync=frozenset(range(len(state.brokers))) if epoch == 0 else state.in_sync if is_clean else
            frozenset({index}),
            committed=committed,
            start=state.start if is_clean else min(state.start, len(committed)),
            open_from=None if opened is None else min(opened, len(broker.records)),
            elections=state.elections + (epoch > 0),
            unclean=state.unclean + (not is_clean),
        )  # fmt: skip

    def _produces(self, state: TierState, index: int, broker: _Broker) -> Iterator[tuple[Step, TierState]]:
        produced = 1 + max((value for one in state.brokers for _, value in one.records), default=-1)
        if produced < self._bounds.values:
            record = (broker.leads, produced)
            yield (
                ("produce", index, 0),
                _with(state, index, broker._replace(records=(*broker.records, record))),
            )

    def _follows(self, state: TierState, index: int, broker: _Broker) -> Iterator[tuple[Step, TierState]]:
        leader = self._leader(state)
        if leader is not None:
            followed = self._followed(state, broker, leader[1])
            if followed is not None:
                after = _with(state, index, followed)
                after = after._replace(in_sync=after.in_sync | {index})
                after = _committed(after, leader[0], len(leader[1].records))
                if after != state:
                    yield ("follow", index, 0), after
        looked = self._read(state, index).brokers[index]
        last = self._chains.values[looked.chain].last
        # It may still have to learn of the present leader: then it believes in that of its own log.
        if last is not None and last.leader_epoch == state.epoch:
            looked = self._noted(state, looked, last)
        if looked != broker:
            yield ("look", index, 0), _with(state, index, looked)

    def _followed(self, state: TierState, broker: _Broker, leader: _Broker) -> _Broker | None:
        """Return the follower with its leader's log; None if it cannot begin behind remote storage yet."""
        common = _common(broker.records, leader.records)
        is_short = common < broker.local or common < leader.local
        local = broker.local
        if is_short and leader.local > leader.start:
            last = self._buckets.values[state.bucket].last
            if last is None or last.leader_epoch != state.epoch:
                return None
            if at_once(plan.bounding(last, self._view(state, leader, 0))) < leader.local:
                return None
        if is_short:
            local = leader.local
        return broker._replace(
            records=leader.records,
            start=max(leader.start, broker.start),
            local=max(local, leader.start),
            high_watermark=len(leader.records),
            tiered=min(broker.tiered, common),
        )

    # ── a leader's round ────────────────────────────────────────────────────────────────────────
    def _leads(self, state: TierState, index: int, broker: _Broker) -> Iterator[tuple[Step, TierState]]:
        if broker.leads < state.epoch:
            resigned = broker._replace(leads=-1, tiered=0, copied=None)
            after = _with(state, index, resigned)
            if broker.copied is not None:
                after = self._discarded(after, index, broker.copied)
            yield ("learn of another leader", index, 0), after
        if broker.listed is not None:
            return
        yield from self._looks(state, index, broker)
        chain = self._chains.values[broker.chain]
        if not chain.is_read or broker.worked != broker.leads:
            return
        last = chain.last or plan.first_manifest(TOPIC, broker.start)
        view = self._view(state, broker, index)
        if (claimed := _claim(last, view, broker.leads, state.now)) is not None:
            for after in self._appends(state, index, claimed, CLAIM):
                yield after
            return
        if last.leader_epoch != broker.leads:
            return
        if broker.copied is not None:
            yield from self._names(state, index, broker, last, view)
        elif (wanted := plan.next_to_copy(last, view)) is not None:
            yield from self._uploads(state, index, broker, view, wanted)
        yield from self._expires(state, index, broker, last, view)
        if due := at_once(plan.due_removals(last, state.now, 1)):
            removed = self._removed(state, due)
            yield from self._appends(removed, index, at_once(plan.removing(last, due)), "forget removed")

    def _looks(self, state: TierState, index: int, broker: _Broker) -> Iterator[tuple[Step, TierState]]:
        if broker.worked != broker.leads:
            broker = broker._replace(worked=broker.leads, orphans_since=state.now)
        after = self._read(_with(state, index, broker), index)
        last = self._chains.values[after.brokers[index].chain].last
        after = self._noted_by_leader(after, index, last)
        if after != state:
            yield ("look", index, 0), after

    def _inherited(self, state: TierState, index: int) -> TierState:
        """Let a leader's log begin where an earlier leader has said."""
        broker = state.brokers[index]
        last = self._chains.values[broker.chain].last
        if last is None or broker.leads < 0:
            return state
        view = self._view(state, broker, index)
        same = last.without(plan.divergent(last, view), state.now).segments
        start = plan.inherited_log_start(last, view, broker.leads, same[-1].end_offset if same else 0)
        return _begins_at(state, index, min(start, broker.high_watermark))

    def _noted_by_leader(self, state: TierState, index: int, last: Manifest | None) -> TierState:
        broker = state.brokers[index]
        view = self._view(state, broker, index)
        visible = None if last is None else last.without(plan.divergent(last, view), state.now)
        if _is_lost(visible, view):
            if broker.leads < state.epoch:
                return state
            if not state.unclean:
                found = Violation(
                    NOT_LOST, f"broker {index}: {view.log_start_offset}-{view.local_start_offset}"
                )
                return state._replace(violation=found)
            return _begins_at(state, index, broker.local)  # an operator goes on without them
        if last is not None and last.leader_epoch == broker.leads:
            return _with(state, index, self._noted(state, broker, last, index))
        return state

    def _noted(self, state: TierState, broker: _Broker, last: Manifest, index: int = 0) -> _Broker:
        view = self._view(state, broker, index)
        visible = last.without(plan.divergent(last, view), state.now)
        return broker._replace(tiered=max(broker.tiered, at_once(plan.bounding(visible, view))))

    def _appends(
        self, state: TierState, index: int, following: Manifest, name: str
    ) -> Iterator[tuple[Step, TierState]]:
        """Write the next manifest, with every fate."""
        broker = state.brokers[index]
        following = structs.replace(following, written_ms=state.now, log_start_offset=broker.start)
        for fate in Fate:
            costs = fate in (Fate.UNSURE, Fate.LATE)
            if costs and state.losses >= self._bounds.losses:
                continue
            called = self._call("append", broker, state, fate, following)
            after = self._called(state, index, called)._replace(losses=state.losses + costs)
            if called.outcome is True and name == CLAIM:
                after = _with(after, index, after.brokers[index]._replace(orphans_since=state.now))
            elif called.outcome is False:
                after = self._inherited(after, index)
            if called.outcome is True and broker.copied is not None and name == NAME:
                after = _with(after, index, after.brokers[index]._replace(copied=None))
                after = self._noted_by_leader(after, index, self._chains.values[called.chain].last)
            elif called.outcome == DEPOSED and broker.copied is not None:
                after = _with(after, index, after.brokers[index]._replace(copied=None))
                after = self._discarded(after, index, broker.copied)
            elif called.outcome == FAILED and broker.copied is not None:
                failed = after.brokers[index]._replace(copied=None, orphans_since=state.now)
                after = _with(after, index, failed)
            if after != state:
                yield (f"{name}{fate.value}", index, 0), after

    def _uploads(
        self, state: TierState, index: int, broker: _Broker, view: plan.LogView, wanted: plan.LocalSegment
    ) -> Iterator[tuple[Step, TierState]]:
        base, end = wanted.base_offset, wanted.end_offset
        epochs = plan.epochs_within(view.epochs, base, end)
        entry = RemoteSegment(base, end - 1, base, end - base, 1, False, f"{state.attempts}", epochs)
        content: tuple[tuple[str, Content], ...] = (
            (entry.log_name, broker.records[base:end]),
            (entry.index_name, ()),
        )
        begun = state._replace(attempts=state.attempts + 1)
        last = self._buckets.values[state.bucket].last
        if last is not None and last.leader_epoch > broker.leads:
            begun = begun._replace(excused=begun.excused | {entry.log_name, entry.index_name})
        yield (
            ("upload", index, 0),
            self._written(_with(begun, index, broker._replace(copied=entry)), dict(content)),
        )
        if state.losses < self._bounds.losses:
            failed = _with(begun, index, broker._replace(orphans_since=state.now))
            failed = failed._replace(losses=state.losses + 1)
            torn = self._written(failed, dict(content[:1]))
            late = tuple(Late(name, one) for name, one in content)
            yield ("upload the log file only", index, 0), torn
            yield ("upload late", index, 0), failed._replace(late=(*failed.late, *late))

    def _names(
        self, state: TierState, index: int, broker: _Broker, last: Manifest, view: plan.LogView
    ) -> Iterator[tuple[Step, TierState]]:
        entry = broker.copied
        assert entry is not None
        wanted = plan.next_to_copy(last, view)
        content = self._buckets.values[state.bucket].contents.get(entry.attempt)
        is_unchanged = content == broker.records[entry.base_offset : entry.end_offset]
        if wanted is None or wanted.base_offset != entry.base_offset or not is_unchanged:
            after = self._discarded(_with(state, index, broker._replace(copied=None)), index, entry)
            yield ("discard", index, 0), after
            return
        yield from self._appends(state, index, at_once(last.adding(entry, state.now)), NAME)

    def _discarded(self, state: TierState, index: int, entry: RemoteSegment) -> TierState:
        after = self._read(state, index)
        chain = self._chains.values[after.brokers[index].chain]
        if chain.is_settled and not (chain.last is not None and chain.last.mentions(entry)):
            return self._removed(after, (entry.log_name, entry.index_name))
        return after

    def _expires(
        self, state: TierState, index: int, broker: _Broker, last: Manifest, view: plan.LogView
    ) -> Iterator[tuple[Step, TierState]]:
        retention = plan.Retention(-1, self._bounds.retention)
        start = plan.next_log_start(at_once(plan.expiring(last, view, retention, state.now)), view)
        start = min(start, broker.high_watermark)
        after = _begins_at(state, index, start)
        if start > broker.start and not 0 <= self._bounds.retention <= len(broker.records) - start:
            kept = f"broker {index} begins at {start} of {len(broker.records)}"
            after = after._replace(violation=Violation(KEPT, kept))
        view = self._view(after, after.brokers[index], index)
        found = at_once(plan.expiring(last, view, retention, state.now))
        gone = [one for one in found if one.end_offset <= start]
        if gone:
            yield from self._appends(after, index, last.without(gone, state.now), "expire")

    def _sweeps(self, state: TierState, index: int, broker: _Broker) -> Iterator[tuple[Step, TierState]]:
        since = broker.orphans_since
        if broker.listed is None:
            is_idle = broker.copied is None and broker.leads == broker.worked
            if is_idle and since is not None and state.now > since:
                names = tuple(sorted(self._buckets.values[state.bucket].objects))
                yield ("list", index, 0), _with(state, index, broker._replace(listed=names))
            return
        after = self._read(state, index)
        swept = after.brokers[index]._replace(listed=None)
        chain = self._chains.values[swept.chain]
        last = chain.last
        if last is None or last.leader_epoch != broker.worked or not chain.is_settled:
            yield ("sweep nothing", index, 0), _with(after, index, swept)
            return
        after = _with(after, index, swept._replace(orphans_since=None))
        after = self._removed(after, at_once(plan.orphans(last, broker.listed)))
        yield ("sweep", index, 0), self._without_orphans(after, index)

    def _without_orphans(self, state: TierState, index: int) -> TierState:
        """Check a sweep, unless something may still be written that it could not see."""
        busy = state.late or any(one.copied is not None for one in state.brokers)
        bucket = self._buckets.values[state.bucket]
        if busy or state.violation is not None or bucket.last is None:
            return state
        known = bucket.last.objects | state.excused
        left = [
            one
            for one in bucket.objects
            if not (one in known or one == HEAD or manifest_number(one) is not None)
        ]
        if left and state.brokers[index].leads == state.epoch:
            return state._replace(violation=Violation(NO_ORPHANS, ", ".join(left)))
        return state

    # ── the store ───────────────────────────────────────────────────────────────────────────────
    def _call(
        self,
        method: str,
        broker: _Broker,
        state: TierState,
        fate: Fate = Fate.DONE,
        following: Manifest | None = None,
    ) -> _Called:
        """Return what becomes of the chain and the store when a broker calls ``method`` of its chain."""
        key = (
            method,
            broker.chain,
            state.bucket,
            fate,
            broker.leads,
            following and encode_manifest(following),
        )
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = self._call_now(broker, state, fate, following)
        return found

    def _call_now(self, broker: _Broker, state: TierState, fate: Fate, following: Manifest | None) -> _Called:
        chain = copy.copy(self._chains.values[broker.chain])
        self._store.begin(self._buckets.values[state.bucket].objects, fate)
        outcome: object = None
        try:
            if following is None:
                without_waiting(chain.read())
            else:
                outcome = without_waiting(chain.append(LeaderEpoch(broker.leads), following))
        except Deposed:
            outcome = DEPOSED
        except ObjectStoreError:
            outcome = FAILED
        except DamagedObject as error:
            outcome = Violation(SOUND, str(error))
        return _Called(
            self._number_of(chain), self._bucket_of(self._store.objects), outcome, self._store.late
        )

    def _called(self, state: TierState, index: int, called: _Called) -> TierState:
        after = _with(state, index, state.brokers[index]._replace(chain=called.chain))
        if isinstance(called.outcome, Violation):
            after = after._replace(violation=called.outcome)
        if called.late is not None:
            after = after._replace(late=(*after.late, called.late))
        return self._stored(after, called.bucket)

    def _read(self, state: TierState, index: int) -> TierState:
        called = self._call("read", state.brokers[index], state)
        return self._inherited(self._called(state, index, called), index)

    def _written(self, state: TierState, objects: dict[str, Content]) -> TierState:
        return self._stored(state, self._bucket_of(self._buckets.values[state.bucket].objects | objects))

    def _arrived(self, state: TierState, place: int, late: Late) -> TierState:
        after = state._replace(late=state.late[:place] + state.late[place + 1 :])
        objects = self._buckets.values[state.bucket].objects
        return after if late.name in objects else self._written(after, {late.name: late.content})

    def _removed(self, state: TierState, names: Sequence[str]) -> TierState:
        bucket = self._buckets.values[state.bucket]
        since = dict(state.left)
        for name in names:
            if name in bucket.objects and state.now - since.get(name, state.now - 1) < 1:
                return state._replace(violation=Violation(READERS, name))
        objects = {name: content for name, content in bucket.objects.items() if name not in names}
        return self._stored(state, self._bucket_of(objects))

    def _stored(self, state: TierState, bucket: int) -> TierState:
        if bucket == state.bucket:
            return state
        before, after = self._buckets.values[state.bucket], self._buckets.values[bucket]
        left = [
            (name, since) for name, since in state.left if name in after.objects and name not in after.named
        ]
        left += [(name, state.now) for name in sorted(before.named - after.named) if name in after.objects]
        return state._replace(bucket=bucket, left=tuple(left))

    def _bucket_of(self, objects: dict[str, Content]) -> int:
        key = tuple(sorted(objects.items()))
        return self._buckets.number_of(Stored(objects), key)

    def _new_chain(self, index: int, incarnation: int) -> int:
        return self._number_of(Chain(self._store, FOLDER, f"{index}-{incarnation}"))

    def _number_of(self, chain: Chain) -> int:
        last = chain.last
        others = tuple(value for value in vars(chain).values() if value is not last)
        return self._chains.number_of(chain, (last and encode_manifest(last), others))

    # ── what a broker's log is ──────────────────────────────────────────────────────────────────
    def _view(self, state: TierState, broker: _Broker, index: int) -> plan.LogView:
        sealed = self._sealed(index, broker)
        end, stable = len(broker.records), broker.high_watermark
        if state.open_from is not None:
            stable = min(stable, state.open_from)
        return plan.LogView(
            broker.start, broker.local, end, stable, _epochs(broker), sealed, end - broker.local
        )

    def _sealed(self, index: int, broker: _Broker) -> list[plan.LocalSegment]:
        roll, end = self._bounds.rolls[index], len(broker.records)
        bases = [broker.local, *(at for at in range(broker.local + 1, end) if at % roll == 0)]
        return [
            plan.LocalSegment(base, following, following - base)
            for base, following in itertools.pairwise(bases)
        ]

    def _deletable(self, state: TierState, index: int, broker: _Broker) -> int | None:
        """Return where the local log begins if its first segment is deleted; None if it must stay."""
        sealed = self._sealed(index, broker)
        if not sealed or sealed[0].end_offset > min(broker.high_watermark, broker.tiered):
            return None
        return sealed[0].end_offset

    # ── judging ─────────────────────────────────────────────────────────────────────────────────
    def violation(self, state: TierState) -> Violation | None:
        """Return the first property that does not hold in ``state``, or None."""
        if state.violation is not None:
            return state.violation
        bucket = self._buckets.values[state.bucket]
        if bucket.damage is not None:
            return Violation(SOUND, bucket.damage)
        if missing := bucket.named - bucket.objects.keys():
            return Violation(NAMED_EXIST, ", ".join(sorted(missing)))
        found = self._leader(state)
        if found is None:
            return None
        index, leader = found
        key = (index, leader, state.bucket, state.committed, state.start, state.open_from, state.epoch)
        if key not in self._judged:
            self._judged[key] = self._judge(state, index, leader, bucket)
        return self._judged[key]

    def _judge(self, state: TierState, index: int, leader: _Broker, bucket: Stored) -> Violation | None:
        last, view = bucket.last, self._view(state, leader, index)
        has_begun = last is not None and last.leader_epoch == state.epoch
        if last is not None and has_begun:
            if (found := _differing(last, leader, bucket)) is not None:
                return found
            end = last.segments[-1].end_offset if last.segments else 0
            if state.open_from is not None and end > state.open_from:
                return Violation(STABLE, f"remote storage ends at {end}, stable is {state.open_from}")
        visible = None if last is None else last.without(plan.divergent(last, view), 0)
        known = self._chains.values[leader.chain].last
        has_claimed = known is not None and known.leader_epoch == state.epoch
        # A leader that was elected uncleanly may have cut, before it knew of the next one, what that one has
        # in remote storage only: it is found with the next look.
        if state.unclean and (not has_claimed or state.unclean > 1) and _is_lost(visible, view):
            return None
        offset = leader.start
        if last is not None and not has_begun:  # it has still to learn where an earlier leader began
            offset = max(offset, state.start, last.log_start_offset)
        while offset < min(leader.local, len(state.committed)):
            place = None if visible is None else visible.holding(offset)
            if visible is None or place is None:
                return Violation(READABLE, f"offset {offset} is nowhere")
            segment = visible.segments[place]
            content = bucket.contents[segment.attempt][offset - segment.base_offset :]
            if content != state.committed[offset : segment.end_offset]:
                return Violation(READABLE, f"offset {offset} is {content[:1]}")
            offset = segment.end_offset
        return None


class _Called(NamedTuple):
    """What a call of a chain has come to."""

    chain: int
    bucket: int
    outcome: object
    late: Late | None


DEPOSED, FAILED = "deposed", "failed"
CLAIM, NAME = "claim", "name"


def tier_violation(world: TierWorld, state: TierState) -> Violation | None:
    """Return the first property that does not hold in ``state``, or None."""
    return world.violation(state)


def _claim(last: Manifest, view: plan.LogView, epoch: int, now: int) -> Manifest | None:
    """Return the manifest with which a leader begins, and which cuts what is not in its log."""
    if cut := plan.divergent(last, view):
        return last.without(cut, now)
    if last.leader_epoch == epoch:
        return None
    return last if last.leader_epoch >= 0 or plan.next_to_copy(last, view) is not None else None


def _is_lost(visible: Manifest | None, view: plan.LogView) -> bool:
    return at_once(plan.bounding(visible, view)) < view.local_start_offset


def _differing(last: Manifest, leader: _Broker, bucket: Stored) -> Violation | None:
    for segment in last.segments:
        start = max(segment.base_offset, leader.start)
        content = bucket.contents[segment.attempt][start - segment.base_offset :]
        if content != leader.records[start : segment.end_offset]:
            return Violation(SAME_LOG, f"{segment.log_name} has {content} from offset {start} on")
    return None


def _with(state: TierState, index: int, broker: _Broker) -> TierState:
    brokers = (*state.brokers[:index], broker, *state.brokers[index + 1 :])
    return state._replace(brokers=brokers)


def _common(one: Sequence[Record], two: Sequence[Record]) -> int:
    """Return where two logs differ first."""
    pairs = zip(one, two, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


def _committed(state: TierState, index: int, end: int) -> TierState:
    leader = state.brokers[index]
    return _with(state, index, leader._replace(high_watermark=end))._replace(committed=leader.records[:end])


def _begins_at(state: TierState, index: int, start: int) -> TierState:
    """Return the state in which a broker's log begins at ``start``, if that is further than it does."""
    broker = state.brokers[index]
    if start <= broker.start:
        return state
    after = _with(state, index, broker._replace(start=start, local=max(broker.local, start)))
    is_present = broker.leads == state.epoch
    return after._replace(start=max(state.start, start)) if is_present else after


def _epochs(broker: _Broker) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in range(broker.start, len(broker.records)):
        epoch = broker.records[offset][0]
        if not found or found[-1][0] != epoch:
            found.append((epoch, offset))
    if broker.leads >= 0 and (not found or found[-1][0] != broker.leads):
        found.append((broker.leads, max(broker.began, broker.start)))
    return found
