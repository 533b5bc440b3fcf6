from __future__ import annotations

import pytest
from cluster_harness import ClusterWorld


@pytest.fixture
def world() -> ClusterWorld:
    """Three live brokers and an active controller."""
    return ClusterWorld().with_brokers(1, 2, 3)
