from __future__ import annotations

import pytest
from cluster_world import ClusterWorld


@pytest.fixture
def world() -> ClusterWorld:
    """Three live brokers and a controller in office."""
    return ClusterWorld().with_brokers(1, 2, 3)
