"""A topic: its name, its id, its partitions; and the rules for names.

Names are used in folder names (``<topic>-<partition>``) and in metric names, in which ``.`` and ``_`` are the
same character: a topic whose name differs from another's only there would share its metrics, and is rejected.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field

from nilometer.cluster.partition_state import PartitionState
from nilometer.identifiers import TopicId, uuid_from_text

NAME_LENGTH_MAX = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)


@dataclass(slots=True)
class Topic:
    """A topic's current state. Only the image changes it; other code must not."""

    name: str
    id: TopicId
    partitions: list[PartitionState] = field(default_factory=list[PartitionState])
    """The state of each partition; the index is the partition number."""
    uuid: uuid.UUID = field(init=False)

    def __post_init__(self) -> None:
        self.uuid = uuid_from_text(self.id)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def partition(self, index: int) -> PartitionState | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


def why_invalid_name(name: str) -> str | None:
    """Return why a topic name is invalid; None if it is valid."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL_NAME.match(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Return a key that is equal for names that collide."""
    return name.replace(".", "_")


class TopicTable:
    """All topics, indexed by name, by id (text and UUID) and by collision key."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[TopicId, Topic] = {}
        self.by_uuid: dict[uuid.UUID, Topic] = {}
        self._names_by_collision_key: dict[str, str] = {}

    def add(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.id] = topic
        self.by_uuid[topic.uuid] = topic
        self._names_by_collision_key[collision_key(topic.name)] = topic.name

    def remove(self, topic: Topic) -> None:
        del self.by_name[topic.name]
        del self.by_id[topic.id]
        del self.by_uuid[topic.uuid]
        self._names_by_collision_key.pop(collision_key(topic.name), None)

    def in_order(self) -> list[Topic]:
        return [self.by_name[name] for name in sorted(self.by_name)]

    def colliding(self, name: str) -> str | None:
        return self._names_by_collision_key.get(collision_key(name))
