"""The cluster's features: the levels that this version supports, and the default levels (KIP-584).

A *finalized* level is the one that all brokers use. It is stored in the metadata log and changed by
UpdateFeatures (:mod:`nilometer.cluster.controller.features`). A level may only be finalized if every
registered broker supports it, and a broker that does not support a finalized level may not register. So a new
behaviour is enabled for all brokers at once, after the last one was upgraded.

- ``transaction.version``: at level 2 every end of a transaction increments the producer epoch, and partitions
  are added to a transaction by their first batch (KIP-890). Clients choose the protocol by it. Level 1 only
  changes records that Nilometer writes at every level.
- ``group.version``: 1 serves the consumer group protocol of KIP-848.
- ``eligible.leader.replicas.version``: always 1 (KIP-966).
- ``metadata.version``: the release of Kafka that the cluster corresponds to. Nilometer has its own metadata
  format, so there is only one level: that of the release it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nilometer.cluster.records import SupportedFeature

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"

KAFKA_4_3 = 30
"""Apache Kafka's ``metadata.version`` 4.3-IV0."""


SUPPORTED_FEATURES = (
    SupportedFeature(ELIGIBLE_LEADER_REPLICAS_VERSION, 1, 1),
    SupportedFeature(GROUP_VERSION, 0, 1),
    SupportedFeature(METADATA_VERSION, KAFKA_4_3, KAFKA_4_3),
    SupportedFeature(TRANSACTION_VERSION, 0, 2),
)
"""The features and levels that this version of the broker supports, by name."""

LEVELS_OF_NEW_CLUSTERS: Mapping[str, int] = MappingProxyType(
    {feature.name: feature.high for feature in SUPPORTED_FEATURES}
)

LEVELS_BEFORE: Mapping[str, int] = MappingProxyType(
    {ELIGIBLE_LEADER_REPLICAS_VERSION: 1, GROUP_VERSION: 1, METADATA_VERSION: KAFKA_4_3}
)
"""The levels of a cluster whose metadata log has none, written before levels were stored.

Must never change: every image starts with them."""

_SUPPORTED_BEFORE = tuple(SupportedFeature(name, level, level) for name, level in LEVELS_BEFORE.items())


def support_of(name: str, registered: Sequence[SupportedFeature]) -> SupportedFeature:
    """Return the levels of feature ``name`` that a broker supports which registered with ``registered``.

    0 to 0 if it does not support the feature.
    """
    for feature in registered or _SUPPORTED_BEFORE:
        if feature.name == name:
            return feature
    return SupportedFeature(name, 0, 0)


def unsupported_feature(
    finalized: Mapping[str, int], registered: Sequence[SupportedFeature]
) -> SupportedFeature | None:
    """Return the first feature, by name, whose finalized level a broker does not support, or None.

    ``registered`` are the broker's features; the result has the levels that it supports.
    """
    for name in sorted(finalized):
        support = support_of(name, registered)
        if not support.low <= finalized[name] <= support.high:
            return support
    return None
