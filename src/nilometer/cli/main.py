"""The `nilometer` command: its subcommands by name, and how errors become messages and exit codes.

Commands are imported when they are used, so that ``nilometer --help`` is fast, and a package that one command
needs (Spark, for example) is not needed by the others.

Exit codes: 0 done (also if the reader of standard output closed it), 1 failed, 2 wrong usage, 70 a bug of
Nilometer, 130 interrupted by Ctrl-C or SIGTERM. ``simulate`` has codes of its own.

An error is one message: what was wrong, where, what to do. No traceback is printed unless the environment
variable ``NILOMETER_TRACEBACK`` is set.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from nilometer import compiled
from nilometer.cli import commands
from nilometer.cli.process import drop_unwritten_output, prepare_standard_streams
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
        "brokers",
        "up",
        "Start a cluster on this machine. Brokers that already run are left alone.",
    ),
    "down": _Lazy("brokers", "down", "Stop the brokers of a data folder."),
    "status": _Lazy("status", "status", "Show a cluster's health and its brokers."),
    "broker": _Lazy("brokers", "broker", "Run one broker in the foreground; list and configure brokers."),
    "topic": _Lazy(
        "topics",
        "topic",
        "Create, list, describe, alter and delete topics; their offsets and settings.",
    ),
    "produce": _Lazy("produce", "produce", "Write lines, JSON lines or files to a topic."),
    "consume": _Lazy("consume", "consume", "Print the records of a topic."),
    "queue": _Lazy("queues", "queue", "Create queues, put and do jobs, list dead ones and put them again."),
    "group": _Lazy("groups", "group", "List, describe and delete groups, reset their offsets."),
    "transaction": _Lazy(
        "transactions",
        "transaction",
        "List, describe and abort transactions, and find hanging ones.",
    ),
    "acl": _Lazy("acls", "acl", "List, add and remove ACLs: who may do what."),
    "user": _Lazy("users", "user", "List, add and remove the users of SCRAM."),
    "token": _Lazy("tokens", "token", "Create, describe, renew and expire delegation tokens."),
    "quota": _Lazy("quotas", "quota", "List, set and remove quotas: how much clients may ask of a broker."),
    "ingest": _Lazy("ingest", "ingest", "Write the lines of files to a topic, each once."),
    "replicas": _Lazy("replicas", "replicas", "Show every replica's log end, high watermark and epochs."),
    "log": _Lazy("log", "log", "Print the contents of log files."),
    "reassign": _Lazy("reassign", "reassign", "Move partitions to other brokers."),
    "elect-leaders": _Lazy("reassign", "elect_leaders", "Elect partition leaders."),
    "rotate-secret": _Lazy(
        "metadata",
        "rotate_secret",
        "Rotate the secret that brokers authenticate each other with.",
    ),
    "exporter": _Lazy(
        "exporter",
        "exporter",
        "Serve the lag of consumer groups as metrics, with kafka_exporter's names.",
    ),
    "console": _Lazy("console_command", "console", "Serve a web console that shows the cluster live."),
    "cluster": _Lazy("cluster", "cluster", "Describe and change the metadata quorum."),
    "metadata": _Lazy("metadata", "metadata", "Read the cluster's metadata log; copy it to another store."),
    "scenario": _Lazy("replication_models", "scenario", "Play replication scenarios, step by step."),
    "storage": _Lazy("storage", "storage", "Format and look at a broker's log directory."),
    "model-check": _Lazy(
        "replication_models",
        "model_check",
        "Check the replication core in every order of events of a small cluster.",
    ),
    "recorder": _Lazy(
        "recorder", "recorder", "Show recordings of brokers, replay them, and save copies without secrets."
    ),
    "simulate": _Lazy("simulate", "simulate", "Simulate whole clusters under faults, by seed."),
    "audit": _Lazy(
        "pipelines.folder_commands", "audit", "Check every replica's files, and compare the replicas."
    ),
    "archive": _Lazy(
        "pipelines.stored_commands", "archive", "Copy sealed segments into an archive; list what it has."
    ),
    "tier": _Lazy(
        "pipelines.stored_commands", "tier", "Show what remote storage has; restore topics from it alone."
    ),
    "export": _Lazy("pipelines.folder_commands", "export_command", "Write topics to Parquet files."),
    "pipeline": _Lazy("pipelines.pipeline_commands", "pipeline", "Run the shipped Spark pipelines."),
    "spark": _Lazy("pipelines.spark_commands", "spark", "Run your own Spark jobs on topics."),
    "completion": _Lazy("main", "completion", "Print the script for completion in a shell."),
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


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        made_of = commit()
        details = [*([f"commit {made_of}"] if made_of else []), compiled.form()]
        click.echo(f"nilometer, version {__version__} ({', '.join(details)})")
        context.exit()


def commit() -> str | None:
    """Return the commit of this installation: as its build wrote it down, or of the checkout; else None."""
    package = Path(__file__).resolve().parents[1]
    with contextlib.suppress(FileNotFoundError):
        return (package / "commit").read_text(encoding="ascii")
    checkout = package.parents[1]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # without git, or of another user


@click.group(cls=LazyGroup, context_settings=SETTINGS)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, the commit that it was made of, and whether it is compiled, and exit.",
)
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


# The messages of errors that reach the command line: what was wrong, where, and what to do.
#
# Nothing heavy is imported before there is an error.

EXTRAS = {
    "spark": (
        "pyspark",
        "pyarrow",
        "pandas",
        "numpy",
        "numba",
        "google",
        "matplotlib",
        "grpc",
        "grpc_status",
        "yaml",
    ),
    "postgres": ("psycopg",),
    "mysql": ("pymysql",),
    "secure": ("cryptography",),
    "console": ("starlette", "uvicorn", "jinja2"),
}
"""The extras of the package, and the modules that come with each: the base package does not need them."""

_ADVICE = {
    "NETWORK_EXCEPTION": "`nilometer up` starts a broker; --bootstrap-server is for one that runs elsewhere.",
    "UNKNOWN_TOPIC_OR_PARTITION": "`nilometer topic list` shows the topics.",
    "UNKNOWN_TOPIC_ID": "`nilometer topic list` shows the topics.",
    "INVALID_TOPIC_EXCEPTION": "A topic's name has 1 to 249 letters, digits, dots, underscores and hyphens.",
    "MESSAGE_TOO_LARGE": "The topic's max.message.bytes and the producer's max.request.size limit a record.",
    "GROUP_ID_NOT_FOUND": "`nilometer group list` shows the groups.",
    "NOT_ENOUGH_REPLICAS": "Fewer replicas are in sync than min.insync.replicas: start stopped brokers.",
}
_OTHER_SECURITY = (
    "--command-config names a file with these settings; `nilometer up --secure` writes one and names it."
)


def explain(error: Exception) -> str | None:
    """Return the message of an error that the user or the environment caused; None for a bug."""
    from nilometer.config import ConfigError
    from nilometer.runtime import LockHeld
    from nilometer.wire.errors import KafkaError

    if isinstance(error, KafkaError):
        from nilometer.client.network.connection import NotServed

        advice = _OTHER_SECURITY if isinstance(error, NotServed) else _ADVICE.get(error.name)
        return str(error) + (f"\n{advice}" if advice else "")
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error.name)
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r} is not UTF-8 text"
    if isinstance(error, (LockHeld, ConfigError)):
        return str(error)
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC and not error.filename:
            return f"standard output: {error.strerror}"
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


def is_wrong_usage(error: Exception) -> bool:
    """Whether the command line itself was wrong, rather than what it met."""
    from nilometer.config import ConfigError

    return isinstance(error, (ConfigError, UnicodeEncodeError))


def missing_extra(module: str | None) -> str | None:
    """Return how to install the extra that ``module`` belongs to; None if it belongs to none."""
    top = (module or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return f"this command needs {top}, which is not installed: pip install 'nilometer[{extra}]'"
    return None


# ``nilometer completion``: the script with which a shell completes the command's words.

PROGRAM = "nilometer"
VARIABLE = "_NILOMETER_COMPLETE"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@commands.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    bash: eval "$(nilometer completion bash)"             in ~/.bashrc; bash 4.4 or newer
    zsh:  eval "$(nilometer completion zsh)"              in ~/.zshrc, after compinit
    fish: nilometer completion fish > ~/.config/fish/completions/nilometer.fish
    """
    root = click.get_current_context().find_root().command
    maker = SHELLS[shell](root, {}, PROGRAM, VARIABLE)
    # Not maker.source(): for bash it starts one to learn its version, and this one may not be the user's.
    click.echo(maker.source_template % maker.source_vars())
