"""The table of metadata images in the model of settings. Folds (applies) entries to an image, and resolves
the settings that a broker derives from it.

An image is referred to by its index in the table (the ``int`` parameters and results named ``image``,
``number`` or ``after``). The entry number that an image contains, the position of its last entry in the
metadata log, is ignored: images that differ in nothing else have the same index, so that different sequences
of steps lead to the same state. Each image is stored as its snapshot, from which it is decoded when needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

from nilometer.cluster.controller import (
    BrokerRegistration,
    NewTopic,
    controllership_entry,
    decide_broker_up,
    decide_brokers_down,
    decide_cluster_defaults,
)
from nilometer.cluster.controller.decision import Decision
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
from nilometer.cluster.records import ConfigResourceType
from nilometer.config.definition import ConfigValue
from nilometer.identifiers import NO_BROKER_EPOCH, BrokerId, EntryNumber, Incarnation
from nilometer.invariants import InvariantBroken
from nilometer.replication import check
from nilometer.simulation.model_check.properties import Violation
from nilometer.simulation.model_check.settings_requests import CLUSTER_DEFAULTS, FILE, chance, create
from nilometer.storage import LogConfig
from nilometer.storage.topic_config import TOPIC_CONFIG

SNAPSHOT_IS_WHOLE = "a snapshot gives back the image that it was made of"
ALL_OR_NOTHING = "an entry that cannot be applied changes nothing"
HELD_BACK = "a replica is eligible only while the high watermark waits for it"

_FOLDING = (BrokerId(1), BrokerId(2))
_DEAD = BrokerId(4)
"""A broker that was in the ISR of the only partition of topic ``t``; since it died, it is in the ELR."""

V = TypeVar("V")
Values = tuple[tuple[str, ConfigValue | None], ...]


class Numbered(Generic[V]):
    """A table that gives each different value an index, counting from 0; equal values have the same index."""

    def __init__(self) -> None:
        self.values: list[V] = []
        self._numbers: dict[V, int] = {}

    def number_of(self, value: V) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Folded(NamedTuple):
    image: int
    can_be_folded: bool = True
    changes_settings: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """The settings of each topic as a broker uses them, and the errors of those it could not apply."""

    topics: tuple[tuple[str, Values], ...]
    errors: tuple[str, ...]


class SettingsImages:
    def __init__(self) -> None:
        self.broker_ids = _FOLDING
        self.applied: Numbered[Applied] = Numbered()
        self._contents: Numbered[bytes] = Numbered()
        self._entries: Numbered[bytes] = Numbered()
        self._images: dict[int, ClusterImage] = {}
        self._folds: dict[tuple[int, int], Folded] = {}
        self._fresh: dict[tuple[int, BrokerId], int] = {}
        self._violations: dict[int, Violation | None] = {}
        self.first = self._first()

    def image(self, number: int) -> ClusterImage:
        """Return the image with index ``number``, which the caller must not change."""
        if number not in self._images:
            self._images[number] = self._made(number)
        return self._images[number]

    def entry(self, entry: Entry) -> int:
        return self._entries.number_of(encode_entry(entry))

    def fold(self, image: int, entry: int) -> Folded:
        """Fold the entry as a broker does: check it first, then apply it; return the image after it."""
        key = (image, entry)
        if key not in self._folds:
            self._folds[key] = self._fold(image, self._entries.values[entry])
        return self._folds[key]

    def applied_after_start(self, image: int, broker_id: BrokerId) -> int:
        key = (image, broker_id)
        if key not in self._fresh:
            self._fresh[key] = self._apply(image, broker_id, None)
        return self._fresh[key]

    def applied_after(self, image: int, broker_id: BrokerId, before: int) -> int:
        """Return the settings of a broker for ``image``; a setting it cannot apply keeps its earlier value.

        ``before``, the settings that it had, and the result are indexes in the table ``applied``.
        """
        return self._apply(image, broker_id, self.applied.values[before])

    def violation(self, number: int) -> Violation | None:
        """Return the violation found in the image alone, or None."""
        if number not in self._violations:
            self._violations[number] = _of_eligible_replicas(self.image(number))
        return self._violations[number]

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
