"""``nilometer scenario`` and ``nilometer model-check``: replication by hand or in every order of events, with
the real code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from nilometer.cli import commands
from nilometer.replication.follower import TruncationRule
from nilometer.simulation.model_check.explorer import Exploration, Progress, Step, explore
from nilometer.simulation.model_check.properties import loss, violation
from nilometer.simulation.model_check.tables import Bounds, View
from nilometer.simulation.model_check.world import World
from nilometer.simulation.recording import recording_lines
from nilometer.simulation.scenarios import SCENARIOS, recorded

# ``nilometer scenario list | run NAME``: plays scenarios of replication and prints all values at each step.
#
# They run the brokers' replication code, in memory and without a cluster; the same command always prints the
# same.

_RULES = [rule.value for rule in TruncationRule]


@commands.group()
def scenario() -> None:
    """Play scenarios of replication: high watermark, leader epochs, recovery."""


@scenario.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def list_scenarios(as_json: bool) -> None:
    """List the scenarios."""
    if as_json:
        listing = [{"name": it.name, "summary": it.summary} for it in SCENARIOS.values()]
        click.echo(json.dumps(listing))
        return
    width = max(len(name) for name in SCENARIOS)
    for it in SCENARIOS.values():
        click.echo(f"{it.name:{width}}  {it.summary}")


@scenario.command("run")
@click.argument("name", type=click.Choice(list(SCENARIOS)), metavar="NAME")
@click.option(
    "--rule",
    type=click.Choice(_RULES),
    default=TruncationRule.BY_LEADER_EPOCH.value,
    show_default=True,
    help="How a replica truncates when it begins to follow; the other rule is Kafka's before 0.11.",
)
@click.option(
    "--record",
    "recording",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Record it to this file, too, for `nilometer console --replay`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def run_scenario(name: str, rule: str, recording: Path | None, as_json: bool) -> None:
    """Play the scenario NAME."""
    lines = SCENARIOS[name].play(TruncationRule(rule)).lines
    if recording is not None:
        recorded_lines = recording_lines(recorded(SCENARIOS[name], TruncationRule(rule)))
        recording.write_text("".join(f"{line}\n" for line in recorded_lines), encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"name": name, "rule": rule, "lines": list(lines)}))
        return
    for line in lines:
        click.echo(line)


# ``nilometer model-check``: explores every state of a small cluster, and reports the first wrong one.

# Writes a result of the model check as text: each step, and the log of each replica after it.

_STEP_TEXTS = {
    "produce": "broker {0} appends value {1}",
    "serve": "the fetch of broker {0} arrives at its leader",
    "take": "the fetch response arrives at broker {0}",
    "alter": "the ISR change that broker {0} requests arrives at the controller",
    "take-alter": "the controller's response arrives at broker {0}",
    "learn": "broker {0} reads the next metadata entry",
    "ask-again": "the fetch of broker {0} times out, and it fetches again",
    "lag": "broker {0} finds that {1} has lagged for too long",
    "crash": "broker {0} crashes",
    "expire": "the session of broker {0} expires while it runs",
    "notice": "the session of broker {0} expires",
    "restart": "broker {0} is back with {1} records",
    "restart-forgetful": "broker {0} is back with {1} records and no high watermark",
    "restart-unproven": "broker {0} is back with {1} records and cannot prove that these are all",
    "rejoin": "broker {0} finds itself fenced and registers again",
    "elect": "broker {0} is elected",
    "depose": "the controller is deposed and does not know it",
    "stale-append": "the deposed controller writes what it decided on its old image",
}


def report(world: World, seen: Exploration) -> list[str]:
    """Return the lines of the report: the size of the search, and the steps to the violation, if any."""
    how_far = "every reachable state" if seen.is_complete else f"as far as {seen.depth} steps"
    lines = [f"{world.bounds}", f"{seen.states:,} states, {seen.transitions:,} steps: {how_far}"]
    if seen.violation is None:
        return [*lines, "no violation"]
    lines += [f"VIOLATION after {len(seen.counterexample)} steps: {seen.violation}", ""]
    for number, (step, state) in enumerate(seen.counterexample, 1):
        lines.append(f"{number:3}. {describe_step(step)}")
        lines += [f"       {_drawn(view)}" for view in world.views_of(state)]
    return lines


def describe_step(step: Step) -> str:
    """Return the sentence that describes ``step``."""
    name, broker, detail = step
    plain, kept, old = name.partition("-and-keep")
    text = _STEP_TEXTS[plain].format(broker, detail)
    if not kept:
        return text
    return (
        f"{text}; its previous request is still in flight" if old else f"{text}, and will be delivered again"
    )


def _drawn(view: View) -> str:
    part = "no role" if view.is_up else "down"
    if view.serves:
        part = f"{'leader' if view.is_leader else 'follower'} e{view.leader_epoch}"
    cells = (
        f"[{value}·e{epoch}]" if offset < view.high_watermark else f" {value}·e{epoch} "
        for offset, (value, epoch) in enumerate(zip(view.values, view.epochs, strict=True))
    )
    return f"{view.broker}  {part:12} HW {view.high_watermark}  {''.join(cells)}".rstrip()


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
