"""Metrics as values: families, distributions, and Prometheus' text format. Pure: time is an argument."""

from nilometer.metrics.distribution import Distribution, DistributionReading
from nilometer.metrics.families import PAUSE, Collect, Family, Kind, Measured, Pause, Registry, Series

__all__ = [
    "PAUSE",
    "Collect",
    "Distribution",
    "DistributionReading",
    "Family",
    "Kind",
    "Measured",
    "Pause",
    "Registry",
    "Series",
]
