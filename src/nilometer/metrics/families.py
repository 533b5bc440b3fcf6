"""A family: one metric's name, type, help and labels. Its series differ only in the values of the labels.

A family has at most ``series_max`` series in one scrape (:mod:`.registry`), so that no client can make a
scrape large with names of its choice.
"""

from __future__ import annotations

import enum
import re

import msgspec

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED_LABELS = frozenset({"le", "quantile"})
SERIES_MAX = 1000
"""The default of :attr:`Family.series_max`."""


class Kind(enum.StrEnum):
    """A family's type, in the word of Prometheus' text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """Quantiles over the last minutes, with the sum and count since the start."""
    HISTOGRAM = "histogram"
    """Counts since the start, by upper bound."""
    UNTYPED = "untyped"
    """A gauge whose name, given by another exporter, ends like a part of a summary (``_count``, ``_sum``)."""


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    series_max: int = SERIES_MAX

    def __post_init__(self) -> None:
        """Raise ValueError for a name or a label that Prometheus' conventions do not allow."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a metric")
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: the names of counters, and only they, end with _total")
        if not self.help.strip():
            raise ValueError(f"{self.name} has no help")
        for label in self.labels:
            if not _NAME.fullmatch(label) or label in _RESERVED_LABELS:
                raise ValueError(f"{self.name}: {label!r} is no name of a label")
