"""The families of one process, and where their values come from at a scrape.

Most values are *collected*: a function reads them from the owners of the state when a scrape asks for them,
so that they cost nothing otherwise. A collecting function is a generator: it yields :class:`Measured`
families, and :data:`PAUSE` where much work without text lies between two of them. So the reader of
:meth:`Registry.text` can let other work run after any part.

Invariants: a name belongs to one family; a family that was declared is measured at most once in a scrape, and
with at most ``series_max`` series. How many series were left out is a metric itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from nilometer.metrics.exposition import Value, header, series_text
from nilometer.metrics.families import Family, Kind

Series: TypeAlias = tuple[Sequence[str], Value]
"""The values of the labels, and the value."""


class Pause(enum.Enum):
    """The type of :data:`PAUSE`."""

    PAUSE = "pause"


PAUSE: Final = Pause.PAUSE
"""Yielded in place of a family: other work may run now."""


class Measured(NamedTuple):
    """A family and its series, in this scrape."""

    family: Family
    series: Iterable[Series | Literal[Pause.PAUSE]]


Collect: TypeAlias = Callable[[], Iterator[Measured | Literal[Pause.PAUSE]]]

SERIES_OMITTED = Family(
    "nilometer_metrics_series_omitted",
    Kind.GAUGE,
    "How many series of a metric this scrape left out, because the metric had more than its maximum.",
    ("metric",),
)


class Registry:
    def __init__(self) -> None:
        self.families: dict[str, Family] = {SERIES_OMITTED.name: SERIES_OMITTED}
        """All families declared, by name."""
        self._collectors: list[Collect] = []

    def add(self, families: Iterable[Family], collect: Collect) -> None:
        """Declare ``families``, whose values ``collect`` yields. Raises ValueError if a name is taken."""
        for family in families:
            if family.name in self.families:
                raise ValueError(f"there are two metrics {family.name}")
            self.families[family.name] = family
        self._collectors.append(collect)

    def text(self) -> Iterator[str]:
        """Yield the text of a scrape in parts of a few lines; a part may be empty.

        Raises ValueError for a family that was not declared, or is measured twice.
        """
        seen: set[str] = set()
        omitted: dict[str, int] = {}
        for collect in self._collectors:
            for measured in collect():
                if measured is PAUSE:
                    yield ""
                    continue
                self._check(measured.family, seen)
                yield from _family_text(measured, omitted)
        left_out = [((name,), count) for name, count in omitted.items()]
        yield from _family_text(Measured(SERIES_OMITTED, left_out), {})

    def _check(self, family: Family, seen: set[str]) -> None:
        if self.families.get(family.name) is not family:
            raise ValueError(f"the metric {family.name} was not declared")
        if family.name in seen:
            raise ValueError(f"the metric {family.name} was measured twice")
        seen.add(family.name)


def _family_text(measured: Measured, omitted: dict[str, int]) -> Iterator[str]:
    family, count = measured.family, 0
    for series in measured.series:
        if series is PAUSE:
            yield ""
            continue
        count += 1
        if count > family.series_max:
            omitted[family.name] = count - family.series_max
            yield ""
            continue
        text = series_text(family, *series)
        yield header(family) + text if count == 1 else text
