"""``nilometer scenario list | run NAME``: plays scenarios of replication and prints all values at each step.

They run the brokers' replication code, in memory and without a cluster; the same command always prints the
same.
"""

from __future__ import annotations

import json

import click

from nilometer.replication import TruncationRule
from nilometer.simulation.scenarios import SCENARIOS

_RULES = [rule.value for rule in TruncationRule]


@click.group()
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def run_scenario(name: str, rule: str, as_json: bool) -> None:
    """Play the scenario NAME."""
    lines = SCENARIOS[name].play(TruncationRule(rule)).lines
    if as_json:
        click.echo(json.dumps({"name": name, "rule": rule, "lines": list(lines)}))
        return
    for line in lines:
        click.echo(line)
