"""The fields of a log's state are assigned by their owner alone; all others call its named transitions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.storage.log_state import LogState

SRC = Path(__file__).resolve().parents[3] / "src/nilometer"
OWNER = SRC / "storage/log_state.py"
STATE = {name for name in LogState.__slots__ if not name.startswith("_")}
LOGS = {"log", "_log", "state", "_state"}


def foreign_assignments(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=targets):
                assigned = [part for target in targets for part in ast.walk(target)]
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                assigned = [target]
            case _:
                continue
        for target in assigned:
            match target:
                case ast.Attribute(
                    attr=field, ctx=ast.Store(), value=ast.Name(id=owner) | ast.Attribute(attr=owner)
                ):
                    if field in STATE and owner in LOGS:
                        yield f"{owner}.{field}, line {node.lineno}"


def test_no_other_module_assigns_the_state_of_a_log() -> None:
    modules = [path for path in SRC.rglob("*.py") if path != OWNER and "replication" not in path.parts]
    found = {str(path.relative_to(SRC)): list(foreign_assignments(path.read_text())) for path in modules}
    assert {path: places for path, places in found.items() if places} == {}


@pytest.mark.parametrize(
    ("line", "is_foreign"),
    [
        ("log.flushed_offset = 3", True),
        ("log.log_end_offset = log.flushed_offset = 3", True),
        ("self._log.cleaned_offset += 1", True),
        ("partition.log.read_hints = {}", True),
        ("log.config = config", True),
        ("self.state.gap = None", True),
        ("role.log_end_offset = 3", False),
        ("end = log.log_end_offset", False),
    ],
)
def test_what_counts_as_an_assignment(line: str, is_foreign: bool) -> None:
    assert bool(list(foreign_assignments(line))) == is_foreign
