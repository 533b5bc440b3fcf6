"""What a share consumer does about the errors of its acknowledgements."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from nilometer.client.consumer.share_consumer import TRIED_AGAIN, ShareConsumer
from nilometer.client.consumer.share_session import AcknowledgedRecord, Outcome
from nilometer.runtime import Runtime
from nilometer.share.partition_events import AcknowledgeType
from nilometer.wire.errors import ErrorCode

RECORD = AcknowledgedRecord(cast(Any, "a partition"), 5)


@pytest.mark.parametrize("is_in_hand", [True, False])
@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.invalid_record_state, *sorted(TRIED_AGAIN)])
async def test_an_acknowledgement_is_sent_again_while_its_record_is_in_hand(
    error: ErrorCode, is_in_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ShareConsumer(
        Runtime.system(), {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}, topics=["t"]
    )
    started: list[str] = []
    monkeypatch.setattr(consumer, "_start", lambda name, _job: started.append(name))
    answer = asyncio.get_running_loop().create_future()
    consumer._answers[RECORD, AcknowledgeType.ACCEPT] = answer
    if is_in_hand:
        consumer._in_hand[RECORD] = 1, 1
    consumer._settle([Outcome(RECORD, AcknowledgeType.ACCEPT, error)])
    is_sent_again = is_in_hand and error in TRIED_AGAIN
    assert started == ["again"] * is_sent_again
    assert answer.done() is not is_sent_again
    assert is_sent_again or answer.result() is error
