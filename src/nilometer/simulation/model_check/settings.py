"""The model of settings: two administrators, changing controllers, and brokers that fold metadata entries.

To fold an entry is to apply it to the broker's image. The decisions, the fold, snapshots and the definitions
of settings are those of the product. One administrator changes topics, the other brokers, in every order.
Records that need not be in one entry are separate entries, so that the controller
may be deposed between any two. Brokers fold entries at any later time and restart from a snapshot. An entry
that no broker can fold (a foreign entry) may come at any time.

:func:`settings_violation` checks each state; a step checks its own properties and raises InvariantBroken. Not
modelled: configuration files that differ from broker to broker.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.cluster.controller.brokers import BrokerRegistration, decide_broker_up, decide_brokers_down
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.controllership import controllership_entry, decide_cluster_defaults
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.controller.topics import CreatedTopic, NewTopic, TopicDefaults, decide_create_topics
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import (
    BadEntry,
    Entry,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    entries_of,
)
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import BrokerFenced, ConfigChanged, ConfigResourceType
from nilometer.config import ConfigValue
from nilometer.groups import settings
from nilometer.identifiers import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, EntryNumber, Incarnation
from nilometer.invariants import InvariantBroken, check
from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.model_check.explorer import Step, Violation
from nilometer.simulation.model_check.tables import Table, remembered
from nilometer.storage.topic_config import TOPIC_CONFIG, LogConfig

# The requests of the two administrators in the model of settings, and the controller's decisions on them.

MIN_ISR = "min.insync.replicas"
FILE = BrokerConfig({"node.id": "1", MIN_ISR: "2"})
"""The configuration file of every broker, which differs only in the id."""
CLUSTER_DEFAULTS = {MIN_ISR: "2"}
"""The cluster-wide defaults, which must be equal on all brokers; the values are those of the file."""
DEFINITIONS = ConfigDefinitions(
    topic=TOPIC_CONFIG,
    broker=BROKER_CONFIG_DEFINITION,
    group=settings.definition_of(FILE.groups),
    inherited_of=FILE.topic_defaults,
)

Changes = Mapping[ConfigResource, Mapping[str, str | None]]
"""Resource -> key -> new value; None removes the setting."""
Request = Changes | NewTopic

_T = ConfigResource(ConfigResourceType.TOPIC, "t")
_ALL = ConfigResource(ConfigResourceType.BROKER, "")
_ONE = ConfigResource(ConfigResourceType.BROKER, "2")
_MIN, _MAX = "min.compaction.lag.ms", "max.compaction.lag.ms"
_MIN_OF_BROKERS, _MAX_OF_BROKERS = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"

_OF_TOPICS: tuple[Request, ...] = (
    {_T: {_MIN: "2"}},
    {_T: {_MAX: "1"}},
    {_T: {_MIN: "2", _MAX: "3"}},
    {_T: {_MIN: None, _MAX: None}},
    {_T: {MIN_ISR: "1"}},
    {_T: {MIN_ISR: None}},
    NewTopic(name="u", assignments=((0, (1, 2)),), configs={_MIN: "2"}),
)
_OF_BROKERS: tuple[Request, ...] = (
    {_ALL: {_MAX_OF_BROKERS: "1"}},
    {_ALL: {_MIN_OF_BROKERS: "2"}},
    {_ALL: {_MIN_OF_BROKERS: None, _MAX_OF_BROKERS: None}},
    {_ONE: {_MAX_OF_BROKERS: "1"}},
    {_ALL: {MIN_ISR: "1"}},
    {_ALL: {MIN_ISR: None}},
    {_ONE: {MIN_ISR: "1"}},
)
_OF_BOTH_AT_ONCE: tuple[Request, ...] = (
    {_T: {_MIN: "2"}, _ALL: {_MAX_OF_BROKERS: "1"}},
    {_ALL: {_MIN_OF_BROKERS: "2"}, _ONE: {_MAX_OF_BROKERS: "1"}},
    {_T: {MIN_ISR: "1"}, _ALL: {MIN_ISR: "1"}},
    {_T: {MIN_ISR: None}, _ALL: {MIN_ISR: "1"}},
    {_T: {MIN_ISR: None}, _ALL: {MIN_ISR: "2"}},
)
REQUESTS = (_OF_TOPICS, (*_OF_BROKERS, *_OF_BOTH_AT_ONCE))
"""The possible requests of each administrator: of topics, of brokers."""


def decide(image: ClusterImage, request: Request) -> tuple[Decision[object], tuple[Outcome, ...]]:
    """Return the controller's decision, and the outcome of each part of the request."""
    if isinstance(request, NewTopic):
        created = create(image, request)
        return created, tuple(topic.outcome for topic in created.reply)
    altered = decide_alter_configs(image, _parts(request), definitions=DEFINITIONS)
    return altered, tuple(outcome for _, outcome in altered.reply)


