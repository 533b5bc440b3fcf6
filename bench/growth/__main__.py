"""`python -m bench.growth`: measure the curves, and write their page. `--help` names the options."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from datetime import UTC, datetime

import click

from .. import report
from ..run import console
from ..systems import compile_nilometer
from . import page
from .brokers import BROKERS
from .clients import CLIENTS
from .curve import Curve, Point, scratch_folders
from .partitions import PARTITIONS

CURVES: tuple[Curve, ...] = (PARTITIONS, *BROKERS, *CLIENTS)


@click.command()
@click.option(
    "--curve", "keys", multiple=True, type=click.Choice([each.key for each in CURVES]), help="Only this one."
)
@click.option("--at-most", type=click.IntRange(1), help="No larger sizes than this.")
@click.option("--quick", is_flag=True, help="In miniature, to see that curves work; implies --dry.")
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
def main(keys: tuple[str, ...], at_most: int | None, quick: bool, dry: bool) -> None:
    """How the cost of a cluster grows: bench/results/growth/."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # brokers are stopped
    compile_nilometer()
    with scratch_folders():
        for curve in CURVES:
            if keys and curve.key not in keys:
                continue
            sizes = curve.quick_sizes if quick else curve.sizes
            points = _measure(curve, [size for size in sizes if at_most is None or size <= at_most])
            if not (quick or dry):
                page.write(curve, points, _facts())
                console.print(f"written: {page.render(CURVES)}")


def _measure(curve: Curve, sizes: list[int]) -> list[tuple[int, Point]]:
    console.print(f"[bold]{curve.key}[/bold]: {curve.title}")
    points: list[tuple[int, Point]] = []
    for size in sizes:
        began = time.monotonic()
        point = curve.measure(size)
        points.append((size, point))
        shown = "; ".join(
            f"{each.title}: {point[each.key]:,.{each.digits}f} {each.unit}" for each in curve.measures
        )
        console.print(f"  {size:,} ({time.monotonic() - began:.0f} s): {shown}", highlight=False)
    return points


def _facts() -> dict[str, object]:
    return {
        "command": shlex.join(["python", "-m", "bench.growth", *sys.argv[1:]]),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": report.revision(),
        "machine": ", ".join(f"{key} {value}" for key, value in report.machine().items()),
    }


if __name__ == "__main__":
    main()
