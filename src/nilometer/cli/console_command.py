"""``nilometer console``: serves the web console, on this machine or with a login on a network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    bootstrap_option,
    check_client_security,
    client_config,
    command_config_option,
    run_async,
    stop_on_signals,
)
from nilometer.cli.registry_options import registry_options
from nilometer.config import ConfigError

if TYPE_CHECKING:
    from nilometer.console.serving import Serving
    from nilometer.schema_registry.client import SchemaRegistry


DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080

console_port_type = click.IntRange(0, 65535)
CHANGES = ("none", "records", "all")
_file = click.Path(dir_okay=False)


@commands.command()
@bootstrap_option
@partial(command_config_option, needs_user=False)
@click.option(
    "--host",
    default=DEFAULT_HOST,
    show_default=True,
    help="The address to listen on; one that is not loopback needs --login and --tls-certificate.",
)
@click.option(
    "--port",
    type=console_port_type,
    default=DEFAULT_PORT,
    show_default=True,
    help="The port to listen on; 0 lets the system choose.",
)
@click.option(
    "--login",
    is_flag=True,
    help="Each user logs in with a name and password of the brokers (SCRAM or PLAIN), and has that user's "
    "rights.",
)
@click.option(
    "--tls-certificate",
    metavar="FILE",
    type=_file,
    help="Serve over TLS with this certificate chain (PEM). The file may have the private key, too.",
)
@click.option(
    "--tls-key", metavar="FILE", type=_file, help="The private key (PEM), if it is in a file of its own."
)
@click.option(
    "--changes",
    type=click.Choice(CHANGES),
    help="What users may change: none; records, to write them (default); or all: topics, their settings and "
    "the offsets of groups, too.",
)
@registry_options
@click.option("--read-only", is_flag=True, help="The same as --changes none.")
@click.option(
    "--replay",
    "recordings",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Replay this recording of `nilometer simulate --record`, too; may be repeated.",
)
def console(
    bootstrap: str,
    host: str,
    port: int,
    login: bool,
    tls_certificate: str | None,
    tls_key: str | None,
    changes: str | None,
    registry: SchemaRegistry | None,
    read_only: bool,
    recordings: tuple[Path, ...],
) -> None:
    """Serve a web console: brokers, topics, every replica's log and epochs, groups, messages, settings.

    By default it is for this machine, without a login. Ctrl-C stops it. The cluster may be down when it
    starts, and may come and go.
    """
    from nilometer.console.serving import Changes, Serving
    from nilometer.runtime.tls import ServerTls, TlsFiles

    if read_only and changes not in (None, "none"):
        raise click.UsageError(f"--read-only and --changes {changes} contradict each other: give one of them")

    if tls_key is not None and tls_certificate is None:
        raise click.UsageError("--tls-key: give the certificate, too: --tls-certificate FILE")
    tls = None
    if tls_certificate is not None:
        chain = None if tls_key is None else tls_certificate
        tls = ServerTls(files=TlsFiles(key_file=tls_key or tls_certificate, certificate_file=chain))
    client = client_config(bootstrap)
    if not login:
        try:
            check_client_security(client)
        except ConfigError as error:
            raise click.UsageError(f"--command-config: {error}; or let users log in: --login") from None
    allowed = Changes.NONE if read_only else Changes(changes or Changes.RECORDS)
    serving = Serving(
        host=host,
        port=port,
        changes=allowed,
        has_login=login,
        tls=tls,
        recordings=recordings,
        registry=registry,
    )
    _serve(client, serving)


def serve_console(client: Mapping[str, str], port: int) -> None:
    """Serve on loopback until Ctrl-C or SIGTERM; print the URL."""
    from nilometer.console.serving import Serving

    _serve(client, Serving(host=DEFAULT_HOST, port=port))


def _serve(client: Mapping[str, str], serving: Serving) -> None:
    """Raises UsageError, ClickException."""
    from nilometer.console.reading.cluster_access import CannotLogIn
    from nilometer.console.server import Console
    from nilometer.console.serving import NotProtected
    from nilometer.runtime.tls import TlsUnusable
    from nilometer.simulation.recording import BadRecording

    try:
        served = Console(client, serving)
    except NotProtected as error:
        raise click.UsageError(str(error)) from None
    except CannotLogIn as error:
        raise click.UsageError(f"--login: {error}") from None
    except TlsUnusable as error:
        raise click.ClickException(f"--tls-certificate: {error}") from None
    except BadRecording as error:
        raise click.UsageError(f"--replay: {error}") from None

    def on_ready(url: str) -> None:
        click.echo(f"Console: {url}")
        if served.replay_url is not None:
            click.echo(f"Replay: {served.replay_url}")

    async def serve() -> None:
        stop_on_signals(served.stop)
        await served.serve(on_ready)

    run_async(serve())
