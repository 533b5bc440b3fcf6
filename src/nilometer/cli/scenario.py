"""``nilometer scenario list | run NAME``: plays scenarios of replication and prints all values at each step.

They run the brokers' replication code, in memory and without a cluster; the same command always prints the
same.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from nilometer.cli import commands
from nilometer.replication.follower import TruncationRule
from nilometer.simulation.recording.format import recording_lines
from nilometer.simulation.scenarios import SCENARIOS
from nilometer.simulation.scenarios.catalogue import recorded

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
