"""The model of settings: two administrators, changing controllers, and brokers that fold metadata entries.

To fold an entry is to apply it to the broker's image. The decisions, the fold, snapshots and the definitions
of settings are those of the product. One administrator changes topics, the other brokers, in every order
(:mod:`settings_requests`). Records that need not be in one entry are separate entries, so that the controller
may be deposed between any two. Brokers fold entries at any later time and restart from a snapshot. An entry
that no broker can fold (a foreign entry) may come at any time.

:func:`settings_violation` checks each state; a step checks its own properties and raises InvariantBroken. Not
modelled: configuration files that differ from broker to broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nilometer.cluster.controller import controllership_entry
from nilometer.cluster.entries import Entry, entries_of
from nilometer.cluster.records import BrokerFenced, ConfigChanged, ConfigResourceType
from nilometer.identifiers import BrokerEpoch, BrokerId, Incarnation
from nilometer.replication import check
from nilometer.simulation.model_check.explorer import Step
from nilometer.simulation.model_check.properties import Violation
from nilometer.simulation.model_check.settings_images import Applied, SettingsImages
from nilometer.simulation.model_check.settings_requests import REQUESTS, chance, decide

APPLICABLE = "every broker can apply every accepted setting"
SAME_IMAGE = "brokers that applied the same entries have the same image"
SAME_VALUES = "effective settings depend on the image alone, not on the order of events at a broker"
ONE_MIN_ISR = "min.insync.replicas is the same for the controller and every leader"
REFUSED_CHANGES_NOTHING = "a rejected request changes nothing"
STALE_CHANGES_NOTHING = "an entry of a deposed controller changes nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsBounds:
    """How many events of each kind may happen."""

    requests: int = 1
    """Requests of each administrator."""
    controller_changes: int = 1
    restarts: int = 1
    foreign_entries: int = 1
    """Entries that no broker can fold; no other entry follows one."""
    followers: tuple[int, ...] = (1, 2)
    """The brokers that are modelled, out of 1 and 2. They do not influence each other: two models with one
    broker each find the violations of one model with both, in far fewer states."""


class FoldingBroker(NamedTuple):
    image: int
    applied: int
    behind: int
    """Number of entries that it has not folded yet."""
    blocked: bool = False


class SettingsState(NamedTuple):
    newest: int
    """The number of the image after all entries that can be folded."""
    tail: tuple[int, ...]
    """The entries since the snapshot or, if that is older, the position of the slowest broker."""
    brokers: tuple[FoldingBroker, ...]
    snapshot: int
    """The number of the snapshot's image."""
    since_snapshot: int
    """Number of entries after the snapshot."""
    pending: tuple[int, ...] = ()
    """The entries that the controller has decided and not appended yet."""
    late: tuple[int, ...] = ()
    """The entry that a deposed controller has sent and that may still arrive."""
    asked: tuple[int, ...] = (0,) * len(REQUESTS)
    controller_changes: int = 0
    restarts: int = 0
    foreign_entries: int = 0


