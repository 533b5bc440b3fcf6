"""Which partitions take over changed settings: each once, and only those whose settings may be others."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.records import ConfigResourceType

TOPIC, BROKER, GROUP = ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.GROUP


class Hosted(list[Any]):
    """As much of a replica manager as applies settings, with one partition of each of three topics."""

    def __init__(self) -> None:
        self.configured: list[str] = []
        for topic in "abc":
            log = SimpleNamespace(configure=lambda _config: None)
            configure = self._noting(topic)
            self.append(SimpleNamespace(topic=topic, log=log, configure=configure))
        self._hosted = SimpleNamespace(configs=SimpleNamespace(of_topic=lambda _image, _topic: None))

    def _noting(self, topic: str) -> Any:
        return lambda _min_isr: self.configured.append(topic)

    def _note_flush_ms(self, _partition: object) -> None:
        pass

    def _fencing(self, _partition: object) -> Any:
        return nullcontext()


@pytest.mark.parametrize(
    ("changed", "configured"),
    [
        ([(GROUP, "a"), (GROUP, "b")], ""),
        ([(TOPIC, "a"), (TOPIC, "c"), (GROUP, "b")], "ac"),
        ([(TOPIC, "a"), (BROKER, ""), (BROKER, "1")], "abc"),
    ],
)
def test_each_partition_takes_changed_settings_over_once(
    changed: list[tuple[ConfigResourceType, str]], configured: str
) -> None:
    hosted, image = Hosted(), SimpleNamespace(min_insync_replicas=lambda _topic: 1)
    reconfigure: Any = vars(ReplicaManager)["_reconfigure"]
    for _ in reconfigure(hosted, image, [ConfigResource(*each) for each in changed]):
        pass
    assert "".join(hosted.configured) == configured
