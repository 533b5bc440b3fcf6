"""Which pipelines there are, and their settings: the shipped ones by name, and those in files of the user's
own.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import sys
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from nilometer.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# The shipped pipelines by name: their input topics, their output and a summary.

DEAD_LETTERS = "dead-letters"
"""The default topic of rejected records."""


class PipelineModule(Protocol):
    """The functions that a shipped pipeline's module must have.

    It may also have ``charts``, ``SOURCE_OPTIONS``, a dataclass ``Settings`` (with a ``check`` that raises
    PipelineError), ``check`` (of the output folder and the settings, before Spark starts) and ``finish``,
    which writes what is still open. ``formats`` and ``settings`` are passed by name to the functions that
    have such an argument.
    """

    def start(self, *inputs_and_output: Any, available_now: bool, seconds: int) -> StreamingQuery:
        """Start the pipeline. The positional arguments are the inputs' records and the output folder.

        ``to_topic`` and ``table`` are passed by name to pipelines that need them.
        """
        ...

    def results(self, spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]: ...


@dataclass(frozen=True, slots=True)
class Shipped:
    name: str
    summary: str
    inputs: tuple[str, ...]
    """The default names of the topics that it reads."""
    writes: str | None = None
    """The default name of the topic that it writes to; None if it writes to none."""
    table: str | None = None
    """The columns of the CSV file that it needs, separated by commas; None if it needs none."""
    sample_settings: tuple[str, ...] = ()
    """The settings, as for ``--set``, that its generated input needs."""
    path: str | None = None
    """The file of a pipeline of the user's own; None for a shipped one."""

    @property
    def module(self) -> str:
        return f"nilometer.pipeline.shipped.{self.name}"

    def load(self) -> PipelineModule:
        """Import and return its module, which imports pyspark."""
        return cast(PipelineModule, importlib.import_module(self.module))


SHIPPED = {
    one.name: one
    for one in (
        Shipped(
            "logs",
            "Parses access, syslog and package manager logs; counts by minute, status or level, name.",
            ("logs",),
        ),
        Shipped(
            "activity",
            "Finds sessions, page views, funnels and top paths in access logs.",
            ("access",),
        ),
        Shipped(
            "metrics",
            "Rolls up measurements by minute; writes an alert to a topic when a rule is broken.",
            ("measurements",),
            writes="alerts",
        ),
        Shipped(
            "changelog",
            "Makes the current table and its history (SCD 1 and 2) from a database's change events.",
            ("changes",),
        ),
        Shipped(
            "join",
            "Joins orders with their payments within an hour, and with a table of customers.",
            ("orders", "payments"),
            table="customer,name,country",
        ),
        Shipped(
            "notifications",
            "Writes messages to users, for a webhook, when events reach a threshold.",
            ("events",),
            writes="notifications",
            table="user,name,language,address",
        ),
        Shipped(
            "burst",
            "Processes a burst of records, which its topic holds, at a fixed rate.",
            ("burst",),
        ),
        Shipped(
            "table",
            "Writes a topic as a table of Delta Lake, Iceberg or Parquet, each record once.",
            ("orders",),
            sample_settings=("schema=infer",),
        ),
    )
}


# Pipelines in files of the user's own: loaded to run, and written as copies of shipped ones.
#
# A file has the functions of ``PipelineModule``. What it reads and writes it may say in constants: ``INPUTS``
# (names of its input topics, in the order of the arguments of ``start``), ``WRITES`` (a topic) and ``TABLE``
# (the columns of a CSV file).

_NEEDED: Final = ("start", "results")

_TEST = '''"""Runs {name}.py on generated input, with a broker of its own: `pytest {folder}`."""

import json
import subprocess
import sys
from pathlib import Path

PIPELINE = Path(__file__).with_name("{name}.py")


def run(*arguments):
    """Run a command of nilometer and return what it prints."""
    command = [sys.executable, "-m", "nilometer.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_{name}_reads_its_input(nilometer, tmp_path):
    where = ("--bootstrap-server", nilometer.bootstrap_servers, "--home", tmp_path / "pipelines")
    run("pipeline", "sample", "{origin}", "--records", "2000", *where)
    said = run("pipeline", "run", PIPELINE, "--available-now", "--json", {table}*where)
    results = json.loads(said)["results"]
    assert any(results.values())
'''


