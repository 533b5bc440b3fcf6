"""The `nilometer` command: its subcommands by name, and how errors become messages and exit codes.

Commands are imported when they are used, so that ``nilometer --help`` is fast, and a package that one command
needs (Spark, for example) is not needed by the others.

Exit codes: 0 done (also if the reader of standard output closed it), 1 failed, 2 wrong usage, 70 a bug of
Nilometer, 130 interrupted by Ctrl-C or SIGTERM. ``simulate`` has codes of its own.

An error is one message: what was wrong, where, what to do. No traceback is printed unless the environment
variable ``NILOMETER_TRACEBACK`` is set.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from nilometer.cli import commands
from nilometer.cli.error_texts import explain, is_wrong_usage
from nilometer.cli.standard_streams import drop_unwritten_output, prepare_standard_streams
from nilometer.version import __version__

FAILED = 1
USED_WRONGLY = 2
BUG = 70
INTERRUPTED = 130
TRACEBACK_VARIABLE = "NILOMETER_TRACEBACK"
SETTINGS = {"help_option_names": ["-h", "--help"], "color": True}
"""``color``: click would remove escapes from text, and the names shown would be others; they are spelled."""


class _Lazy(NamedTuple):
    module: str
    attribute: str
    summary: str


COMMANDS: dict[str, _Lazy] = {
    "up": _Lazy(
        "cluster.broker_commands",
        "up",
        "Start a cluster on this machine. Brokers that already run are left alone.",
    ),
    "down": _Lazy("cluster.broker_commands", "down", "Stop the brokers of a data folder."),
    "status": _Lazy("cluster.status_command", "status", "Show a cluster's health and its brokers."),
    "broker": _Lazy(
        "cluster.broker_commands", "broker", "Run one broker in the foreground; list and configure brokers."
    ),
    "topic": _Lazy(
        "topics.topic_commands",
        "topic",
        "Create, list, describe, alter and delete topics; their offsets and settings.",
    ),
    "produce": _Lazy("records.produce_command", "produce", "Write lines, JSON lines or files to a topic."),
    "consume": _Lazy("records.consume_command", "consume", "Print the records of a topic."),
    "group": _Lazy(
        "groups.group_commands", "group", "List, describe and delete consumer groups, reset their offsets."
    ),
    "transaction": _Lazy(
        "transactions.transaction_commands",
        "transaction",
        "List, describe and abort transactions, and find hanging ones.",
    ),
    "acl": _Lazy("acls.acl_commands", "acl", "List, add and remove ACLs: who may do what."),
    "user": _Lazy("users.user_commands", "user", "List, add and remove the users of SCRAM."),
    "token": _Lazy("tokens.token_commands", "token", "Create, describe, renew and expire delegation tokens."),
    "quota": _Lazy(
        "quotas.quota_commands", "quota", "List, set and remove quotas: how much clients may ask of a broker."
    ),
    "ingest": _Lazy("records.ingest_command", "ingest", "Write the lines of files to a topic, each once."),
    "replicas": _Lazy(
        "replicas.replicas_commands", "replicas", "Show every replica's log end, high watermark and epochs."
    ),
    "log": _Lazy("records.log_commands", "log", "Print the contents of log files."),
    "reassign": _Lazy("replicas.reassign_commands", "reassign", "Move partitions to other brokers."),
    "elect-leaders": _Lazy("replicas.elect_leaders_commands", "elect_leaders", "Elect partition leaders."),
    "rotate-secret": _Lazy(
        "cluster.secret_commands",
        "rotate_secret",
        "Rotate the secret that brokers authenticate each other with.",
    ),
    "exporter": _Lazy(
        "cluster.exporter_command",
        "exporter",
        "Serve the lag of consumer groups as metrics, with kafka_exporter's names.",
    ),
    "console": _Lazy(
        "cluster.console_command", "console", "Serve a web console that shows the cluster live."
    ),
    "metadata": _Lazy("cluster.metadata_commands", "metadata", "Read the cluster's metadata log."),
    "scenario": _Lazy(
        "simulation.scenario_commands", "scenario", "Play replication scenarios, step by step."
    ),
    "model-check": _Lazy(
        "simulation.model_check_commands",
        "model_check",
        "Check the replication core in every order of events of a small cluster.",
    ),
    "simulate": _Lazy(
        "simulation.simulate_commands", "simulate", "Simulate whole clusters under faults, by seed."
    ),
    "audit": _Lazy(
        "pipelines.audit_command", "audit", "Check every replica's files, and compare the replicas."
    ),
    "archive": _Lazy(
        "pipelines.archive_command", "archive", "Copy sealed segments into an archive; list what it has."
    ),
    "export": _Lazy("pipelines.export_command", "export_command", "Write topics to Parquet files."),
    "pipeline": _Lazy("pipelines.pipeline_commands", "pipeline", "Run the shipped Spark pipelines."),
    "spark": _Lazy("pipelines.spark_commands", "spark", "Run your own Spark jobs on topics."),
    "completion": _Lazy("completion_command", "completion", "Print the script for completion in a shell."),
}


class OutputClosed(Exception):
    """The reader of standard output has closed it. This is not an error."""


class LazyGroup(commands.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, lazy in COMMANDS.items() if _exists(lazy)]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what can follow ``nilometer``, without importing every command for its summary."""
        commands = [
            CompletionItem(name, help=COMMANDS[name].summary)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosed from error  # click would exit with 1

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None or not _exists(lazy):
            return None
        command = getattr(importlib.import_module(_module(lazy)), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


def _module(lazy: _Lazy) -> str:
    return f"nilometer.cli.{lazy.module}"


def _exists(lazy: _Lazy) -> bool:
    return importlib.util.find_spec(_module(lazy)) is not None


@click.group(cls=LazyGroup, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="nilometer")
def cli() -> None:
    """A replicated, partitioned log that speaks Kafka's wire protocol."""


def main() -> None:
    """Run the command of this process and exit. Ctrl-C interrupts the command alone, see ``__main__``."""
    prepare_standard_streams()
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    try:
        if not is_ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run(sys.argv[1:])
        if not is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:  # another one, while the first was handled
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command. Returns its exit code."""
    try:
        result = cli.main(args=arguments, prog_name="nilometer", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return INTERRUPTED
    except (OutputClosed, BrokenPipeError):
        return 0
    except Exception as error:
        return _report(error)
    finally:
        drop_unwritten_output()


def _report(error: Exception) -> int:
    """Print the message of an error that no command handled; return the exit code."""
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    message = explain(error)
    if message is None:
        text = f"{type(error).__name__}: {error}"
        message = (
            f"this is a bug of Nilometer: {text}\n"
            f"With {TRACEBACK_VARIABLE}=1 in the environment, the same command prints where it happened."
        )
        click.echo(f"Error: {message}", err=True, color=True)
        return BUG
    click.echo(f"Error: {message}", err=True, color=True)
    return USED_WRONGLY if is_wrong_usage(error) else FAILED
