"""``nilometer model-check``: explores every state of a small cluster, and reports the first wrong one."""

from __future__ import annotations

import json
import sys

import click

from nilometer.cli import commands
from nilometer.replication.follower import TruncationRule
from nilometer.simulation.model_check.explorer import Progress, explore, loss, violation
from nilometer.simulation.model_check.report import report
from nilometer.simulation.model_check.tables import Bounds
from nilometer.simulation.model_check.world import World


@commands.command("model-check")
@click.option("--brokers", type=click.IntRange(2, 4), default=2, show_default=True)
@click.option("--min-insync-replicas", type=click.IntRange(1, 4), default=1, show_default=True)
@click.option("--values", type=click.IntRange(1, 5), default=2, show_default=True, help="Records to produce.")
@click.option("--leader-epochs", type=click.IntRange(1, 6), default=3, show_default=True)
@click.option("--crashes", type=click.IntRange(0, 5), default=1, show_default=True)
@click.option("--lag-expiries", type=click.IntRange(0, 5), default=0, show_default=True)
@click.option(
    "--mishaps",  # codespell:ignore
    "message_faults",
    type=click.IntRange(0, 5),
    default=0,
    show_default=True,
    help="How many messages may arrive twice, or later than a newer one.",
)
@click.option("--rule", type=click.Choice([rule.value for rule in TruncationRule]), default="by-leader-epoch")
@click.option("--only-loss", is_flag=True, help="Check only that no acknowledged record is lost.")
@click.option("--states-max", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def model_check(
    brokers: int,
    min_insync_replicas: int,
    values: int,
    leader_epochs: int,
    crashes: int,
    lag_expiries: int,
    message_faults: int,
    rule: str,
    only_loss: bool,
    states_max: int,
    as_json: bool,
) -> None:
    """Check the replication core in every order of events, within bounds.

    The exit code is 1 if an invariant is violated.
    """
    bounds = Bounds(
        brokers=brokers,
        min_insync_replicas=min_insync_replicas,
        values=values,
        leader_epochs=leader_epochs,
        crashes=crashes,
        lag_expiries=lag_expiries,
        message_faults=message_faults,
        rule=TruncationRule(rule),
        keeps_delayed_messages=message_faults > 0,
    )
    world = World(bounds)
    seen = explore(
        world, states_max=states_max, judge=loss if only_loss else violation, on_level=_show_progress
    )
    if sys.stderr.isatty():
        click.echo(err=True)
    lines = report(world, seen)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "states": seen.states,
                    "steps": seen.transitions,
                    "complete": seen.is_complete,
                    "violation": None if seen.violation is None else str(seen.violation),
                    "lines": lines,
                }
            )
        )
    else:
        click.echo("\n".join(lines))
    sys.exit(0 if seen.violation is None else 1)


def _show_progress(progress: Progress) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{progress.states:,} states, {progress.depth} steps deep ", nl=False, err=True)
