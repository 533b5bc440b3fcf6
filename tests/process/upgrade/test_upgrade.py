"""Two versions of the package side by side: the data folder of the earlier one, brokers upgraded in turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.quorum_brokers import QuorumBrokers
from support.unpacking import unpack
from support.upgrade.earlier_package import DATA_FOLDER, PACKAGE, WITH_QUORUM, program
from support.upgrade.filled_folder import SETTINGS, check, write
from support.upgrade.rolling import upgrade_under_load


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """Python's arguments that start a broker of the earlier version."""
    return program(unpack(PACKAGE, tmp_path_factory.mktemp("earlier-version")))


def test_the_data_folder_of_the_earlier_version_is_served_and_added_to(tmp_path: Path) -> None:
    broker = NilometerBroker(unpack(DATA_FOLDER, tmp_path / "data"), SETTINGS)
    with broker:
        check(broker.bootstrap)
        write(broker.bootstrap)
    with broker:
        check(broker.bootstrap, times_written=2)
    assert "Traceback" not in broker.output


def test_the_earlier_version_goes_on_with_what_this_one_wrote(tmp_path: Path, earlier: Sequence[str]) -> None:
    """No level of a feature was raised, so the way back is open."""
    broker = NilometerBroker(unpack(DATA_FOLDER, tmp_path / "data"), SETTINGS)
    with broker:
        write(broker.bootstrap)
    broker.program = earlier
    with broker:
        check(broker.bootstrap, times_written=2)
    assert "Traceback" not in broker.output


def test_three_brokers_are_upgraded_one_at_a_time_under_load(tmp_path: Path, earlier: Sequence[str]) -> None:
    upgrade_under_load(NilometerCluster(tmp_path, 3, SETTINGS), earlier)


def test_the_three_voters_of_a_quorum_are_upgraded_one_at_a_time_under_load(tmp_path: Path) -> None:
    earlier = program(unpack(WITH_QUORUM, tmp_path / "earlier-version"))
    upgrade_under_load(QuorumBrokers(tmp_path / "cluster", 3, SETTINGS), earlier)