def create(image: ClusterImage, topic: NewTopic) -> Decision[tuple[CreatedTopic, ...]]:
    return decide_create_topics(
        image,
        [topic],
        config_definition=TOPIC_CONFIG,
        chance=chance(topic.name),
        defaults=TopicDefaults(),
        inherited_of=FILE.topic_defaults,
    )


def chance(purpose: str) -> SeededEntropy:
    """Return entropy seeded by ``purpose``, so that a request on an image always has the same result."""
    return SeededEntropy(random.Random(purpose))


def _parts(request: Changes) -> Sequence[AlterResource]:
    return [
        AlterResource(
            resource,
            [
                ConfigAlteration(key, ConfigOperation.DELETE if text is None else ConfigOperation.SET, text)
                for key, text in texts.items()
            ],
        )
        for resource, texts in request.items()
    ]


# The table of metadata images in the model of settings. Folds (applies) entries to an image, and resolves
# the settings that a broker derives from it.
#
# An image is referred to by its index in the table (the ``int`` parameters and results named ``image``,
# ``number`` or ``after``). The entry number that an image contains, the position of its last entry in the
# metadata log, is ignored: images that differ in nothing else have the same index, so that different
# sequences of steps lead to the same state. Each image is stored as its snapshot, from which it is decoded
# when needed.

SNAPSHOT_IS_WHOLE = "a snapshot gives back the image that it was made of"
ALL_OR_NOTHING = "an entry that cannot be applied changes nothing"
HELD_BACK = "a replica is eligible only while the high watermark waits for it"

_FOLDING = (BrokerId(1), BrokerId(2))
_DEAD = BrokerId(4)
"""A broker that was in the ISR of the only partition of topic ``t``; since it died, it is in the ELR."""

Values = tuple[tuple[str, ConfigValue | None], ...]


class Folded(NamedTuple):
    image: int
    can_be_folded: bool = True
    changes_settings: bool = False
    error: str = ""


class Applied(msgspec.Struct, frozen=True):
    """The settings of each topic as a broker uses them, and the errors of those it could not apply."""

    topics: tuple[tuple[str, Values], ...]
    errors: tuple[str, ...]


