"""What a broker and the commands import when they start: nothing of a feature that is not used.

Every import is part of each start, of those of hundreds of test brokers too.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PRINT_MODULES = "import sys; print(*sys.modules)"
OF_FEATURES = {
    # what takes long to load, and the modules of ours that load it or are loaded for one feature alone
    "click",
    "cryptography",
    "difflib",
    "jinja2",
    "joserfc",
    "kazoo",
    "logging.handlers",
    "nilometer.broker.monitoring",
    "nilometer.cli",
    "nilometer.client.network.sasl_login",
    "nilometer.console",
    "nilometer.coordination.zookeeper.store",
    "nilometer.groups.shard",
    "nilometer.http.client",
    "nilometer.http.server",
    "nilometer.pipeline",
    "nilometer.simulation",
    "numpy",
    "pyarrow",
    "pyspark",
    "rich",
    "starlette",
}
COMMANDS = {
    "nilometer.cli.brokers": {"nilometer.cluster", "nilometer.coordination", "rich"},
    "nilometer.cli.status": {"nilometer.cluster", "nilometer.coordination"},
    "nilometer.cli.topics": {"nilometer.cluster", "nilometer.storage", "rich"},
    "nilometer.cli.main": {"asyncio", "kio", "msgspec", "nilometer.client", "rich"},
}
"""By the module of a command, what it has no use for."""
COUNT_DATACLASSES = """
import dataclasses, sys
import nilometer.broker.process

for name, module in list(sys.modules.items()):
    for value in list(vars(module).values()):
        is_ours = name.startswith("nilometer.") and getattr(value, "__module__", None) == name
        if is_ours and isinstance(value, type) and dataclasses.is_dataclass(value):
            print(f"{name}.{value.__name__}")
"""
DATACLASSES_MAX = 40


def printed(program: str) -> list[str]:
    """Return the words that ``program`` prints in an interpreter of its own."""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ended.stdout.split()


def loaded_of(unwanted: set[str], module: str) -> set[str]:
    """Return which of ``unwanted``, or modules of theirs, are loaded with ``module``."""
    modules = printed(f"import {module}; {PRINT_MODULES}")
    assert module in modules
    return {one for one in unwanted if any(f"{name}.".startswith(f"{one}.") for name in modules)}


def test_a_broker_loads_no_feature_before_it_is_used() -> None:
    unwanted = OF_FEATURES | {"nilometer.local", "nilometer.testing"}
    assert loaded_of(unwanted, "nilometer.broker.process") == set()


@pytest.mark.parametrize("module", COMMANDS)
def test_a_command_loads_what_it_uses(module: str) -> None:
    features = OF_FEATURES - {"click", "nilometer.cli", "rich", "logging.handlers"}
    assert loaded_of(features | COMMANDS[module], module) == set()


def test_the_values_of_a_broker_are_structs() -> None:
    """A dataclass compiles its methods in each process, which takes half a millisecond; a Struct has none.

    Of the few dataclasses that remain, most leave a password out of their text, which a Struct cannot.
    """
    found = printed(COUNT_DATACLASSES)
    assert 0 < len(found) <= DATACLASSES_MAX, found
