"""The object store of models of remote storage: what it has at a moment, and as a chain sees it in a call."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from typing import NamedTuple

from nilometer.runtime.object_store import ObjectNotFound, ObjectStoreError
from nilometer.steps import without_waiting
from nilometer.tier.chain import Chain
from nilometer.tier.format import DamagedObject, Manifest, TopicFacts

Record = tuple[int, int]
"""The leader epoch and the value of a record; every value is produced once."""
Content = bytes | tuple[Record, ...]
"""Of an object: a manifest, the head, or the records of a segment."""

FOLDER = ""
TOPIC = TopicFacts("c", "t", "events", 0, 1, {}, 0)
LOG = ".log"


class Fate(enum.Enum):
    """What becomes of a request that creates a manifest, or of an upload."""

    DONE = ""
    UNANSWERED = ", unanswered"
    """It has its effect and fails; what was written can be read back."""
    UNSURE = ", unsure"
    """It has its effect and fails, and so does reading it back."""
    LATE = ", late"
    """It fails, and may have its effect later."""


class Late(NamedTuple):
    name: str
    content: Content


class ModelStore:
    """The store as a chain sees it during one of its calls, which has a fate."""

    def __init__(self) -> None:
        self.begin({}, Fate.DONE)

    def begin(self, objects: dict[str, Content], fate: Fate) -> None:
        self.objects = dict(objects)
        self.late: Late | None = None
        self._fate = fate

    async def create(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        if self._fate is Fate.LATE:
            self.late = Late(name, data)
        else:
            self.objects[name] = data
        if self._fate is not Fate.DONE:
            raise ObjectStoreError("no answer")
        return True

    async def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    async def upload(self, name: str, parts: AsyncIterator[bytes]) -> None:
        raise NotImplementedError("a chain has no segments")

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if self._fate is Fate.UNSURE:
            raise ObjectStoreError("no answer")
        content = self.objects.get(name)
        if not isinstance(content, bytes):
            raise ObjectNotFound(name)
        return content[start : None if length is None else start + length]

    async def remove(self, name: str) -> None:
        self.objects.pop(name, None)

    async def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.objects if name.startswith(prefix))

    async def folders(self, folder: str) -> list[str]:
        raise NotImplementedError("a chain has one folder")


class Stored:
    """What the store has at one moment."""

    def __init__(self, objects: dict[str, Content]) -> None:
        self.objects = objects
        store = ModelStore()
        store.begin(objects, Fate.DONE)
        self.damage: str | None = None
        self.last: Manifest | None = None
        """The last manifest, as a broker finds it that knows nothing."""
        try:
            self.last = without_waiting(Chain(store, FOLDER, "").read())
        except (DamagedObject, ObjectStoreError) as error:
            self.damage = str(error)
        self.named = _named(self.last)
        self.contents = {
            name.removesuffix(LOG).partition("-")[2]: content
            for name, content in objects.items()
            if isinstance(content, tuple) and name.endswith(LOG)
        }
        """The records of each segment, by its attempt."""


def _named(manifest: Manifest | None) -> frozenset[str]:
    segments = () if manifest is None else manifest.segments
    return frozenset(name for one in segments for name in (one.log_name, one.index_name))
