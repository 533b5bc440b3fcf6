"""A registry's text, read by the parser of Prometheus' own Python client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from nilometer.metrics import PAUSE, SERIES_OMITTED, Distribution, Family, Kind, Measured, Registry

LAG = Family("some_lag", Kind.GAUGE, "How far\nbehind \\ it is.", ("topic", "follower"))
SEEN = Family("some_seen_total", Kind.COUNTER, "How many were seen.")
TIMES = Family("some_times", Kind.SUMMARY, "How long it took.", ("request",))
SECONDS = Family("some_seconds", Kind.HISTOGRAM, "How long it took.")


def registry_of(*measured: Measured, families: tuple[Family, ...] | None = None) -> Registry:
    registry = Registry()
    registry.add([one.family for one in measured] if families is None else families, lambda: iter(measured))
    return registry


def parsed(registry: Registry) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families("".join(registry.text()))}


def test_numbers_and_labels_arrive_as_they_are() -> None:
    odd = 'a "topic"\\with\nsigns'
    found = parsed(
        registry_of(Measured(LAG, [((odd, "1"), 7), (("b", "2"), 0.5)]), Measured(SEEN, [((), 1 << 60)]))
    )
    assert [(one.labels, one.value) for one in found["some_lag"].samples] == [
        ({"topic": odd, "follower": "1"}, 7),
        ({"topic": "b", "follower": "2"}, 0.5),
    ]
    assert (found["some_lag"].type, found["some_lag"].documentation) == ("gauge", LAG.help)
    assert (found["some_seen"].type, found["some_seen"].samples[0].value) == ("counter", 1 << 60)


def test_a_distribution_is_a_summary_in_milliseconds_or_a_histogram_in_seconds() -> None:
    distribution = Distribution()
    for value_us in (50, 5_000, 5_000_000):
        distribution.observe(value_us, 0)
    reading = distribution.reading(0)
    found = parsed(
        registry_of(Measured(TIMES, [(("Produce",), reading)]), Measured(SECONDS, [((), reading)]))
    )
    summary = {(one.name, one.labels.get("quantile")): one.value for one in found["some_times"].samples}
    assert summary["some_times", "0.50"] == pytest.approx(5, rel=1 / 32)
    assert summary["some_times", "0.999"] == pytest.approx(5_000, rel=1 / 32)
    assert summary["some_times_sum", None] == pytest.approx(5_005.05)
    assert summary["some_times_count", None] == 3
    histogram = {(one.name, one.labels.get("le")): one.value for one in found["some_seconds"].samples}
    assert histogram["some_seconds_bucket", "6.4e-05"] == 1
    assert histogram["some_seconds_bucket", "0.008192"] == 2
    assert histogram["some_seconds_bucket", "+Inf"] == histogram["some_seconds_count", None] == 3


def test_a_family_has_at_most_its_number_of_series_and_the_rest_is_counted() -> None:
    few = Family("few", Kind.GAUGE, "Few.", ("topic",), series_max=3)
    series = [((f"t{number}",), number) for number in range(10)]
    found = parsed(registry_of(Measured(few, series)))
    assert [one.labels["topic"] for one in found["few"].samples] == ["t0", "t1", "t2"]
    assert [(one.labels, one.value) for one in found[SERIES_OMITTED.name].samples] == [({"metric": "few"}, 7)]


def test_a_pause_is_a_part_without_text() -> None:
    def collect() -> Iterator[Measured]:
        yield PAUSE  # pyright: ignore[reportReturnType]
        yield Measured(LAG, [PAUSE, (("a", "1"), 1), PAUSE])

    registry = Registry()
    registry.add([LAG], collect)
    assert [bool(part) for part in registry.text()] == [False, False, True, False]


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("Upper", Kind.GAUGE, ()),
        ("a-b", Kind.GAUGE, ()),
        ("count", Kind.COUNTER, ()),
        ("gauge_total", Kind.GAUGE, ()),
        ("fine", Kind.GAUGE, ("networkProcessor",)),
        ("fine", Kind.GAUGE, ("le",)),
    ],
)
def test_a_name_against_the_conventions_is_rejected(name: str, kind: Kind, labels: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=name if not labels else labels[0]):
        Family(name, kind, "Help.", labels)


def test_a_name_belongs_to_one_family_and_is_measured_once() -> None:
    registry = registry_of(Measured(LAG, []))
    with pytest.raises(ValueError, match="two metrics some_lag"):
        registry.add([Family(LAG.name, Kind.GAUGE, "Another.")], lambda: iter(()))
    with pytest.raises(ValueError, match="some_lag was measured twice"):
        list(registry_of(Measured(LAG, []), Measured(LAG, []), families=(LAG,)).text())
    with pytest.raises(ValueError, match="some_seen_total was not declared"):
        list(registry_of(Measured(SEEN, []), families=(LAG,)).text())
