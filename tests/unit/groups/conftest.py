from __future__ import annotations

import pytest
from consumer_group_harness import ConsumerWorld


@pytest.fixture
def world() -> ConsumerWorld:
    """A shard of groups, and a topic ``t`` of four partitions."""
    world = ConsumerWorld()
    world.create("t", 4)
    return world