class SettingsWorld:
    """The model, to be visited by :func:`~nilometer.simulation.model_check.explorer.explore`."""

    def __init__(self, bounds: SettingsBounds) -> None:
        self.bounds = bounds
        self.images = SettingsImages()
        self._followers = tuple(BrokerId(broker_id) for broker_id in bounds.followers)
        self._decided: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._judged: dict[tuple[int, FoldingBroker], Violation | None] = {}

    def applied(self, broker: FoldingBroker) -> Applied:
        return self.images.applied.values[broker.applied]

    def violation_of(self, index: int, broker: FoldingBroker) -> Violation | None:
        """Return the violation found in the state of one broker alone, or None."""
        key = (index, broker)
        if key not in self._judged:
            found = self.images.violation(broker.image)
            self._judged[key] = found or _of_values(self, self._followers[index], broker)
        return self._judged[key]

    def first_state(self) -> SettingsState:
        first = self.images.first
        brokers = tuple(
            FoldingBroker(first, self.images.applied_after_start(first, broker_id), 0)
            for broker_id in self._followers
        )
        return SettingsState(first, (), brokers, first, 0)

    def steps(self, state: SettingsState) -> Iterator[tuple[Step, SettingsState]]:
        """Yield every possible next step with the state it leads to."""
        yield from self._steps_of_brokers(state)
        if state.foreign_entries:
            return  # the controller cannot fold the entry either
        if state.pending:
            after = self._appended(state, state.pending[0])
            yield ("append", 0, 0), after._replace(pending=state.pending[1:])
        else:
            yield from self._requests(state)
        if state.late:
            after = self._appended(state, state.late[0])
            check(after.newest == state.newest, STALE_CHANGES_NOTHING)
            yield ("late-append", 0, 0), after._replace(late=())
        if state.controller_changes < self.bounds.controller_changes:
            yield ("depose", 0, 0), self._deposed(state)
        if state.since_snapshot and state.restarts < self.bounds.restarts:
            yield ("snapshot", 0, 0), _tidied(state._replace(snapshot=state.newest, since_snapshot=0))
        if state.foreign_entries < self.bounds.foreign_entries:
            yield ("foreign", 0, 0), self._with_foreign_entry(state)

    # ── brokers ─────────────────────────────────────────────────────────────────────────────────
    def _steps_of_brokers(self, state: SettingsState) -> Iterator[tuple[Step, SettingsState]]:
        for index, broker in enumerate(state.brokers):
            if broker.behind and not broker.blocked:
                yield ("fold", index, 0), _with_broker(state, index, self._folded(state, index, broker))
            if state.restarts < self.bounds.restarts:
                applied = self.images.applied_after_start(state.snapshot, self._followers[index])
                restarted = FoldingBroker(state.snapshot, applied, state.since_snapshot)
                after = _with_broker(state, index, restarted)
                yield ("restart", index, 0), after._replace(restarts=state.restarts + 1)

    def _folded(self, state: SettingsState, index: int, broker: FoldingBroker) -> FoldingBroker:
        folded = self.images.fold(broker.image, state.tail[-broker.behind])
        if not folded.can_be_folded:
            return broker._replace(image=folded.image, blocked=True)
        applied = broker.applied
        if folded.changes_settings:
            applied = self.images.applied_after(folded.image, self._followers[index], broker.applied)
        return FoldingBroker(folded.image, applied, broker.behind - 1)

    # ── administrators and controllers ──────────────────────────────────────────────────────────
    def _requests(self, state: SettingsState) -> Iterator[tuple[Step, SettingsState]]:
        for administrator, requests in enumerate(REQUESTS):
            if state.asked[administrator] >= self.bounds.requests:
                continue
            asked = list(state.asked)
            asked[administrator] += 1
            for number in range(len(requests)):
                entries = self._decide(state.newest, administrator, number)
                yield ("ask", administrator, number), state._replace(pending=entries, asked=tuple(asked))

    def _decide(self, image: int, administrator: int, number: int) -> tuple[int, ...]:
        key = (image, administrator, number)
        if key not in self._decided:
            now = self.images.image(image)
            decision, outcomes = decide(now, REQUESTS[administrator][number])
            check(any(outcome.ok for outcome in outcomes) or not decision.units, REFUSED_CHANGES_NOTHING)
            entries = entries_of(decision.units, now.controllership, target=1)
            self._decided[key] = tuple(self.images.entry(entry) for entry in entries)
        return self._decided[key]

    def _appended(self, state: SettingsState, entry: int) -> SettingsState:
        folded = self.images.fold(state.newest, entry)
        check(folded.can_be_folded, "the controller decides only entries that can be applied", folded.error)
        brokers = tuple(broker._replace(behind=broker.behind + 1) for broker in state.brokers)
        return _tidied(
            state._replace(
                newest=folded.image,
                tail=(*state.tail, entry),
                brokers=brokers,
                since_snapshot=state.since_snapshot + 1,
            )
        )

    def _deposed(self, state: SettingsState) -> SettingsState:
        """Return the state with the next broker as controller.

        The first pending entry of its predecessor may still arrive; its other entries are dropped.
        """
        number = state.controller_changes + 1
        holder = self.images.broker_ids[number % len(self.images.broker_ids)]
        image = self.images.image(state.newest)
        entry = controllership_entry(image, holder, Incarnation(f"term-{number}"), chance("controllership"))
        after = self._appended(state, self.images.entry(entry))
        return after._replace(pending=(), late=state.pending[:1], controller_changes=number)

    def _with_foreign_entry(self, state: SettingsState) -> SettingsState:
        """Append an entry whose second record cannot be applied; its first one could."""
        controllership = self.images.image(state.newest).controllership
        good = ConfigChanged(
            resource_type=ConfigResourceType.TOPIC, resource_name="t", key="retention.ms", value="1"
        )
        bad = BrokerFenced(broker_id=BrokerId(99), broker_epoch=BrokerEpoch(1))
        entry = Entry(
            controller_id=controllership.controller_id,
            controller_incarnation=controllership.incarnation,
            controller_epoch=controllership.controller_epoch,
            records=(good, bad),
        )
        number = self.images.entry(entry)
        check(not self.images.fold(state.newest, number).can_be_folded, "a broken entry cannot be applied")
        brokers = tuple(broker._replace(behind=broker.behind + 1) for broker in state.brokers)
        return state._replace(
            tail=(*state.tail, number),
            brokers=brokers,
            since_snapshot=state.since_snapshot + 1,
            foreign_entries=state.foreign_entries + 1,
            pending=(),
            late=(),
        )


def settings_violation(world: SettingsWorld, state: SettingsState) -> Violation | None:
    """Return the first property that does not hold in ``state``, or None."""
    for index, broker in enumerate(state.brokers):
        if broker.behind == state.foreign_entries and broker.image != state.newest:
            return Violation(SAME_IMAGE, f"follower {index} differs from the controller")
        if (found := world.violation_of(index, broker)) is not None:
            return found
    return world.images.violation(state.newest)


def _of_values(world: SettingsWorld, broker_id: BrokerId, broker: FoldingBroker) -> Violation | None:
    applied = world.applied(broker)
    if applied.errors:
        return Violation(APPLICABLE, f"broker {broker_id}: {'; '.join(applied.errors)}")
    fresh = world.images.applied.values[world.images.applied_after_start(broker.image, broker_id)]
    if applied != fresh:
        return Violation(SAME_VALUES, f"broker {broker_id} has {applied}, and {fresh} after a restart")
    image = world.images.image(broker.image)
    for topic, values in applied.topics:
        in_force, of_image = dict(values)["min.insync.replicas"], image.min_insync_replicas(topic)
        if in_force != of_image:
            detail = f"broker {broker_id} has {in_force} for topic {topic}, the controller {of_image}"
            return Violation(ONE_MIN_ISR, detail)
    return None


def _with_broker(state: SettingsState, index: int, broker: FoldingBroker) -> SettingsState:
    brokers = (*state.brokers[:index], broker, *state.brokers[index + 1 :])
    return _tidied(state._replace(brokers=brokers))


def _tidied(state: SettingsState) -> SettingsState:
    """Drop the entries that no broker will read again, so that states which differ only in them are equal."""
    needed = max(state.since_snapshot, *(broker.behind for broker in state.brokers))
    return state._replace(tail=state.tail[len(state.tail) - needed :])
