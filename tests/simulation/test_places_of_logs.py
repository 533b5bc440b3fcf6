"""Checkers read the log that a broker uses, also while a move between its log directories ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nilometer.simulation.cluster import BrokerNode
from nilometer.simulation.disk import FolderNode

OLD, NEW = "/data/2/topic-0", "/data/2-b/topic-0"


class Hosted:
    log = SimpleNamespace(folder=NEW)

    def __str__(self) -> str:
        return "topic-0"


@pytest.mark.parametrize(
    ("on_disk", "is_hosted", "place"),
    [
        ({OLD, NEW}, True, NEW),
        ({OLD}, False, OLD),
        ({NEW}, False, NEW),
        (set[str](), False, None),
    ],
)
def test_the_folder_of_the_log_that_a_broker_uses(
    on_disk: set[str], is_hosted: bool, place: str | None
) -> None:
    host: Any = SimpleNamespace(
        name="machine",
        disk=SimpleNamespace(find=lambda path: FolderNode() if path in on_disk else None),
    )
    cluster: Any = None
    node: Any = BrokerNode(cluster, 2, host, folder_count=2)
    node.process = SimpleNamespace(alive=True)
    replicas = [Hosted()] if is_hosted else []
    node.broker = SimpleNamespace(parts=SimpleNamespace(replication=SimpleNamespace(replicas=replicas)))
    assert node.place_of("topic-0") == place
    assert node.place_of("topic-1") is None
