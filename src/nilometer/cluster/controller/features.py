"""UpdateFeatures: changing finalized levels, all of one request or none (KIP-584, KIP-1022); and the check of
a record's format against the finalized level.

The level of a feature is raised by an upgrade and lowered by a downgrade, safe or unsafe (no downgrade loses
metadata here); ``nilometer.metadata.format`` is only raised. Every registered broker must support the new
level, also a fenced one, since it may return.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.features import METADATA_FORMAT, SUPPORTED_FEATURES, newest_format, support_of
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import FeatureLevelChanged
from nilometer.wire.errors import ErrorCode


def check_format(image: ClusterImage, version: int) -> None:
    """Raise Refusal (UNSUPPORTED_VERSION) if records of format ``version`` may not be written yet.

    Brokers of an earlier version may be in the cluster, which stop at a record that they cannot read.
    """
    if version > newest_format(image.finalized_features):
        raise Refusal(
            ErrorCode.unsupported_version,
            f"This change needs level {version} of the feature {METADATA_FORMAT}, but level "
            f"{image.feature_level(METADATA_FORMAT)} is finalized: brokers of an earlier version could not "
            f"read it. Upgrade every broker, then run kafka-features.sh upgrade --feature "
            f"{METADATA_FORMAT}={version}",
        )


class UpgradeType(enum.IntEnum):
    """The upgrade types of UpdateFeatures, with its numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(msgspec.Struct, frozen=True):
    name: str
    level: int
    upgrade_type: int
    """An :class:`UpgradeType`; any other number is rejected."""


def decide_update_features(
    image: ClusterImage, updates: Sequence[FeatureUpdate], *, validate_only: bool
) -> Decision[Outcome]:
    """Finalize the given levels, or none if one is invalid.

    If a feature is updated twice, the last update is used.
    """
    wanted = {update.name: update for update in updates}
    try:
        for update in wanted.values():
            _check(image, update)
    except Refusal as refusal:
        why = (
            f"The update failed for all features since the following feature had an error: {refusal.message}"
        )
        return Decision((), Outcome(refusal.code, why))
    changes = tuple(
        FeatureLevelChanged(name=update.name, level=update.level)
        for update in wanted.values()
        if update.level != image.feature_level(update.name)
    )
    return Decision((changes,) if changes and not validate_only else (), OK)


def _check(image: ClusterImage, update: FeatureUpdate) -> None:
    """Raise Refusal if the update is invalid."""
    why = _why_invalid(image, update)
    if why is not None:
        raise Refusal(
            ErrorCode.invalid_update_version,
            f"Invalid update version {update.level} for feature {update.name}. {why}",
        )


def _why_invalid(image: ClusterImage, update: FeatureUpdate) -> str | None:
    if update.upgrade_type not in set(UpgradeType):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if (why := _why_not_supported(image, update)) is not None:
        return why
    current = image.feature_level(update.name)
    if update.level < current and update.name == METADATA_FORMAT:
        return (
            "It is never lowered: the metadata log may have records that brokers need this version to read."
        )
    if update.level < current and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if update.level > current and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _why_not_supported(image: ClusterImage, update: FeatureUpdate) -> str | None:
    supports = [
        (f"Local controller {image.controller_id}", SUPPORTED_FEATURES),
        *((f"Broker {broker.id}", broker.features) for broker in image.brokers()),
    ]
    for who, registered in supports:
        support = support_of(update.name, registered)
        if not support.low <= update.level <= support.high:
            if not support.high:
                return f"{who} does not support this feature."
            return f"{who} only supports versions {support.low}-{support.high}"
    known = any(feature.name == update.name for feature in SUPPORTED_FEATURES)
    return None if known else f"Feature {update.name} not found."
