"""The subscription of a group member: topics by name, or all whose name matches a pattern. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nilometer.client.network.cluster_metadata import ClusterMetadata


@dataclass(frozen=True, slots=True)
class Subscription:
    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    """Must match the whole topic name; it is matched with all topics of the metadata."""

    def __bool__(self) -> bool:
        return bool(self.names) or self.pattern is not None

    def topics(self, metadata: ClusterMetadata, *, exclude_internal: bool = True) -> tuple[str, ...]:
        """Return the names of the subscribed topics, sorted; a pattern matches the topics of ``metadata``."""
        if self.pattern is None:
            return tuple(sorted(set(self.names)))
        return tuple(
            sorted(
                name
                for name, topic in metadata.topics.items()
                if self.pattern.fullmatch(name) and not (exclude_internal and topic.is_internal)
            )
        )