def load_own(path: Path) -> tuple[Shipped, ModuleType]:
    """Load the pipeline in the file ``path``. Raises PipelineError if it is none."""
    name = path.stem
    if not path.is_file():
        raise PipelineError(
            f"{path} is no file. Pipelines are {', '.join(SHIPPED)}; "
            "`nilometer pipeline new NAME` writes a copy of one, to change"
        )
    if not name.isidentifier():
        raise PipelineError(f"{path}: a pipeline's file is named by letters, digits and _, such as mine.py")
    spec = importlib.util.spec_from_file_location(f"nilometer_pipeline_{name}", path.resolve())
    if spec is None or spec.loader is None:
        raise PipelineError(f"{path} is no Python file (*.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PipelineError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    missing = [one for one in _NEEDED if not callable(getattr(module, one, None))]
    if missing:
        raise PipelineError(
            f"{path} has no function {' and no '.join(missing)}: see `nilometer pipeline new`"
        )
    _send_to_workers(module)
    return _described(name, path, module), module


def _send_to_workers(module: ModuleType) -> None:
    """Have Spark send the module's functions to its workers, which cannot import it by its name."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # pyright: ignore[reportUnknownMemberType]


def _described(name: str, path: Path, module: Any) -> Shipped:
    summary = (module.__doc__ or name).strip().partition("\n")[0]
    inputs = tuple(getattr(module, "INPUTS", (name,)))
    writes, table = getattr(module, "WRITES", None), getattr(module, "TABLE", None)
    return Shipped(name, summary, inputs, writes, table, path=str(path))


def write_copy(name: str, origin: str, folder: Path) -> tuple[Path, Path]:
    """Write a copy of shipped pipeline ``origin`` as ``name``, and its test; return their paths.

    Raises PipelineError if a file exists already.
    """
    if not name.isidentifier() or name.startswith("_"):
        raise PipelineError(
            f"{name!r}: a pipeline's name has letters, digits and _, and begins with a letter"
        )
    shipped = SHIPPED[origin]
    pipeline, test = folder / f"{name}.py", folder / f"test_{name}.py"
    for path in (pipeline, test):
        if path.exists():
            raise PipelineError(f"{path} exists already; name another pipeline or folder")
    source = Path(__file__).parents[1] / "shipped" / f"{origin}.py"
    folder.mkdir(parents=True, exist_ok=True)
    pipeline.write_text(
        _renamed(source.read_text(encoding="utf-8"), name, shipped, pipeline), encoding="utf-8"
    )
    table = f'"--table", tmp_path / "pipelines" / "{origin}" / "table.csv", ' if shipped.table else ""
    given = "".join(f'"--set", "{one}", ' for one in shipped.sample_settings)
    text = _TEST.format(name=name, origin=origin, table=table + given, folder=folder)
    test.write_text(text, encoding="utf-8")
    return pipeline, test


def _renamed(text: str, name: str, shipped: Shipped, path: Path) -> str:
    """Give a shipped pipeline's text another name, and constants with its inputs and its output."""
    origin = shipped.name
    text = text.replace(f'"""{origin}: ', f'"""{name}: ', 1)
    text = text.replace(f"nilometer pipeline run {origin}", f"nilometer pipeline run ./{path.name}")
    text = re.sub(rf'(start_batches\(\s*)"{origin}", ', rf'\1"{name}", ', text)
    constants = [
        f"INPUTS = {shipped.inputs!r}",
        '"""The topics that are read, unless --topic names others."""',
    ]
    if shipped.writes is not None:
        constants += [
            f"WRITES = {shipped.writes!r}",
            '"""The topic that is written to, unless --to names one."""',
        ]
    if shipped.table is not None:
        constants += [f"TABLE = {shipped.table!r}", '"""The columns of the file that --table names."""']
    place = "\nSOURCE_OPTIONS = "
    return text.replace(place, "\n" + "\n".join(constants) + f"\n{place}", 1)


# The settings of a pipeline: its dataclass ``Settings``, changed by ``--set KEY=VALUE`` and TOML files.
#
# A file has one table per pipeline, ``[activity]``, so that one file serves several. Durations are texts such
# as ``30 minutes`` or ``45m``; rows, such as the steps of a funnel, are tables or lists. Pure.

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)")
_UNITS: Final = {
    **dict.fromkeys(("", "s", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
SECONDS_MAX: Final = 10 * 365 * 86_400


class SettingError(PipelineError):
    """A setting is unknown or has an invalid value; the message names it."""


def duration(text: str) -> timedelta:
    """Parse ``30 minutes``, ``45m``, ``90`` (seconds). Raises ValueError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found.group(2) not in _UNITS:
        raise ValueError(f"{text!r} is no duration; examples are 30 minutes, 45m, 2h, 90s")
    seconds = float(found.group(1)) * _UNITS[found.group(2)]
    if seconds > SECONDS_MAX or not (span := timedelta(seconds=seconds)):
        raise ValueError(f"{text!r} is no duration from a microsecond to ten years")
    return span


def given_settings(name: str, files: Sequence[tuple[str, str]], pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of pipeline ``name`` in TOML files (name and text) and then in ``--set`` pairs.

    A value of a pair is TOML, or a text. Raises SettingError.
    """
    found: dict[str, Any] = {}
    for source, text in files:
        try:
            table = tomllib.loads(text).get(name, {})
        except tomllib.TOMLDecodeError as error:
            raise SettingError(f"--settings: {source} is not TOML: {error}") from None
        if not isinstance(table, dict):
            raise SettingError(f"--settings: {source}: {name} must be a table, [{name}]")
        found.update(cast("dict[str, Any]", table))
    for key, value in pairs.items():
        found[key] = _toml_value(value)
    return found


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def make_settings(settings_type: type[Any], given: Mapping[str, Any]) -> Any:
    """Return ``settings_type`` with the given values. Raises SettingError for one that does not fit."""
    hints = typing.get_type_hints(settings_type)
    names = [one.name for one in dataclasses.fields(settings_type)]
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in names:
            raise SettingError(f"there is no setting {key}. There are {', '.join(names)}")
        try:
            values[key] = _converted(value, hints[key])
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise SettingError(f"setting {key}: {error}") from None
    return settings_type(**values)


def _converted(value: Any, hint: Any) -> Any:
    if hint is timedelta:
        return duration(str(value))
    if typing.get_origin(hint) is tuple:
        (row, _) = typing.get_args(hint)
        if not isinstance(value, list) or not value:
            raise ValueError("it is a list of at least one row")
        return tuple(_row(one, row) for one in cast("list[Any]", value))
    return msgspec.convert(value, hint)


def _row(value: Any, row: Any) -> Any:
    """Return a row, given as a list or as a table of the row's columns."""
    columns: tuple[str, ...] = getattr(row, "_fields", ())
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        unknown, missing = sorted(set(table) - set(columns)), [one for one in columns if one not in table]
        if unknown or missing:
            raise ValueError(f"a row has the columns {', '.join(columns)}, and not {', '.join(table)}")
        value = [table[one] for one in columns]
    return msgspec.convert(value, row)
