"""How brokers are asked about their replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.client.admin.replica_survey import ReplicaSurvey
from nilometer.client.network.connection import Connection
from nilometer.runtime import Runtime


async def test_a_broker_is_asked_again_on_the_same_connection_while_that_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[SimpleNamespace] = []

    async def connect(*_: object, **__: object) -> Connection:
        opened.append(SimpleNamespace(closed=False))
        return cast(Any, opened[-1])

    monkeypatch.setattr(Connection, "open", connect)
    survey = ReplicaSurvey(Runtime.system(), ["host:1"])
    first = await survey._connection(("host", 1))
    assert await survey._connection(("host", 1)) is first
    opened[0].closed = True
    assert await survey._connection(("host", 1)) is opened[1]
    assert len(opened) == 2
