"""E-43: a group that keeps rebalancing: `nilometer group describe` names the member and says why."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.admin.group_descriptions import GroupDescription
from nilometer.client.consumer.consumer import Consumer
from nilometer.runtime import Runtime
from support.brokers.nilometer_broker import NilometerBroker

ROUNDS = 4
LIMIT_S = 60.0


def consumer(bootstrap: str, client_id: str, instance_id: str) -> Consumer:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "client.id": client_id,
        "group.instance.id": instance_id,
        "partition.assignment.strategy": "range",
        "heartbeat.interval.ms": 100,
    }
    return Consumer(Runtime.system(), settings)


async def rounds(bootstrap: str) -> GroupDescription:
    """Two members, of which the one that leads asks for one rebalance after the other."""
    where = {"bootstrap.servers": bootstrap}
    async with (
        Admin(Runtime.system(), where) as admin,
        consumer(bootstrap, "restless", "r") as restless,
        consumer(bootstrap, "quiet", "q") as quiet,
    ):
        await admin.create_topic(NewTopic("t", 4, 1))
        await restless.subscribe(["t"])
        while not restless.assignment():
            await restless.poll(timeout_ms=100)
        await quiet.subscribe(["t"])
        asked_in = 0
        for _ in range(ROUNDS + 1):
            while not (
                len(restless.assignment()) == len(quiet.assignment()) == 2
                and restless.group_identity().generation == quiet.group_identity().generation > asked_in
            ):
                await asyncio.gather(restless.poll(timeout_ms=100), quiet.poll(timeout_ms=100))
            asked_in = restless.group_identity().generation
            restless.enforce_rebalance("I cannot sit still")
        found = (await GroupAdmin(admin.client, 10_000).describe(["g"]))["g"]
        assert isinstance(found, GroupDescription)
        return found


def describe(bootstrap: str, *options: str) -> str:
    command = [sys.executable, "-m", "nilometer.cli", "group", "describe", "g", *options]
    done = subprocess.run(
        [*command, "--bootstrap-server", bootstrap], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def test_edge_43_the_member_that_keeps_a_group_from_settling_is_named(tmp_path: Path) -> None:
    at_once = {"group.initial.rebalance.delay.ms": "0"}
    with NilometerBroker(tmp_path / "data", at_once) as broker:

        async def scenario() -> GroupDescription:
            async with asyncio.timeout(LIMIT_S):
                return await rounds(broker.bootstrap)

        found = asyncio.run(scenario())
        last = found.last_rebalance
        assert last is not None
        assert last.group_instance_id == "r"
        assert last.client_id == "restless"
        assert last.times_in_a_row >= ROUNDS
        assert "I cannot sit still" in (last.reason or "")
        document: Any = json.loads(describe(broker.bootstrap, "--json"))["groups"][0]
        assert document["last_rebalance"]["instance"] == "r"
        assert f"caused the last {last.times_in_a_row} rebalances" in document["trouble"]  # codespell:ignore
        text = describe(broker.bootstrap)
        assert "Keeps rebalancing: member r-" in text
        assert "(client restless on " in text
