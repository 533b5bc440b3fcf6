"""Earlier versions of the package and a data folder that the first of them wrote, as committed archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "earlier_version.tar.xz"
WITH_QUORUM = HERE / "earlier_quorum.tar.xz"
"""A later one, whose brokers can keep the metadata in a quorum of their own."""
DATA_FOLDER = HERE / "data_folder.tar.xz"
RUNNER = HERE / "run_earlier_broker.py"
THIS_VERSION: Sequence[str] = ("-m", "nilometer.broker")


def program(package: Path) -> Sequence[str]:
    """Python's arguments that start a broker of the package that was unpacked into ``package``."""
    return (str(RUNNER), str(package))
