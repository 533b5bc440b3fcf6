"""What planning a read of much remote storage takes, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pipeline.large_tier import RECORDS, make_tier, plan_elsewhere

GIVEN = ({}, {"isolation.level": "read_committed"})


@pytest.mark.quick
def test_many_segments_are_planned_in_little_memory(tmp_path: Path) -> None:
    make_tier(tmp_path, 4, 50)
    for given in GIVEN:
        planned = plan_elsewhere(tmp_path, given)
        assert (planned.slices, planned.offsets) == (200, 200 * RECORDS)
        assert planned.peak_bytes < 400e6


@pytest.mark.soak
def test_a_hundred_thousand_segments_are_planned_in_little_memory(tmp_path: Path) -> None:
    make_tier(tmp_path, 200, 500)
    for given in GIVEN:
        planned = plan_elsewhere(tmp_path, given)
        print(f"{given}: {planned.seconds:.1f} s, {planned.peak_bytes / 1e6:.0f} MB")
        assert (planned.slices, planned.offsets) == (100_000, 100_000 * RECORDS)
        assert planned.peak_bytes < 500e6
