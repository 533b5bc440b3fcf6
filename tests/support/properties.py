"""A plugin of pytest: how many examples property tests draw, and whether the same ones in each run.

A run of the tests draws the same examples on every machine, so that it fails for what was changed, and not
for what was drawn. ``pytest --examples 50`` draws fifty times as many at random. The seed of such a run is
Hypothesis' ``--hypothesis-seed``; a property test that fails prints the command that replays it.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

DEFAULT = 100
"""The examples of a property that says nothing else."""

_times: int = 1


def examples(count: int, *, campaign: int = 0, **more: Any) -> settings:
    """Return the settings of a property that is tested with ``count`` examples, or a multiple of them: then
    with ``campaign`` at least.
    """
    return settings(max_examples=count if _times == 1 else max(count * _times, campaign), **more)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples",
        type=int,
        default=1,
        metavar="N",
        help="test properties with N times as many examples, drawn at random",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before Hypothesis' plugin reads its options and test modules are imported."""
    global _times
    _times = config.option.examples
    if _times < 1:
        raise pytest.UsageError(f"--examples {_times}: at least 1 is needed")
    if _times > 1 and config.option.hypothesis_seed is None:
        seed = random.SystemRandom().randrange(2**32)
        config.option.hypothesis_seed = str(seed)  # xdist passes it to its workers
    settings.register_profile(
        "suite",
        max_examples=DEFAULT * _times,
        derandomize=_times == 1,
        database=None,  # what failed becomes an example that is written down
        deadline=None,  # on a busy machine
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and _times > 1 and item.get_closest_marker("hypothesis") is not None:
        seed = item.config.option.hypothesis_seed
        command = f"pytest --examples {_times} --hypothesis-seed {seed} '{item.nodeid}'"
        report.sections.append(("the command that replays it", command))
    return report
