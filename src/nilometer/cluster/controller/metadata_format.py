"""Which formats of metadata records may be written (KIP-584)."""

from __future__ import annotations

from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.features import METADATA_FORMAT, newest_format
from nilometer.cluster.image import ClusterImage
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
