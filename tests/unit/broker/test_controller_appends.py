"""What the controller puts into the metadata log: nothing that no broker could fold."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from nilometer.broker.control.controller import Controller
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.records import BrokerFenced, ConfigChanged, ConfigResourceType
from nilometer.coordination import LocalStore
from nilometer.identifiers import BrokerEpoch, BrokerId, Incarnation
from nilometer.runtime import Runtime
from nilometer.runtime.entropy import SeededEntropy
from nilometer.wire.errors import ErrorCode, KafkaError

GOOD = ConfigChanged(resource_type=ConfigResourceType.BROKER, resource_name="", key="a", value="1")
BAD = BrokerFenced(broker_id=BrokerId(9), broker_epoch=BrokerEpoch(1))


def test_a_decision_that_cannot_be_folded_costs_one_request_and_not_the_cluster(tmp_path: Path) -> None:
    async def work() -> None:
        store = LocalStore(Runtime.system(), str(tmp_path))
        await store.open()
        metadata, tasks = MetadataLog(store), Tasks(lambda name, error: None)
        try:
            controller, chance = Controller(1, store, metadata, tasks), SeededEntropy(random.Random(1))
            incarnation = Incarnation("1")
            await controller.become_controller(
                incarnation, lambda image: controllership_entry(image, BrokerId(1), incarnation, chance)
            )
            before = metadata.image.snapshot()
            with pytest.raises(KafkaError) as refused:
                await controller.decide(lambda _: Decision(((GOOD, BAD),), None))
            assert refused.value.code is ErrorCode.unknown_server_error
            assert await store.read(metadata.image.number + 1, 10) == [], "nothing of it was appended"
            assert metadata.image.snapshot() == before
            assert metadata.blocked is None
            assert await controller.decide(lambda _: Decision(((GOOD,),), "done")) == "done"
            assert metadata.image.config(ConfigResourceType.BROKER, "") == {"a": "1"}
        finally:
            await tasks.stop()
            await store.close()

    asyncio.run(work())
