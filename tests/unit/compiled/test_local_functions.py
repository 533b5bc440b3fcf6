"""No function of a compiled module is held by its own scope.

Cython keeps the variables that inner functions share in one object. A local function that another inner
function uses is one of these variables: function and scope hold each other, and with them all that the scope
has, for example a request, until a collection of garbage.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import dedent

import pytest

from nilometer.compiled import source_of
from nilometer.compiled.modules import MODULES

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.GeneratorExp


def functions_in_cycles(source: str) -> Iterator[str]:
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        scopes = [one for one in ast.walk(function) if isinstance(one, Scope) and one is not function]
        local = set(local_functions(function))
        for scope in scopes:
            yield from sorted(local & set(names_read(scope)))


def local_functions(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for one in ast.walk(function):
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one is not function:
            yield one.name
        elif isinstance(one, ast.Assign) and isinstance(one.value, (ast.Lambda, ast.GeneratorExp)):
            yield from (target.id for target in one.targets if isinstance(target, ast.Name))


def names_read(scope: Scope) -> Iterator[str]:
    """Yield the names that the scope takes from those around it, and its own."""
    for part in ast.iter_child_nodes(scope):
        for one in ast.walk(part):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and not is_argument(scope, one):
                yield one.id


def is_argument(scope: Scope, name: ast.Name) -> bool:
    """Whether ``name`` is in what a generator expression goes through first, which is evaluated outside."""
    return isinstance(scope, ast.GeneratorExp) and name in ast.walk(scope.generators[0].iter)


@pytest.mark.parametrize("module", MODULES)
def test_no_local_function_is_held_by_its_own_scope(module: str) -> None:
    source = source_of(f"nilometer.{module}").read_text("utf-8")
    assert list(functions_in_cycles(source)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a):\n    def g(): return a\n    return tuple(g() for _ in a)", ["g"]),
        ("def f(a):\n    def g(): return g()\n    return g", ["g"]),
        ("def f(a):\n    g = lambda: a\n    return [(lambda: g)]", ["g"]),
        ("def f(a):\n    def g(): return a\n    return g()", []),
        ("def f(a):\n    b = (one for one in a)\n    return tuple(one for one in b)", []),
    ],
)
def test_the_check_sees_cycles(source: str, found: list[str]) -> None:
    assert list(functions_in_cycles(dedent(source))) == found
