"""How rows are measured: each system warmed up in the row's own shape, then both in turns.

The rows of one shape (number of brokers, their settings) find both systems running, and leave them running
for the next: a virtual machine that stays up has compiled all it will. One system is under load at a time;
the other is idle, and what it takes of the CPU meanwhile is among the raw numbers (`neighbor_cpu_percent`).
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from . import load
from .clusters import CLUSTERS
from .rows import Load, Numbers, Row
from .spark import on_spark
from .steady import is_steady, until_steady
from .systems import SYSTEMS, Settings, System, cpu_seconds, remove

SCRATCH = Path(".nilometer") / "bench"
WARM_UP = "warm_up"
"""The key of the rounds of the warm-up among the numbers."""
SPARK_QUICK_RECORDS = 50_000
console = Console()

RowSamples = dict[str, dict[str, list[float]]]
"""system name → column key → numbers"""
Finish = Callable[[Row, RowSamples, float], None]
"""(row, what was measured, seconds that it took): show and write it"""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a load is played."""

    rounds: int
    round_s: float
    warm_up_round_s: float
    warm_up_limit_s: float
    """Of one system in one row; the round that is under way then is played to its end."""
    in_miniature: bool = False

    @staticmethod
    def full(rounds: int) -> Pace:
        """At least 20 s are measured, in at least three rounds or as many as wanted."""
        return Pace(rounds, round_s=max(20.0 / rounds, 2.0), warm_up_round_s=3.0, warm_up_limit_s=45.0)

    @staticmethod
    def quick() -> Pace:
        return Pace(1, round_s=1.5, warm_up_round_s=0.5, warm_up_limit_s=0.0, in_miniature=True)


@dataclass
class Bench:
    """One run of the benchmark over some rows. ``failed`` has the keys of rows that could not be measured."""

    names: list[str]
    pace: Pace
    finish: Finish
    failed: list[str] = field(default_factory=list)

    def run(self, rows: list[Row]) -> None:
        for shape in rows_by_shape([row for row in rows if row.load is not None]):
            self._run_loads(shape)
        for row in rows:
            if row.load is None and not row.in_spark:
                self._guarded(row, partial(self._measure_alone, row))

    def run_spark(self, rows: list[Row], records: int) -> None:
        """Once: one broker of Nilometer serves all sources of a row, which take turns in it."""
        with on_spark(SCRATCH, SPARK_QUICK_RECORDS if self.pace.in_miniature else records) as system:
            for row in rows:
                self._guarded(row, partial(self._measure_in_spark, row, system))

    def _measure_in_spark(self, row: Row, system: System) -> RowSamples:
        assert row.measure is not None
        samples: RowSamples = {}
        _note(row, system, row.measure(system), samples)
        return samples

    def _run_loads(self, rows: list[Row]) -> None:
        """Rows of one shape. After a failure the next row gets fresh systems."""
        left = list(rows)
        while left:
            with Pair(self.names, left[0]) as systems:
                is_fine = True
                while left and is_fine:
                    row = left.pop(0)
                    is_fine = self._guarded(row, partial(self._measure_load, row, systems))

    def _guarded(self, row: Row, measure: Callable[[], RowSamples]) -> bool:
        """A row that fails is named at the end; the others are measured all the same."""
        console.print(f"[bold]{row.key}[/bold]: {row.title}")
        began = time.monotonic()
        try:
            samples = measure()
        except Exception:
            console.print(f"{row.key} failed:\n{traceback.format_exc()}", markup=False, highlight=False)
            self.failed.append(row.key)
            return False
        self.finish(row, samples, time.monotonic() - began)
        return True

    def _measure_load(self, row: Row, pair: Pair) -> RowSamples:
        load = row.quick_load if self.pace.in_miniature and row.quick_load is not None else row.load
        assert load is not None
        pair.launch()
        systems = pair.all
        samples: RowSamples = {}
        for system in systems:
            if load.prepare is not None:
                load.prepare(system)
            _note(row, system, {WARM_UP: self._warm_up(load, system)}, samples)
        for number in range(self.pace.rounds):
            for system in systems if number % 2 == 0 else reversed(systems):
                others = [other for other in systems if other is not system]
                _note(row, system, _play_beside(load, system, others, self.pace.round_s), samples)
        for system in systems:
            if load.clean is not None:
                load.clean(system)
        return samples

    def _warm_up(self, load: Load, system: System) -> list[float]:
        def play() -> float:
            found = load.play(system, self.pace.warm_up_round_s)[load.steady_by]
            assert not isinstance(found, list)
            return found

        rounds = until_steady(play, self.pace.warm_up_limit_s)
        if not is_steady(rounds):
            console.print(f"    {system.name} is not steady after {len(rounds)} rounds of the warm-up")
        return rounds

    def _measure_alone(self, row: Row) -> RowSamples:
        """A row that launches its systems itself, each on an empty folder that is removed behind it."""
        samples: RowSamples = {}
        kinds = _kinds(row)
        for name in self.names:
            if name not in kinds:
                console.print(f"  {row.beside} is left out: it is not installed", highlight=False)
        known = [name for name in self.names if name in kinds]
        for number in range(1 if row.once else self.pace.rounds):
            names = known if number % 2 == 0 else known[::-1]
            for group in [names] if row.before is not None else [[name] for name in names]:
                with Pair(group, row) as pair:
                    self._measure_group(row, pair.all, samples)
        return samples

    def _measure_group(self, row: Row, systems: list[System], samples: RowSamples) -> None:
        """One system; or both at the same time, with what goes before and after in turns."""
        is_quick = self.pace.in_miniature
        before = row.quick_before if is_quick and row.quick_before is not None else row.before
        measure = row.quick if is_quick and row.quick is not None else row.measure
        assert measure is not None
        for system in systems:
            if before is not None:
                _note(row, system, before(system), samples)
        with ThreadPoolExecutor(len(systems)) as pool:
            try:
                found = list(pool.map(measure, systems))
            except BaseException:
                load.kill_left()  # the pool waits for its threads, and these for their programs
                raise
        for system, numbers in zip(systems, found, strict=True):
            _note(row, system, numbers, samples)
            if row.after is not None:
                _note(row, system, row.after(system), samples)


