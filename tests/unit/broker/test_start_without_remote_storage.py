"""A broker without remote storage does not start if there are tiered topics, and says how it would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nilometer.broker.broker import Broker, StartFailed


def test_the_error_advises_to_set_remote_storage_before_it_speaks_of_deleting() -> None:
    broker: Any = SimpleNamespace(_config=SimpleNamespace(tier=None))
    topics = [SimpleNamespace(name=name) for name in ("clicks", "orders")]
    image: Any = SimpleNamespace(topics=lambda: topics, is_tiered=lambda name: name == "clicks")
    with pytest.raises(StartFailed) as refused:
        Broker._check_tiered_topics(broker, image)
    said = str(refused.value)
    assert said.startswith("Set remote.log.storage.system.enable=true on every broker")
    assert "tiered topics: clicks. Only to end tiered storage" in said
    broker._config.tier = "file:///tier"
    Broker._check_tiered_topics(broker, image)
