"""A bare ``assert`` only narrows a type; what guards a state raises InvariantBroken, which ``-O`` keeps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "nilometer"


def narrows(test: ast.expr) -> bool:
    match test:
        case ast.BoolOp(values=values):
            return all(narrows(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return narrows(operand)
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case _:
            return False


def test_every_assert_narrows_a_type() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and not narrows(node.test)
    ]
    assert not found, "raise InvariantBroken (nilometer.invariants) instead"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("assert found is not None", True),
        ("assert value is None or isinstance(value, str)", True),
        ("assert not isinstance(request, Listing)", True),
        ("assert offset <= end", False),
        ("assert found is not None and found.size > 0", False),
        ("assert not self._sent", False),
    ],
)
def test_which_asserts_narrow_a_type(line: str, expected: bool) -> None:
    statement = ast.parse(line).body[0]
    assert isinstance(statement, ast.Assert)
    assert narrows(statement.test) == expected
