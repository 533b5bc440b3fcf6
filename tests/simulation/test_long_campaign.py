"""The long campaign: 500 seeds of five simulated minutes, by tens.

``nilometer simulate --seed N --minutes 5`` plays one of them again.
"""

from __future__ import annotations

import pytest

from nilometer.simulation.plan import draw
from nilometer.simulation.run import run

FIRST, COUNT, AT_ONCE = 3000, 500, 10
MINUTES = 5.0


@pytest.mark.soak
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, AT_ONCE))
def test_seeds_of_the_long_campaign_are_clean(first: int) -> None:
    failed: dict[str, list[str]] = {}
    for seed in range(first, first + AT_ONCE):
        findings = run(draw(seed, MINUTES)).findings
        if findings:
            failed[f"nilometer simulate --seed {seed} --minutes {MINUTES:g}"] = findings
    assert failed == {}
