"""What all tiered partitions of a broker share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from nilometer.identifiers import TopicId
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import ObjectStore
from nilometer.steps import Pause
from nilometer.tier.reader import RemoteCache


class RemoteParts(msgspec.Struct, frozen=True, kw_only=True):
    """What all partitions of this broker share."""

    runtime: Runtime
    store: ObjectStore
    cache: RemoteCache
    cluster_id: str
    grace_ms: int
    writer: str
    """A random id of this process."""
    claim: int = 0
    """See :mod:`nilometer.tier.chain`."""
    metadata_entry: Callable[[], int]
    """Returns the number of the last metadata entry that this broker knows."""
    tiered_since: Callable[[TopicId], int]
    """Returns the metadata entry with which a topic was last tiered; -1 if that is not known."""
    before_copy: Callable[[int], Awaitable[None]]
    """Waits until so many bytes may be copied."""
    pause: Pause
    """Waits for the turn of one step among all long work of this broker."""
