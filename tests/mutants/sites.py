"""Places of the source where a small change makes a mutant, found in its syntax; a seed draws some of them.

The changes are those that matter here: a comparison at its bound, a condition the other way round, a fence
that is removed, a field that is not set, a call that is not made (an fsync, an await, a message), a number
that is off by one.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEED = 20261129
STRATA = {
    "storage": 40,
    "replication": 25,
    "cluster": 35,
    "coordination": 25,
    "raft": 25,
    "groups": 30,
    "share": 15,
    "transactions": 20,
    "coordinators.py": 10,
    "client": 30,
    "security": 15,
    "broker": 40,
}
"""The packages that hold promises, and how many mutants of each are drawn."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
}
BOUNDS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
NOT_MUTATED = ("__repr__", "__str__", "__init__")
TALK = ("logger", "warnings", "click")
"""What only says something."""


@dataclass(frozen=True, slots=True)
class Site:
    path: str
    """Below ``src/nilometer``."""
    function: str
    """Its qualified name; "" at the top of the module."""
    operator: str
    line: int
    start: int
    """In characters from the start of the file, as ``end``."""
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """What stays the same while other lines of the file change."""
        return f"{self.path}::{self.function}::{self.operator}::{' '.join(self.old.split())}"

    def applied(self, text: str) -> str:
        """Return the module's text with the change. Raises ValueError if the place has other text."""
        if text[self.start : self.end] != self.old:
            raise ValueError(f"{self.name} is somewhere else now")
        return text[: self.start] + self.new + text[self.end :]


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, text: str) -> None:
        self.found: list[Site] = []
        self._path, self._text = path, text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = text.splitlines()
        self._names: list[str] = []

    def _at(self, line: int, column: int) -> int:
        """``column`` counts bytes, as the syntax tree does."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _add(self, operator: str, node: ast.expr | ast.stmt, start: int, end: int, new: str) -> None:
        self.found.append(
            Site(
                self._path,
                ".".join(self._names),
                operator,
                node.lineno,
                start,
                end,
                self._text[start:end],
                new,
            )
        )

    def _within(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if node.name not in NOT_MUTATED:
            self._names.append(node.name)
            for one in node.body:
                self.visit(one)
            self._names.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _within

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Asserts say what holds already."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Which error is raised, and with which text, is not what a mutant changes."""

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        start, end = self._span(node.test)
        if not node.orelse and isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue):
            self._add("fence removed", node, start, end, "False")
        else:
            self._add("condition reversed", node, start, end, f"not ({self._text[start:end]})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            old, new = COMPARISONS[type(node.ops[0])]
            _, left = self._span(node.left)
            right, _ = self._span(node.comparators[0])
            between = self._text[left:right]
            if between.count(old) == 1:
                operator = "bound" if isinstance(node.ops[0], BOUNDS) else "comparison reversed"
                self._add(operator, node, left, right, between.replace(old, new))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        (_, left), (right, _) = self._span(node.values[0]), self._span(node.values[1])
        between = self._text[left:right]
        if len(node.values) == 2 and between.count(old) == 1:
            self._add("and, or", node, left, right, between.replace(old, new))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_sum = isinstance(node.op, ast.Add | ast.Sub)
        if is_sum and isinstance(node.right, ast.Constant) and node.right.value == 1:
            _, left = self._span(node.left)
            self._add("off by one", node, left, self._span(node)[1], "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            start, end = self._span(node.func)
            self._add("min, max", node, start, end, "max" if node.func.id == "min" else "min")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and not _talks(value):
            start, end = self._span(node)
            self._add("call dropped", node, start, end, "pass")
        self.generic_visit(node)

    def _set(self, node: ast.Assign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets):
            start, end = self._span(node)
            self._add("field not set", node, start, end, "pass")
        self.generic_visit(node)

    visit_Assign = visit_AugAssign = _set


def _talks(call: ast.Call) -> bool:
    top: ast.expr = call.func
    while isinstance(top, ast.Attribute):
        top = top.value
    return isinstance(top, ast.Name) and top.id in TALK


def sites(package: Path, top: Path) -> Iterator[Site]:
    """Yield the places of a package, or of a module, by file. ``top``: what paths are relative to."""
    for path in sorted(package.rglob("*.py")) if package.is_dir() else [package]:
        text = path.read_text(encoding="utf-8")
        finder = _Finder(path.relative_to(top).as_posix(), text)
        finder.visit(ast.parse(text))
        yield from finder.found


def drawn(top: Path) -> list[Site]:
    """Return the mutants of each package, each operator as often as any other one.

    A place is chosen by its name and the seed alone, so a change elsewhere draws no other ones.
    """
    found: list[Site] = []
    for package, number in STRATA.items():
        by_operator: dict[str, dict[str, Site]] = defaultdict(dict)
        for site in sites(top / package, top):
            by_operator[site.operator].setdefault(site.name, site)
        lots = [
            sorted(each.values(), key=lambda one: random.Random(f"{SEED}{one.name}").random())
            for _, each in sorted(by_operator.items())
        ]
        turns = [site for depth in range(number) for lot in lots for site in lot[depth : depth + 1]]
        found += turns[:number]
    return found
