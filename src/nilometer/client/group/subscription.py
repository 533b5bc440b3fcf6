"""What a group member wants to read: topics by name, or all whose name matches a pattern. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nilometer.client.network.cluster_metadata import ClusterMetadata


@dataclass(frozen=True, slots=True)
class Subscription:
    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    """The whole name must match. It is looked for among all topics that the metadata shows."""

    def __bool__(self) -> bool:
        return bool(self.names) or self.pattern is not None

    def topics(self, metadata: ClusterMetadata, *, exclude_internal: bool = True) -> tuple[str, ...]:
        """The topics it stands for now, by name."""
        if self.pattern is None:
            return tuple(sorted(set(self.names)))
        return tuple(
            sorted(
                name
                for name, topic in metadata.topics.items()
                if self.pattern.fullmatch(name) and not (exclude_internal and topic.is_internal)
            )
        )
