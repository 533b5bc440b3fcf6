"""Producers with the habits of other libraries, which the brokers must bear."""

from __future__ import annotations

import pytest
from planted_faults.catalogue import BY_NAME
from planted_faults.planting import play

from nilometer.simulation.run import run

pytestmark = pytest.mark.thorough
FAULT = BY_NAME["forget-rejected-batches"]
SEED = 16


def test_they_send_on_while_brokers_come_and_go() -> None:
    verdict = run(FAULT.plan(SEED))
    assert verdict.findings == []
    assert verdict.workloads["sends of foreign producers"] > 100
    assert verdict.workloads["requests that they stopped to wait for"] > 10


@pytest.mark.interpreted
def test_a_batch_that_overtook_a_rejected_one_is_found() -> None:
    assert any("overtaken batch: sequence 0 of" in finding for finding in play(FAULT, SEED).findings)
