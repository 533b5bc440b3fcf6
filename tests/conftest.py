"""What holds for all tests. pytest puts this folder on the path, from where tests import ``support``."""

from __future__ import annotations

import asyncio
import atexit
import gc
import inspect
import logging
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from support.class_archives.archives import use_for_spark

pytest_plugins = ("support.parts", "support.properties")

QUICK = ("tests/architecture/", "tests/simulation/", "tests/unit/", "tests/test_")
"""`make test` runs what begins like this and is not marked ``thorough`` or ``soak``, and elsewhere what is
marked ``quick``."""

ON_ONE_WORKER = (
    "tests/compatibility/as_kafka",
    "tests/compatibility/clients",
    "tests/pipeline/connectors",
    "tests/pipeline/jobs",
)
"""Folders whose conftest starts Spark, Apache Kafka or clients once for a run of tests: a start costs more
than what another worker would save."""

# The brokers and commands that tests start, many hundreds, have hundreds of modules each: compiling them
# takes longer than all else in a start. Containers often forbid Python to keep the bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

use_for_spark()

# A shell starts what it runs in the background with SIGINT ignored, and every child would inherit that: tests
# that interrupt a command would wait for something that cannot come.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--repeat", type=int, default=1, metavar="N", help="run each test marked `application` N times"
    )
    parser.addoption(
        "--record", action="store_true", help="write what Apache Kafka answers to tests marked `recorded`"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("repeat") or 1
    if times > 1 and metafunc.definition.get_closest_marker("application") is not None:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(1, times + 1))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file in vain: `make test` wants quick tests alone, `make test-all` then the others alone."""
    wanted = config.option.markexpr
    if not wanted.startswith(("quick", "not quick")) or not collection_path.name.startswith("test_"):
        return None
    is_quick = collection_path.relative_to(config.rootpath).as_posix().startswith(QUICK)
    if is_quick == wanted.startswith("quick"):
        return None
    marks = ("mark.thorough",) if is_quick else ("mark.quick", "mark.recorded")
    text = collection_path.read_text()
    return None if any(mark in text for mark in marks) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is quick by its place, before marks select tests.

    Files with a test marked ``long`` come first: several workers then end at about the same time.
    """
    for item in items:
        slow = item.get_closest_marker("thorough") or item.get_closest_marker("soak")
        if item.nodeid.startswith(QUICK) and not slow:
            item.add_marker("quick")
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: (_repetition(item), item.path not in long))


def pytest_collection_finish() -> None:
    """Leave the modules and tests out of garbage collections from now on: they stay, and are many."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # DuckDB's binding reports as a leak what the interpreter does not collect


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Find the test that leaves logging disabled, rather than the next one that looks at log lines."""
    yield
    left = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    assert left == logging.NOTSET, f"{item.nodeid} leaves logging disabled"


def _repetition(item: pytest.Item) -> int:
    """The number of the repetition: each test runs once before one runs again."""
    callspec = getattr(item, "callspec", None)
    return 0 if callspec is None else int(callspec.params.get("repetition", 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """``--dist loadfile``, but that one worker runs all files of a folder in `ON_ONE_WORKER`."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    folders = ("tests/pipeline", *ON_ONE_WORKER) if config.option.markexpr == "quick" else ON_ONE_WORKER

    class LoadFolderScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((folder for folder in folders if path.startswith(f"{folder}/")), path)

    return LoadFolderScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on an event loop of its own: uvloop's, as in production."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
