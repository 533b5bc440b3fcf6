"""``nilometer console``: serves the web console on this machine."""

from __future__ import annotations

from collections.abc import Mapping

import click

from nilometer.cli.cluster_options import (
    client_config,
    connection_options,
    run_async,
    stop_on_signals,
)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080

console_port_type = click.IntRange(0, 65535)


@click.command()
@connection_options
@click.option(
    "--host", default=DEFAULT_HOST, show_default=True, help="The address to listen on: a loopback address."
)
@click.option(
    "--port",
    type=console_port_type,
    default=DEFAULT_PORT,
    show_default=True,
    help="The port to listen on; 0 lets the system choose.",
)
@click.option("--read-only", is_flag=True, help="Refuse to write records.")
def console(bootstrap: str, host: str, port: int, read_only: bool) -> None:
    """Serve a web console: brokers, topics, every replica's log and epochs, groups, messages, settings.

    It is for this machine: it listens on loopback, since it has no login yet. Ctrl-C stops it. The cluster
    may be down when it starts, and may come and go.
    """
    serve_console(client_config(bootstrap), host, port, read_only=read_only)


def serve_console(client: Mapping[str, str], host: str, port: int, *, read_only: bool) -> None:
    """Serve until Ctrl-C or SIGTERM; print the URL. Raises UsageError for an address that is not loopback."""
    from nilometer.console.server import Console, NotLoopback

    try:
        served = Console(client, host, port, read_only=read_only)
    except NotLoopback as error:
        raise click.UsageError(f"--host: {error}") from None

    async def serve() -> None:
        stop_on_signals(served.stop)
        await served.serve(lambda url: click.echo(f"Console: {url}"))

    run_async(serve())
