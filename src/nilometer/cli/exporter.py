"""``nilometer exporter``: the lag of consumer groups as metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import re
import sys

import click

from nilometer.broker.settings.listeners import HttpEndpoint, metrics_endpoint
from nilometer.cli import commands
from nilometer.cli.cluster_options import client_config, connection_options, run_async, stop_on_signals
from nilometer.config import ConfigError
from nilometer.exporter import Exporter, Selection
from nilometer.runtime import Runtime

DEFAULT_LISTENER = "127.0.0.1:9308"


def _endpoint(_context: click.Context, _parameter: click.Parameter, value: str) -> HttpEndpoint:
    try:
        endpoint = metrics_endpoint(value)
    except ConfigError:
        raise click.BadParameter(f"{value!r} is not of the form HOST:PORT") from None
    assert endpoint is not None, "there is a default"
    return endpoint


def _pattern(_context: click.Context, _parameter: click.Parameter, value: str) -> re.Pattern[str]:
    try:
        return re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from None


@commands.command()
@connection_options
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTENER,
    show_default=True,
    callback=_endpoint,
    help="Where to serve /metrics and /healthz.",
)
@click.option(
    "--topics", metavar="REGEX", default=".*", show_default=True, callback=_pattern, help="Only these topics."
)
@click.option(
    "--groups", metavar="REGEX", default=".*", show_default=True, callback=_pattern, help="Only these groups."
)
def exporter(bootstrap: str, listen: HttpEndpoint, topics: re.Pattern[str], groups: re.Pattern[str]) -> None:
    """Serve the lag of consumer groups, and offsets and replicas of topics, as metrics for Prometheus.

    The names are those of kafka_exporter. Each scrape reads the cluster.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    run_async(_serve(client_config(bootstrap), listen, Selection(topics, groups)))


async def _serve(client: dict[str, str], listen: HttpEndpoint, selection: Selection) -> None:
    stopped = asyncio.Event()
    stop_on_signals(stopped.set)
    serving = Exporter(Runtime.system(), client, selection)
    try:
        port = await serving.serve(listen.host, listen.port)
        click.echo(f"{HttpEndpoint(listen.host, port)}/metrics")
        await stopped.wait()
    finally:
        await serving.close()
