"""The finalized features of the cluster, which brokers return with ApiVersions (KIP-584). Pure.

Invariant: of two responses, the one with the higher epoch is used, whichever arrived first.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nilometer.wire.messages import Message

UNKNOWN_EPOCH = -1


class FinalizedFeatures(msgspec.Struct, frozen=True):
    epoch: int = UNKNOWN_EPOCH
    levels: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])

    @classmethod
    def of(cls, response: Message) -> FinalizedFeatures:
        """Read the features in an ApiVersions response; responses before version 3 have none."""
        epoch = getattr(response, "finalized_features_epoch", UNKNOWN_EPOCH)
        if epoch == UNKNOWN_EPOCH:
            return cls()
        return cls(epoch, {one.name: one.max_version_level for one in response.finalized_features})

    def newer(self, other: FinalizedFeatures) -> FinalizedFeatures:
        return other if other.epoch > self.epoch else self

    def level(self, name: str) -> int:
        """Return the level of a feature; 0 if the response did not name it."""
        return self.levels.get(name, 0)