class Pair:
    """The systems of a row, on empty folders that are removed behind them; not launched yet."""

    def __init__(self, names: Iterable[str], row: Row) -> None:
        self._names, self._row = list(names), row
        self.all: list[System] = []
        self._is_launched = False

    def launch(self) -> None:
        """Once; all are ready afterwards."""
        if self._is_launched:
            return
        self._is_launched = True
        for system in self.all:
            system.launch()
            system.wait_ready()

    def __enter__(self) -> Pair:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=SCRATCH)).resolve()
        kinds = _kinds(self._row)
        try:
            for name in self._names:
                self.all.append(kinds[name](self._folder / name, self._row.settings))
        except BaseException:
            remove(self._folder)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        load.kill_left()
        with ExitStack() as each_in_any_case:
            each_in_any_case.callback(remove, self._folder)
            for system in self.all:
                each_in_any_case.callback(system.stop)


def _kinds(row: Row) -> Mapping[str, Callable[[Path, Settings | None], System]]:
    """What makes the systems of a row, by name."""
    if row.systems is not None:
        return row.systems()
    return SYSTEMS if row.brokers == 1 else CLUSTERS


def rows_by_shape(rows: list[Row]) -> list[list[Row]]:
    """Rows that can share their systems, in the order in which they come."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        shape = (row.brokers, row.systems, tuple(sorted(row.settings.items())))
        found.setdefault(shape, []).append(row)
    return list(found.values())


def _play_beside(load: Load, system: System, others: list[System], seconds: float) -> Numbers:
    """The numbers of a measured round, and what the idle systems took meanwhile."""
    taken, began = sum(map(cpu_seconds, others)), time.monotonic()
    found = load.play(system, seconds)
    share = 100 * (sum(map(cpu_seconds, others)) - taken) / (time.monotonic() - began)
    return {**found, "neighbor_cpu_percent": share}


def _note(row: Row, system: System, numbers: Numbers, samples: RowSamples) -> None:
    """Show what was measured, and add it to the samples."""
    titles = {column.key: f"{column.title}, {column.unit}" for column in row.columns}
    of_system = samples.setdefault(system.name, {})
    shown: list[str] = []
    for key, found in numbers.items():
        each = list(found) if isinstance(found, list) else [found]
        of_system.setdefault(key, []).extend(each)
        shown.append(f"{titles.get(key, key)}: {', '.join(f'{one:,.4g}' for one in each)}")
    console.print(f"  {system.name}: {'; '.join(shown)}", highlight=False)
