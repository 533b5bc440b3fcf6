"""The rows of latency against load: one constant rate after another, until the system is saturated.

Times count from when a record was due, so beyond saturation they grow with the time of the measurement. A
system is saturated when it acknowledges less than was sent to it, or its p99 is above a second; no higher
rate is tried then. The picture has both systems; a broken line is p99.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from . import plays
from .rows import Column, Numbers, Row
from .steady import until_steady
from .systems import System

RATES = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 400_000, 800_000)
WARM_UP_RATE = 5_000
WARM_UP_S = 30.0
WARM_UP_ROUND_S = 3.0
POINT_S = 4.0
SIZE = 100
PARTITIONS = {1: 1, 3: 6}
ACCEPTED_SHARE = 0.95
SATURATED_P99_MS = 1_000.0
GOOD_P99_MS = 10.0
POINT_KEYS = ("p50_ms", "p99_ms", "p999_ms", "achieved_per_s", "cpu_percent", "client_busiest_percent")
COLORS = {"Nilometer": "#0b6e99", "Apache Kafka": "#b5552b"}


def _curve(
    system: System,
    brokers: int,
    rates: tuple[int, ...] = RATES,
    point_s: float = POINT_S,
    warm_up_s: float = WARM_UP_S,
    warm_up_round_s: float = WARM_UP_ROUND_S,
) -> Numbers:
    system.launch()
    system.wait_ready()

    def play(rate: int, seconds: float) -> Numbers:
        partitions = PARTITIONS[brokers]
        return plays.constant_rate(
            system, seconds, rate=rate, size=SIZE, partitions=partitions, brokers=brokers
        )

    def warm_up() -> float:
        p50 = play(WARM_UP_RATE, warm_up_round_s)["p50_ms"]
        assert not isinstance(p50, list)
        return p50

    found: dict[str, list[float]] = {"warm_up": until_steady(warm_up, warm_up_s), "offered_per_s": []}
    for rate in rates:
        point = play(rate, point_s)
        found["offered_per_s"].append(rate)
        for key in POINT_KEYS:
            number = point.get(key, -1.0)  # a client that ran for too short a time to be watched
            assert not isinstance(number, list)
            found.setdefault(key, []).append(number)
        if is_saturated(rate, found):
            break
    return {**found, "good_per_s": highest_good(found)}


def is_saturated(rate: int, found: dict[str, list[float]]) -> bool:
    """By the last point of ``found``."""
    return found["achieved_per_s"][-1] < ACCEPTED_SHARE * rate or found["p99_ms"][-1] > SATURATED_P99_MS


def highest_good(found: dict[str, list[float]]) -> float:
    """The highest rate with all that was sent acknowledged and a p99 that is good."""
    points = zip(found["offered_per_s"], found["achieved_per_s"], found["p99_ms"], strict=True)
    good = [
        rate for rate, achieved, p99 in points if achieved >= ACCEPTED_SHARE * rate and p99 <= GOOD_P99_MS
    ]
    return max(good, default=0.0)


def draw(samples: dict[str, dict[str, list[float]]], path: Path, title: str) -> None:
    """Both systems in one picture, ``path`` with the end `.svg`."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    # The same numbers give the same file, with text as text.
    mpl.rcParams.update({"svg.hashsalt": "nilometer", "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for system, found in samples.items():
        for key, style, label in (("p50_ms", "-", "p50"), ("p99_ms", "--", "p99")):
            color = COLORS.get(system, "black")
            axes.plot(
                found["offered_per_s"],
                found[key],
                style,
                marker="o",
                ms=3,
                color=color,
                label=f"{system}, {label}",
            )
    axes.set(xscale="log", yscale="log", xlabel="records/s", ylabel="ms until acknowledged", title=title)
    axes.grid(which="both", alpha=0.25)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    pyplot.close(figure)


_WHERE = {1: "one broker", 3: "three brokers"}


def _row(brokers: int) -> Row:
    title = f"{_WHERE[brokers]}: records of {SIZE} B, linger 0, acks=all, at rising rates"
    quick = {"rates": (500, 5_000), "point_s": 1.0, "warm_up_s": 0.0, "warm_up_round_s": 0.5}
    return Row(
        f"curve-{brokers}",
        title,
        (
            Column(
                "good_per_s",
                f"highest rate tried with a p99 of at most {GOOD_P99_MS:.0f} ms",
                "records/s",
                more_is_better=True,
                digits=0,
            ),
        ),
        measure=partial(_curve, brokers=brokers),
        quick=partial(_curve, brokers=brokers, **quick),
        brokers=brokers,
        once=True,
        draw=partial(draw, title=title),
    )


CURVE_ROWS: tuple[Row, ...] = (_row(1), _row(3))
