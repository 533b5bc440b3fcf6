"""The cluster's features: the levels that this version supports, and the default levels (KIP-584).

A *finalized* level is the one that all brokers use. It is stored in the metadata log and changed by
UpdateFeatures (:mod:`nilometer.cluster.controller.features`). A level may only be finalized if every
registered broker supports it, and a broker that does not support a finalized level may not register. So a new
behaviour is enabled for all brokers at once, after the last one was upgraded.

- ``transaction.version``: at level 2 every end of a transaction increments the producer epoch, and partitions
  are added to a transaction by their first batch (KIP-890). Clients choose the protocol by it. Level 1 only
  changes records that Nilometer writes at every level.
- ``group.version``: 1 serves the consumer group protocol of KIP-848.
- ``share.version``: 1 serves share groups (KIP-932). At level 2 they may have dead letters (KIP-1191): the
  state of a share partition then has records that are archiving, which earlier versions cannot read.
- ``streams.version``: 1 serves streams groups (KIP-1071).
- ``eligible.leader.replicas.version``: always 1 (KIP-966).
- ``metadata.version``: the release of Kafka that the cluster corresponds to. Nilometer has its own metadata
  format, so the level changes nothing but what tools show.
- ``kraft.version``: always 1 (KIP-853). It changes nothing without a quorum.
- ``nilometer.metadata.format``: the newest format of records that may be written to the metadata log
  (:data:`~nilometer.cluster.records.FORMAT_VERSION`), as ``metadata.version`` is in Kafka. A broker stops at
  a record that it cannot read, so a change that needs a newer format is rejected until the level is raised.
  The level is never lowered: the log may contain such records already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nilometer.cluster.records import (
    FEATURES_FORMAT_VERSION,
    FORMAT_VERSION,
    GROUP_CONFIGS_FORMAT_VERSION,
    SupportedFeature,
)

METADATA_VERSION = "metadata.version"
METADATA_FORMAT = "nilometer.metadata.format"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"
KRAFT_VERSION = "kraft.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"

DEAD_LETTERS_SHARE_VERSION = 2
"""The level of ``share.version`` from which on share groups may have dead letters."""

KAFKA_4_3 = 30
KAFKA_4_4 = 33
"""Apache Kafka's ``metadata.version`` 4.3-IV0 and 4.4-IV2."""


SUPPORTED_FEATURES = (
    SupportedFeature(ELIGIBLE_LEADER_REPLICAS_VERSION, 1, 1),
    SupportedFeature(GROUP_VERSION, 0, 1),
    SupportedFeature(KRAFT_VERSION, 1, 1),
    SupportedFeature(METADATA_VERSION, KAFKA_4_3, KAFKA_4_4),
    SupportedFeature(METADATA_FORMAT, GROUP_CONFIGS_FORMAT_VERSION, FORMAT_VERSION),
    SupportedFeature(SHARE_VERSION, 0, DEAD_LETTERS_SHARE_VERSION),
    SupportedFeature(STREAMS_VERSION, 0, 1),
    SupportedFeature(TRANSACTION_VERSION, 0, 2),
)
"""The features and levels that this version of the broker supports, by name."""

FEATURES_OF_GROUPS: Mapping[str, str] = MappingProxyType(
    {"consumer": GROUP_VERSION, "share": SHARE_VERSION, "streams": STREAMS_VERSION}
)
"""By kind, the feature that turns such groups on. Classic groups need none."""

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


def newest_format(finalized: Mapping[str, int]) -> int:
    """Return the newest format of metadata records that may be written at these finalized levels.

    The formats before the feature need no level of it: a record with a feature's level is only written if
    every registered broker supports that level, so reads the record.
    """
    return max(FEATURES_FORMAT_VERSION, finalized.get(METADATA_FORMAT, 0))


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
