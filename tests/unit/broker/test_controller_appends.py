"""What the controller puts into the metadata log: nothing that a broker of the cluster could not fold."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nilometer.broker.control import controller as controller_module
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.decision_log import Cause
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.entries import encode_entry
from nilometer.cluster.records import FORMAT_VERSION, BrokerFenced, ConfigChanged, ConfigResourceType
from nilometer.coordination.local.store import LocalStore
from nilometer.coordination.store import OutcomeUnknown
from nilometer.identifiers import BrokerEpoch, BrokerId, Incarnation
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy
from nilometer.wire.errors import ErrorCode, KafkaError
from support.step_clock import StepClock

GOOD = ConfigChanged(resource_type=ConfigResourceType.BROKER, resource_name="", key="a", value="1")
BAD = BrokerFenced(broker_id=BrokerId(9), broker_epoch=BrokerEpoch(1))
WANTED = Cause("a test wants it")


@asynccontextmanager
async def controlling(folder: Path) -> AsyncIterator[tuple[LocalStore, MetadataLog, Controller]]:
    """The active controller of a new cluster, and what it writes to."""
    store = LocalStore(Runtime.system(), str(folder))
    await store.open()
    metadata, tasks = MetadataLog(store), Tasks(lambda name, error: None)
    try:
        controller, chance = (
            Controller(1, store, metadata, tasks, Turns(StepClock())),
            SeededEntropy(random.Random(1)),
        )
        incarnation = Incarnation("1")
        await controller.become_controller(
            incarnation,
            lambda image: controllership_entry(image, BrokerId(1), incarnation, chance),
            WANTED,
        )
        yield store, metadata, controller
    finally:
        await tasks.stop()
        await store.close()


async def test_a_decision_that_cannot_be_folded_costs_one_request_and_not_the_cluster(tmp_path: Path) -> None:
    async with controlling(tmp_path) as (store, metadata, controller):
        before = metadata.image.snapshot()
        with pytest.raises(KafkaError) as refused:
            await controller.decide(lambda _: Decision(((GOOD, BAD),), None), WANTED)
        assert refused.value.code is ErrorCode.unknown_server_error
        assert await store.read(metadata.image.number + 1, 10) == [], "nothing of it was appended"
        assert metadata.image.snapshot() == before
        assert metadata.blocked is None
        assert await controller.decide(lambda _: Decision(((GOOD,),), "done"), WANTED) == "done"
        assert metadata.image.config(ConfigResourceType.BROKER, "") == {"a": "1"}


async def test_a_record_of_a_format_that_is_not_finalized_is_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that cannot read the entry would stop."""
    async with controlling(tmp_path) as (store, metadata, controller):
        with monkeypatch.context() as later:
            later.setattr("nilometer.cluster.entries.format_version_of", lambda _: FORMAT_VERSION + 1)
            with pytest.raises(KafkaError, match=r"nilometer\.metadata\.format") as refused:
                await controller.decide(lambda _: Decision(((GOOD,),), None), WANTED)
        assert refused.value.code is ErrorCode.unsupported_version
        assert await store.read(metadata.image.number + 1, 10) == []
        assert await controller.decide(lambda _: Decision(((GOOD,),), "done"), WANTED) == "done"


async def test_a_controller_says_once_that_it_is_none_any_more_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with controlling(tmp_path) as (store, metadata, controller):
        await controller.decide(lambda _: Decision(((GOOD,),), None), WANTED)
        assert "no longer the controller" not in caplog.text
        for other in (2, 3):
            entry = controllership_entry(
                metadata.image, BrokerId(other), Incarnation("1"), SeededEntropy(random.Random(other))
            )
            await store.append(metadata.image.number + 1, encode_entry(entry))
            await metadata.catch_up()
    assert caplog.text.count("no longer the controller") == 1
    assert "broker 2 became it, in epoch 2" in caplog.text


@pytest.mark.parametrize("other_entries", [True, False])
async def test_a_decision_that_is_given_up_says_what_was_in_its_way(
    other_entries: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other entries came first in each attempt, or the store did not tell what became of its own."""

    async def come_second(*_: object) -> bool:
        return False

    async def not_known(*_: object) -> None:
        raise OutcomeUnknown("the connection was lost")

    monkeypatch.setattr(controller_module, "APPEND_ATTEMPTS_MAX", 2)
    monkeypatch.setattr(controller_module, "DOUBT_PAUSE_S", 0)
    async with controlling(tmp_path) as (store, _, controller):
        if other_entries:
            monkeypatch.setattr(controller, "_append", come_second)
        else:
            monkeypatch.setattr(store, "append", not_known)
        with pytest.raises(KafkaError) as refused:
            await controller.decide(lambda _: Decision(((GOOD,),), None), WANTED)
    assert refused.value.code is ErrorCode.request_timed_out
    changed = "the metadata changed while each attempt was decided"
    assert (changed if other_entries else "could not be written in 2 attempts") in refused.value.message
    assert caplog.text.count("of the metadata log again: the connection was lost") == (
        0 if other_entries else 2
    )
