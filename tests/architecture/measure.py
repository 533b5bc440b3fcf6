"""The house in numbers, for each room: ``PYTHONPATH=tests python -m architecture.measure`` writes its table.

The table is in docs/architecture.md. It says where files are by length rather than by idea; nothing is
refused for a number, but modules that import each other are counted exactly.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[2]
SOURCE = TOP / "src"
PAGE = TOP / "docs" / "architecture.md"
BEGIN, END = "<!-- measures: begin -->\n", "<!-- measures: end -->"
SMALL = 60
"""Code lines below which a module with one importer in its own folder should say why it exists."""


class Module(NamedTuple):
    name: str
    is_package: bool
    code_lines: int
    """Without imports, docstrings, comments and empty lines."""
    import_lines: int
    imports: frozenset[str]
    """Other modules of the project, at whatever level they are imported, for type checkers as well."""


class Room(NamedTuple):
    modules: int
    code_lines: int
    import_lines: int
    small: int
    """Modules below `SMALL` lines whose one importer is in their own folder."""

    @property
    def lines_a_module(self) -> int:
        return round(self.code_lines / self.modules)


@functools.cache
def modules() -> dict[str, Module]:
    """Return every module that has code, by its name; packages with imports alone count as such."""
    paths = {_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
    return {name: _module(name, path, paths) for name, path in paths.items()}


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(name: str, path: Path, known: Mapping[str, Path]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    other, imports = set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= _lines(node)
        elif (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            other |= _lines(node.body[0])
    code = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    return Module(
        name,
        path.name == "__init__.py",
        len(code - other - imports),
        len(imports),
        frozenset(_imported(tree, known)) - {name},
    )


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _imported(tree: ast.Module, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                found = (f"{node.module}.{alias.name}", node.module)
                yield from [name for name in found if name in known][:1]


def rooms(all_modules: Mapping[str, Module]) -> dict[str, Room]:
    """Return the measures of each folder directly below the package, and of the modules beside them."""
    importers: dict[str, list[str]] = {name: [] for name in all_modules}
    for module in all_modules.values():
        for name in module.imports:
            importers[name].append(module.name)
    found: dict[str, list[Module]] = {}
    for module in all_modules.values():
        parts = module.name.split(".")
        is_room = len(parts) > 2 or (len(parts) == 2 and module.is_package)
        found.setdefault(f"{parts[1]}/" if is_room else "(beside them)", []).append(module)
    return {
        name: Room(
            len(members),
            sum(module.code_lines for module in members),
            sum(module.import_lines for module in members),
            sum(_is_small(module, importers[module.name]) for module in members),
        )
        for name, members in sorted(found.items())
    }


def _is_small(module: Module, importers: list[str]) -> bool:
    if module.is_package or module.code_lines >= SMALL or len(importers) != 1:
        return False
    return importers[0].rpartition(".")[0] == module.name.rpartition(".")[0]


def circles(all_modules: Mapping[str, Module]) -> list[list[str]]:
    """Return the groups of modules each of which imports all others of its group, by way of others or not."""
    reached = {name: _reached(all_modules, name) for name in all_modules}
    found = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in all_modules
        if name in reached[name]
    }
    return sorted(sorted(circle) for circle in found)


def _reached(all_modules: Mapping[str, Module], start: str) -> set[str]:
    seen, left = set[str](), list(all_modules[start].imports)
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += all_modules[name].imports
    return seen


def table() -> str:
    found = modules()
    lines = [
        "| room | modules | code lines without imports | a module | lines of imports "
        f"| below {SMALL} lines, one importer beside it |",
        "|---|---|---|---|---|---|",
    ]
    measured = rooms(found)
    total = Room(*(sum(column) for column in zip(*measured.values(), strict=True)))
    for name, room in (*measured.items(), ("all", total)):
        label = f"`{name}`" if name.endswith("/") else name
        lines.append(
            f"| {label} | {room.modules} | {room.code_lines} | {room.lines_a_module} | {room.import_lines} "
            f"| {room.small} |"
        )
    in_circles = [len(circle) for circle in circles(found)]
    lines.append("")
    lines.append(
        f"Circles of modules that import each other, imports in functions and for type checkers counted: "
        f"{len(in_circles)}, of {sum(in_circles)} modules."
    )
    return "\n".join(lines) + "\n"


def committed() -> str:
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
