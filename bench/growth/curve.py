"""What a curve is: a number that grows, and how one point of it is measured on a cluster of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support.brokers.nilometer_cluster import NilometerCluster

from ..clusters import SETTINGS, NilometerThree
from ..run import SCRATCH
from ..systems import System

Point = Mapping[str, float]
S = TypeVar("S", bound=System)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a point."""

    key: str
    title: str
    unit: str
    digits: int = 1


@dataclass(frozen=True, slots=True)
class Curve:
    key: str
    title: str
    of: str
    """What grows."""
    sizes: tuple[int, ...]
    measures: tuple[Measure, ...]
    measure: Callable[[int], Point]
    """On a new cluster, which is removed afterwards."""
    quick_sizes: tuple[int, ...]


@contextmanager
def scratch_folders() -> Iterator[None]:
    """Remove all folders of a run at its end, not behind each point.

    ext4 does not use an inode again that was deleted in the last minutes, and searches for another: creating
    thousands of replicas behind a removal takes it up to four times as long.
    """
    try:
        yield
    finally:
        while _folders:
            shutil.rmtree(_folders.pop(), ignore_errors=True)


_folders: list[Path] = []


def scratch_folder() -> Path:
    """A new folder, within :func:`scratch_folders`."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    _folders.append(Path(tempfile.mkdtemp(dir=SCRATCH)).resolve())
    return _folders[-1]


@contextmanager
def running(system: S) -> Iterator[S]:
    """Launch it and wait until it is ready; stop it at the end."""
    system.launch()
    try:
        system.wait_ready()
        yield system
    finally:
        system.stop()


def three_brokers(settings: Mapping[str, str] | None = None) -> AbstractContextManager[NilometerThree]:
    return running(NilometerThree(scratch_folder() / "three", settings))


@contextmanager
def some_brokers(count: int, coordination: str | None, folder: Path) -> Iterator[NilometerCluster]:
    cluster = NilometerCluster(folder, count, SETTINGS, coordination=coordination)
    folder.mkdir(parents=True, exist_ok=True)
    cluster.start()
    try:
        yield cluster
    finally:
        for broker_id in cluster.running:
            cluster.stop(broker_id)