class SettingsImages:
    def __init__(self) -> None:
        self.broker_ids = _FOLDING
        self.applied: Table[Applied] = Table()
        self.answers: defaultdict[str, dict[tuple[Any, ...], Any]] = defaultdict(dict)
        self._contents: Table[bytes] = Table()
        self._entries: Table[bytes] = Table()
        self.first = self._first()

    @remembered
    def image(self, number: int) -> ClusterImage:
        """Return the image with index ``number``, which the caller must not change."""
        return self._made(number)

    def entry(self, entry: Entry) -> int:
        return self._entries.number_of(encode_entry(entry))

    @remembered
    def fold(self, image: int, entry: int) -> Folded:
        """Fold the entry as a broker does: check it first, then apply it; return the image after it."""
        return self._fold(image, self._entries.values[entry])

    @remembered
    def applied_after_start(self, image: int, broker_id: BrokerId) -> int:
        return self._apply(image, broker_id, None)

    def applied_after(self, image: int, broker_id: BrokerId, before: int) -> int:
        """Return the settings of a broker for ``image``; a setting it cannot apply keeps its earlier value.

        ``before``, the settings that it had, and the result are indexes in the table ``applied``.
        """
        return self._apply(image, broker_id, self.applied.values[before])

    @remembered
    def violation(self, number: int) -> Violation | None:
        """Return the violation found in the image alone, or None."""
        return _of_eligible_replicas(self.image(number))

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _first(self) -> int:
        """Return the first image: a topic with two replicas, one of them down.

        min.insync.replicas=2 comes from the brokers' configuration file.
        """
        image = ClusterImage()

        def enact(decision: Decision[object]) -> None:
            for entry in entries_of(decision.units, image.controllership):
                image.apply_entry(EntryNumber(image.number + 1), entry)

        image.apply_entry(
            EntryNumber(0),
            controllership_entry(image, _FOLDING[0], Incarnation("term-0"), chance("controllership")),
        )
        enact(decide_cluster_defaults(image, CLUSTER_DEFAULTS))
        for broker_id in (*_FOLDING, _DEAD):
            enact(decide_broker_up(image, _registration(broker_id)))
        enact(create(image, NewTopic(name="t", assignments=((0, (_FOLDING[0], _DEAD)),))))
        enact(decide_brokers_down(image, [_DEAD]))
        return self._number_of(image)

    def _number_of(self, image: ClusterImage) -> int:
        data = encode_snapshot(msgspec.structs.replace(image.snapshot(), number=EntryNumber(0)))
        return self._contents.number_of(data)

    def _made(self, number: int) -> ClusterImage:
        return ClusterImage.from_snapshot(decode_snapshot(self._contents.values[number]))

    def _fold(self, number: int, data: bytes) -> Folded:
        image, at = self._made(number), EntryNumber(1)
        try:
            entry = decode_entry(data)
            image.check_entry(at, entry)
            check(self._number_of(image) == number, ALL_OR_NOTHING, entry)
            delta = image.apply_entry(at, entry)
        except (BadEntry, InvariantBroken) as error:
            check(self._number_of(image) == number, ALL_OR_NOTHING, error)
            return Folded(number, can_be_folded=False, error=str(error))
        after = self._number_of(image)
        image.number = EntryNumber(0)
        check(self._made(after) == image, SNAPSHOT_IS_WHOLE)
        return Folded(after, changes_settings=bool(delta.configs or delta.topics_created))

    def _apply(self, number: int, broker_id: BrokerId, before: Applied | None) -> int:
        image, last = self.image(number), dict(before.topics) if before is not None else {}
        inherited = FILE.topic_defaults(
            image.config(ConfigResourceType.BROKER, ""),
            image.config(ConfigResourceType.BROKER, str(broker_id)),
        )
        topics: list[tuple[str, Values]] = []
        errors: list[str] = []
        for topic in image.topics():
            texts = image.config(ConfigResourceType.TOPIC, topic.name)
            resolved = TOPIC_CONFIG.resolve(texts, inherited, dict(last.get(topic.name, ())) or None)
            LogConfig.of(resolved.values)
            topics.append((topic.name, tuple(resolved.values.items())))
            errors.extend(f"topic {topic.name}: {error}" for error in resolved.errors)
        return self.applied.number_of(Applied(tuple(topics), tuple(errors)))


def _registration(broker_id: BrokerId) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker_id,
        incarnation=Incarnation(f"broker-{broker_id}"),
        endpoints=(),
        previous_broker_epoch=NO_BROKER_EPOCH,
        features=SUPPORTED_FEATURES,
    )


def _of_eligible_replicas(image: ClusterImage) -> Violation | None:
    """Return a violation if a partition with min.insync.replicas ISR members has a nonempty ELR.

    Its high watermark advances without the members of the ELR, so these must not be eligible.
    """
    for topic in image.topics():
        for state in topic.partitions:
            needed = min(image.min_insync_replicas(topic.name), len(state.replicas))
            if state.elr and len(state.isr) >= needed:
                detail = f"{state} of topic {topic.name}, which needs {needed} in sync"
                return Violation(HELD_BACK, detail)
    return None


APPLICABLE = "every broker can apply every accepted setting"
SAME_IMAGE = "brokers that applied the same entries have the same image"
SAME_VALUES = "effective settings depend on the image alone, not on the order of events at a broker"
ONE_MIN_ISR = "min.insync.replicas is the same for the controller and every leader"
REFUSED_CHANGES_NOTHING = "a rejected request changes nothing"
STALE_CHANGES_NOTHING = "an entry of a deposed controller changes nothing"


class SettingsBounds(msgspec.Struct, frozen=True, kw_only=True):
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
        self.answers: defaultdict[str, dict[tuple[Any, ...], Any]] = defaultdict(dict)

    def applied(self, broker: FoldingBroker) -> Applied:
        return self.images.applied.values[broker.applied]

    @remembered
    def violation_of(self, index: int, broker: FoldingBroker) -> Violation | None:
        """Return the violation found in the state of one broker alone, or None."""
        found = self.images.violation(broker.image)
        return found or _of_values(self, self._followers[index], broker)

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

    @remembered
    def _decide(self, image: int, administrator: int, number: int) -> tuple[int, ...]:
        now = self.images.image(image)
        decision, outcomes = decide(now, REQUESTS[administrator][number])
        check(any(outcome.ok for outcome in outcomes) or not decision.units, REFUSED_CHANGES_NOTHING)
        entries = entries_of(decision.units, now.controllership, target=1)
        return tuple(self.images.entry(entry) for entry in entries)

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
