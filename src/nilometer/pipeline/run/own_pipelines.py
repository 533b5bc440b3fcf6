"""Pipelines in files of the user's own: loaded to run, and written as copies of shipped ones.

A file has the functions of ``PipelineModule``. What it reads and writes it may say in constants: ``INPUTS``
(names of its input topics, in the order of the arguments of ``start``), ``WRITES`` (a topic) and ``TABLE``
(the columns of a CSV file).
"""

from __future__ import annotations

import importlib.util
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.catalogue import SHIPPED, Shipped

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
    if not hasattr(module, "LATENESS"):
        module.LATENESS = timedelta(0)
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
    text = text.replace(f'.queryName("{origin}")', f'.queryName("{name}")')
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
    return text.replace("\nLATENESS = ", "\n" + "\n".join(constants) + "\n\nLATENESS = ", 1)
