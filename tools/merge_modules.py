"""Merge and move modules of the package, and follow every import: ``python -m tools.merge_modules PLAN``.

A plan is a TOML file::

    [[module]]
    name = "nilometer.groups.offsets"           # the module that is written
    docstring = "..."                           # what it is about
    docstring_of = "nilometer.groups.table"     # or this: the part whose docstring it keeps
    parts = ["nilometer.groups.table", "nilometer.groups.expiry"]
    sections = true   # each part's docstring becomes a comment above its text; without it they go
    rename = {"nilometer.groups.expiry:_run" = "_run_expiry"}   # names that two parts bind
    subject = {"nilometer.groups.expiry" = "expiry"}   # for each name that another part has, too

The text of the parts is kept line by line, in the order of the list, except that a part stands below the
parts that it imports; what they import is gathered above. Imports in `ROOTS` and dotted names and paths in
texts follow. A part that is a package names its ``__init__.py``; a package whose modules are all parts may
become a module of the same name. Names of loggers stay as they were.

Nothing is written if a plan cannot be carried out: two parts define a name, an import would end in a circle
inside the module, a new name is taken where it would be used.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
SOURCE = TOP / "src"
COMPILED = SOURCE / "nilometer" / "compiled" / "modules.py"
ROOTS = ("src", "tests", "bench", "tools", "packaging")
TEXTS = (".md", ".toml", ".cfg", ".ini", ".txt", ".yml", ".yaml", ".service", ".rst", ".sh", ".importlinter")
LINE = 110
FUTURE = "from __future__ import annotations"


class PlanError(Exception):
    """A plan cannot be carried out as it is."""


@dataclass
class Target:
    """One ``[[module]]`` of a plan."""

    name: str
    docstring: str
    parts: list[str]
    rename: dict[tuple[str, str], str]
    subject: dict[str, str]
    has_sections: bool
    docstring_of: str | None

    @property
    def base(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def package(self) -> str:
        return self.name.rpartition(".")[0]


def read_plan(path: Path) -> list[Target]:
    """Return the modules that the plan at ``path`` asks for.

    Raises:
        PlanError: a part is named twice or does not exist.
    """
    targets: list[Target] = []
    seen: set[str] = set()
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["module"]:
        rename: dict[tuple[str, str], str] = {}
        for key, new in entry.get("rename", {}).items():
            module, _, name = key.partition(":")
            rename[module, name] = new
        target = Target(
            name=entry["name"],
            docstring=entry.get("docstring", "").strip(),
            parts=entry["parts"],
            rename=rename,
            subject=entry.get("subject", {}),
            has_sections=entry.get("sections", False),
            docstring_of=entry.get("docstring_of"),
        )
        for part in target.parts:
            if part in seen:
                raise PlanError(f"{part} is a part of two modules")
            seen.add(part)
            path_of(part)
        name_by_subject(target)
        if unknown := {module for module, _ in rename} - set(target.parts):
            raise PlanError(f"{target.name} renames in {sorted(unknown)}, which are no parts of it")
        if target.docstring_of not in (None, *target.parts):
            raise PlanError(f"{target.docstring_of} is no part of {target.name}")
        if len(target.parts) > 1 and not (target.docstring or target.docstring_of):
            raise PlanError(f"{target.name} has no docstring")
        targets.append(target)
    return targets


def name_by_subject(target: Target) -> None:
    """Add to the target's new names one for each name that a part with a subject shares with another part."""
    kinds = {part: _definitions(part) for part in target.parts}
    for part, subject in target.subject.items():
        others = {name for other in target.parts if other != part for name in kinds[other]}
        for name, is_class in kinds[part].items():
            if name == "API" or (name in others and name != "__all__"):
                target.rename.setdefault((part, name), _named(name, subject, is_class))


def _definitions(part: str) -> dict[str, bool]:
    """Return the names that ``part`` defines, and whether each is a class."""
    found: dict[str, bool] = {}
    for node in ast.parse(path_of(part).read_bytes()).body:
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.If):
            found |= dict.fromkeys(bound_names(node), isinstance(node, ast.ClassDef))
    return found


def _named(name: str, subject: str, is_class: bool) -> str:
    """Return ``_run_expiry``, ``ExpiryTimer`` or ``_EXPIRY_MAX``; for ``API`` the subject alone."""
    underscore = "_" if name.startswith("_") else ""
    bare = name.lstrip("_")
    if bare == "API":
        return f"{underscore}{subject.upper()}"
    if is_class:
        return underscore + "".join(word.title() for word in subject.split("_")) + bare
    if bare.isupper():
        return f"{underscore}{subject.upper()}_{bare}"
    return f"{underscore}{bare}_{subject}"


def path_of(module: str) -> Path:
    stem = SOURCE / Path(*module.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    raise PlanError(f"there is no module {module}")


def module_of(path: Path) -> str:
    relative = path.relative_to(SOURCE).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    return ".".join(parts)


@dataclass
class Edit:
    start: int
    end: int
    text: str


class Source:
    """The text of one file, edited by position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = path.read_bytes()
        self.tree = ast.parse(self.raw)
        self._starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.edits: list[Edit] = []

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        found: Any = node
        return self.offset(found.lineno, found.col_offset), self.offset(
            found.end_lineno, found.end_col_offset
        )

    def replace(self, node: ast.AST, text: str) -> None:
        start, end = self.span(node)
        self.edits.append(Edit(start, end, text))

    def lines(self, first: int, last: int) -> tuple[int, int]:
        """Return where the lines ``first`` to ``last``, both counted from 1, begin and end."""
        return self._starts[first - 1], self._starts[last]

    def line(self, number: int) -> str:
        start, end = self.lines(number, number)
        return self.raw[start:end].decode()

    def result(self, start: int = 0, end: int | None = None) -> str:
        """Return the text between two positions of the old text, edited."""
        end = len(self.raw) if end is None else end
        pieces: list[bytes] = []
        at = start
        for edit in sorted(self.edits, key=lambda edit: (edit.start, edit.end)):
            if edit.start < at or edit.end > end:
                continue
            pieces += [self.raw[at : edit.start], edit.text.encode()]
            at = edit.end
        pieces.append(self.raw[at:end])
        return b"".join(pieces).decode()


@dataclass
class Imported:
    """One name that an import statement binds, as the plan leaves it."""

    module: str
    name: str
    asname: str | None

    @property
    def bound(self) -> str:
        return self.asname or self.name


@dataclass
class Rewriting:
    """What the plan means for one file."""

    source: Source
    own: Target | None
    part: str | None
    rebound: dict[str, str] = field(default_factory=dict)
    """Names of the file that are called otherwise from now on."""
    unqualified: set[str] = field(default_factory=set)
    """Names of modules that are now this module itself: ``name.x`` becomes ``x``."""
    modules: dict[str, str] = field(default_factory=dict)
    """By the name that a module had in the file: the part that it was."""


class Plan:
    """All targets together: where each part goes, and what each name of it is called there."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.home = {part: target for target in targets for part in target.parts}
        self.renamed = {key: new for target in targets for key, new in target.rename.items()}

    def new_name(self, module: str, name: str) -> str:
        return self.renamed.get((module, name), name)

    def rewrite_import(self, node: ast.ImportFrom, rewriting: Rewriting) -> list[Imported] | None:
        """Return what ``node`` binds from now on, without what is in the module itself; None if it stays."""
        module = node.module
        if node.level:
            if rewriting.part is None:
                return None
            package = rewriting.part.split(".")
            if rewriting.source.path.name != "__init__.py":
                package.pop()
            package = package[: len(package) - node.level + 1]
            module = ".".join([*package, *filter(None, [module])])
        if module is None or not module.startswith("nilometer"):
            return None
        is_changed = bool(node.level)
        found: list[Imported] = []
        for alias in node.names:
            dotted = f"{module}.{alias.name}"
            if dotted in self.home and not (module in self.home and self._defines(module, alias.name)):
                is_changed = True
                self._import_module(dotted, alias, rewriting, found)
                continue
            place, name = module, alias.name
            if rewriting.own is not None:
                place, name = origin(module, alias.name)
                is_changed |= place != module
            if place not in self.home:
                asname = alias.asname or (alias.name if alias.name != name else None)
                found.append(Imported(place, name, asname))
                continue
            is_changed = True
            target = self.home[place]
            name = self.new_name(place, name)
            if target is rewriting.own:
                if (alias.asname or alias.name) != name:
                    rewriting.rebound[alias.asname or alias.name] = name
                continue
            if alias.asname is None and name != alias.name:
                rewriting.rebound[alias.name] = name
            found.append(Imported(target.name, name, alias.asname))
        return found if is_changed else None

    def _defines(self, module: str, name: str) -> bool:
        """Return whether ``module`` binds ``name`` itself, so that it is no module below a package."""
        tree = ast.parse(path_of(module).read_bytes())
        return name in {bound for node in tree.body for bound in bound_names(node)}

    def _import_module(
        self, dotted: str, alias: ast.alias, rewriting: Rewriting, found: list[Imported]
    ) -> None:
        target = self.home[dotted]
        bound = alias.asname or alias.name
        rewriting.modules[bound] = dotted
        if target is rewriting.own:
            rewriting.unqualified.add(bound)
            return
        asname = alias.asname
        if asname is None and target.base != alias.name:
            if target.base in _names_in(rewriting.source.tree) and not self._is_target_there(
                target, rewriting
            ):
                self._import_names(dotted, bound, rewriting, found)
                return
            rewriting.rebound[alias.name] = target.base
        found.append(Imported(target.package, target.base, asname))

    def _is_target_there(self, target: Target, rewriting: Rewriting) -> bool:
        """Return whether the file calls a part of ``target`` as the target is called."""
        return any(
            self.home.get(f"{node.module}.{alias.name}") is target
            for node in ast.walk(rewriting.source.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (alias.asname or alias.name) == target.base
        )

    def _import_names(self, part: str, bound: str, rewriting: Rewriting, found: list[Imported]) -> None:
        """Import what the file uses of ``part`` by name: the new name of the module is taken there."""
        tree, target = rewriting.source.tree, self.home[part]
        uses = [
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == bound
        ]
        number = sum(isinstance(node, ast.Name) and node.id == bound for node in ast.walk(tree))
        names = sorted({self.new_name(part, attribute) for attribute in uses})
        taken = _names_in(tree) | {name for node in tree.body for name in bound_names(node)}
        if number != len(uses) or set(names) & taken:
            raise PlanError(
                f"{rewriting.source.path}: {bound} becomes {target.base}, a name there already, "
                f"as are some of {names}"
            )
        rewriting.unqualified.add(bound)
        found += [Imported(target.name, name, None) for name in names]


@cache
def _imported_from(module: str) -> dict[str, tuple[str, str]]:
    """By its name in a module: what that module imports from others of Nilometer."""
    try:
        tree = ast.parse(path_of(module).read_bytes())
    except PlanError:
        return {}
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nilometer.")
        for alias in node.names
    }


def origin(module: str, name: str, through_packages: bool = False) -> tuple[str, str]:
    """Return the module that defines what ``module`` calls ``name``, and its name there.

    A package is asked only if ``through_packages``: what it offers is meant to be imported from it.
    """
    while (found := _imported_from(module).get(name)) is not None:
        is_package = (SOURCE / Path(*module.split("."))).is_dir()
        if (is_package and not through_packages) or _is_module(f"{found[0]}.{found[1]}"):
            break
        module, name = found
    return module, name


def _is_module(dotted: str) -> bool:
    stem = SOURCE / Path(*dotted.split("."))
    return stem.with_suffix(".py").exists() or (stem / "__init__.py").exists()


def bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds there."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign():
            for target in node.targets:
                yield from (found.id for found in ast.walk(target) if isinstance(found, ast.Name))
        case ast.AnnAssign() | ast.AugAssign():
            if isinstance(node.target, ast.Name):
                yield node.target.id
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
            for child in ast.walk(node):
                if isinstance(child, ast.stmt) and child is not node:
                    yield from bound_names(child)
        case _:
            pass


def _names_in(tree: ast.AST) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return names


def statement(found: Sequence[Imported], indent: str) -> str:
    """Return import statements, one a line; ruff sorts and joins them."""
    lines = [
        f"from {one.module} import {one.name}" + (f" as {one.asname}" if one.asname else "") for one in found
    ]
    return f"\n{indent}".join(lines)


def rewrite(plan: Plan, rewriting: Rewriting) -> None:
    """Edit the file: its imports, and the names that are called otherwise."""
    source = rewriting.source
    top = set(source.tree.body) if rewriting.own else set[ast.stmt]()
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        found = plan.rewrite_import(node, rewriting)
        if found is None or node in top:
            continue
        if found:
            source.replace(node, statement(found, " " * node.col_offset))
        elif not _is_gathered(source.tree, node):
            start, end = source.lines(node.lineno, node.end_lineno or node.lineno)
            source.edits.append(Edit(start, end, ""))
    if rewriting.part:
        for (module, name), new in plan.renamed.items():
            if module == rewriting.part:
                rewriting.rebound[name] = new
    _rename(plan, rewriting)


def _is_gathered(tree: ast.Module, node: ast.ImportFrom) -> bool:
    """Return whether the statement is below ``if TYPE_CHECKING``, which a merged module writes again."""
    return any(
        is_type_checking(block) and node in block.body for block in tree.body if isinstance(block, ast.If)
    )


def is_type_checking(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and all(isinstance(child, ast.ImportFrom | ast.Import) for child in node.body)
    )


def _rename(plan: Plan, rewriting: Rewriting) -> None:
    source = rewriting.source
    rebound = rewriting.rebound
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in rewriting.modules:
                part = rewriting.modules[name]
                attribute = plan.new_name(part, node.attr)
                if name in rewriting.unqualified:
                    source.replace(node, attribute)
                else:
                    source.replace(node, f"{rebound.get(name, name)}.{attribute}")
            case ast.Name(id=name) if name in rebound:
                source.replace(node, rebound[name])
            case ast.arg(arg=name) if name in rebound:
                raise PlanError(
                    f"{source.path}:{node.lineno}: a parameter {name} hides what becomes {rebound[name]}"
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name in rebound and (
                node in source.tree.body
            ):
                start, _ = source.span(node)
                text = source.raw[start:]
                at = re.search(rb"\b(?:def|class)\s+" + node.name.encode() + rb"\b", text)
                assert at is not None
                source.edits.append(
                    Edit(start + at.end() - len(node.name.encode()), start + at.end(), rebound[node.name])
                )
            case ast.Global() if set(node.names) & set(rebound):
                source.replace(node, "global " + ", ".join(rebound.get(name, name) for name in node.names))
            case _:
                pass
    # An attribute of a module and the module's own name begin at the same place: the longer edit stands.
    longest: dict[int, Edit] = {}
    for edit in source.edits:
        kept = longest.get(edit.start)
        if kept is None or edit.end > kept.end:
            longest[edit.start] = edit
    source.edits = list(longest.values())


@dataclass
class Part:
    """A part of a merged module: its imports apart from its other text."""

    module: str
    source: Source
    imports: list[tuple[str, str]]
    """Each with the comments above it."""
    checking: list[str]
    body: str
    defined: dict[str, str]
    imported: dict[str, str]
    needs: set[str]
    """Other parts that it imports when it is loaded."""


def read_part(plan: Plan, rewriting: Rewriting) -> Part:
    source, own, module = rewriting.source, rewriting.own, rewriting.part
    assert own is not None and module is not None
    part = Part(module, source, [], [], "", {}, {}, set())
    cut: list[tuple[int, int]] = []
    for index, node in enumerate(source.tree.body):
        last = node.end_lineno or node.lineno
        if index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            cut.append(source.lines(node.lineno, last))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            first = node.lineno
            while first > 1 and source.line(first - 1).startswith("#"):
                first -= 1
            cut.append(source.lines(first, last))
            above = source.raw[source.lines(first, first)[0] : source.lines(node.lineno, last)[0]].decode()
            text = _import_text(plan, rewriting, node, part)
            if text and FUTURE not in text:
                part.imports.append((above, text))
        elif is_type_checking(node):
            assert isinstance(node, ast.If)
            cut.append(source.lines(node.lineno, last))
            for child in node.body:
                assert isinstance(child, ast.Import | ast.ImportFrom)
                text = _import_text(plan, rewriting, child, None)
                if text:
                    part.checking += text.splitlines()
        else:
            start, end = source.span(node)
            for name in bound_names(node):
                new = rewriting.rebound.get(name, name)
                value = ast.dump(node) if isinstance(node, ast.Assign) else source.result(start, end)
                # Two loggers that are each called after their module are two things.
                part.defined[new] = f"{module}: {value}" if "'__name__'" in value else value
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute | ast.Name)
            and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id) == "getLogger"
            and node.args
            and isinstance(node.args[0], ast.Name)
            and node.args[0].id == "__name__"
        ):
            source.replace(node.args[0], f'"{module}"')
    source.edits += [Edit(start, end, "") for start, end in cut]
    part.body = source.result().strip("\n")
    return part


def _import_text(
    plan: Plan, rewriting: Rewriting, node: ast.Import | ast.ImportFrom, part: Part | None
) -> str:
    source = rewriting.source
    trailing = ""
    if "#" in (line := source.line(node.end_lineno or node.lineno)):
        trailing = "  #" + line.partition("#")[2].rstrip()
    if isinstance(node, ast.Import):
        for alias in node.names:
            if part is not None:
                bound = alias.asname or alias.name.partition(".")[0]
                part.imported[bound] = alias.name if alias.asname else bound
        start, end = source.span(node)
        return source.raw[start:end].decode() + trailing
    found = plan.rewrite_import(node, rewriting)
    if part is not None and node.module and not node.level:
        own = rewriting.own
        for alias in node.names:
            for name in (node.module, f"{node.module}.{alias.name}"):
                if plan.home.get(name) is own and name != rewriting.part:
                    part.needs.add(name)
    if found is None:
        found = [Imported(node.module or "", alias.name, alias.asname) for alias in node.names]
    for one in found:
        new = plan.new_name(rewriting.part or "", one.bound)
        one.asname = new if new != one.name else None
    if part is not None:
        part.imported |= {one.bound: ":".join(origin(one.module, one.name, True)) for one in found}
    return "\n".join(statement([one], "") + trailing for one in found)


def in_order(parts: Sequence[Part]) -> list[Part]:
    """Return the parts so that each stands below those that it needs, else as the plan lists them.

    Raises:
        PlanError: some need each other.
    """
    left = list(parts)
    ordered: list[Part] = []
    while left:
        placed = {part.module for part in ordered}
        free = next((part for part in left if not part.needs - placed - {part.module}), None)
        if free is None:
            raise PlanError(f"parts import each other: {', '.join(part.module for part in left)}")
        ordered.append(free)
        left.remove(free)
    return ordered


def merged(target: Target, parts: Sequence[Part]) -> str:
    """Return the text of a module.

    Raises:
        PlanError: a name stands for two things.
    """
    problems: list[str] = []
    origin: dict[str, tuple[str, str]] = {}
    repeated: dict[str, set[str]] = {}
    for part in parts:
        for name, value in part.imported.items():
            if name in origin and origin[name][1] != value:
                problems.append(f"{name}: {origin[name][0]} and {part.module}")
            origin.setdefault(name, (part.module, value))
    for part in parts:
        for name, value in part.defined.items():
            if name not in origin:
                origin[name] = (part.module, value)
            elif origin[name][1] == value and name not in part.imported:
                repeated.setdefault(part.module, set()).add(name)
            elif origin[name][0] != part.module or name in part.imported:
                problems.append(f"{name}: {origin[name][0]} and {part.module}")
    if problems:
        raise PlanError(f"{target.name}: names that stand for two things:\n  " + "\n  ".join(problems))
    above = [FUTURE, ""]
    seen: set[str] = set()
    for part in parts:
        for comments, text in part.imports:
            # One import of what two parts import from different places: a package and its module.
            lines = [line for line in text.splitlines() if _bound_by(line) not in seen]
            seen |= {_bound_by(line) for line in lines if line.startswith("from ")}
            if lines:
                above.append(comments + "\n".join(lines))
    checking = sorted({line for part in parts for line in part.checking})
    exported = [name for part in parts for name in _exported(part)]
    speaker = next((part for part in parts if part.module == target.docstring_of), None)
    if speaker is None and not target.docstring:
        speaker = parts[0]
    pieces = [_wrapped(target.docstring) if speaker is None else _docstring(speaker.source)]
    pieces.append("\n".join(above))
    if checking:
        pieces.append("if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in checking))
    if exported:
        pieces.append(f"__all__ = {sorted(set(exported))!r}")
    for part in parts:
        body = _without(part.body, repeated.get(part.module, set()) | {"__all__"})
        if body:
            pieces.append(_section(part) + body if target.has_sections and part is not speaker else body)
    return "\n\n\n".join(pieces) + "\n"


def _section(part: Part) -> str:
    """Return the docstring of a part as a comment; a paragraph that is too wide for it is wrapped again."""
    text = ast.get_docstring(part.source.tree) or ""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        is_wide = any(len(line) > LINE - 2 for line in paragraph.splitlines())
        lines += ["", *(_wrapped_items(paragraph) if is_wide else paragraph.splitlines())]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines[1:]) + "\n" if text else ""


def _wrapped_items(paragraph: str) -> Iterator[str]:
    """Yield the lines of a paragraph or of a list, wrapped for a comment."""
    for item in re.split(r"\n(?=- |\d+\. )", paragraph):
        mark = re.match(r"- |\d+\. |", item)
        assert mark is not None
        yield from textwrap.wrap(" ".join(item.split()), LINE - 2, subsequent_indent=" " * len(mark[0]))


def _wrapped(docstring: str) -> str:
    """Return a docstring whose paragraphs are wrapped; what is indented stays."""
    paragraphs = [
        paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, LINE, initial_indent=quotes)
        for paragraph, quotes in zip(docstring.split("\n\n"), chain(['"""'], repeat("")), strict=False)
    ]
    text = "\n\n".join(paragraphs)
    return f'{text}"""' if "\n" not in text else f'{text}\n"""'


def _docstring(source: Source) -> str:
    first = source.tree.body[0]
    start, end = source.span(first)
    return source.raw[start:end].decode()


def _bound_by(line: str) -> str:
    """Return the name that a line of an import statement of one name binds."""
    words = line.partition("  #")[0].split()
    return words[-1]


def _exported(part: Part) -> list[str]:
    for node in part.source.tree.body:
        if isinstance(node, ast.Assign) and "__all__" in bound_names(node):
            return list(ast.literal_eval(node.value))
    return []


def _without(body: str, names: set[str]) -> str:
    """Return the text without the statements that bind ``names``."""
    tree = ast.parse(body)
    lines = body.splitlines(keepends=True)
    for node in reversed(tree.body):
        if set(bound_names(node)) & names:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            del lines[first - 1 : node.end_lineno]
    return "".join(lines).strip("\n")


def python_files() -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted(
            path
            for path in (TOP / root).rglob("*.py")
            if "target" not in path.parts and "__pycache__" not in path.parts
        )


def text_files() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=TOP, stdout=subprocess.PIPE, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, listed):
        path = TOP / name
        if (path.suffix in TEXTS or path.name in (".importlinter", "Makefile")) and path.is_file():
            yield path


class Texts:
    """Dotted names and paths of the parts in comments, strings and documents."""

    def __init__(self, plan: Plan) -> None:
        self._home = {part: target.name for part, target in plan.home.items() if part != target.name}
        self._paths: dict[str, str] = {}
        for part, target in plan.home.items():
            old = path_of(part).relative_to(SOURCE / "nilometer").as_posix()
            new = Path(*target.name.split(".")[1:]).with_suffix(".py").as_posix()
            if old != new and not old.endswith("__init__.py"):
                self._paths[old] = new
        ends = "|".join(re.escape(path) for path in sorted(self._paths, key=len, reverse=True))
        self._path = re.compile(rf"(?<![\w/])((?:src/)?(?:nilometer/)?)({ends})(?!\w)") if ends else None

    def follow(self, text: str) -> str:
        text = re.sub(r"(?<!getLogger\(\")(?<![\w.])nilometer(?:\.\w+)+", self._dotted, text)
        if self._path is not None:
            text = self._path.sub(lambda found: found[1] + self._paths[found[2]], text)
        return text

    def follow_compiled(self, text: str) -> str:
        """Return the list of compiled modules, which names them without the package, with the new names."""
        lines: list[str] = []
        for line in text.splitlines(keepends=True):
            if (found := re.fullmatch(r'    "([a-z_.]+)",\n', line)) is not None:
                line = f'    "{self._dotted_name(found[1])}",\n'
                if line in lines:
                    continue
            lines.append(line)
        return "".join(lines)

    def _dotted_name(self, name: str) -> str:
        return self._home.get(f"nilometer.{name}", f"nilometer.{name}").removeprefix("nilometer.")

    def _dotted(self, found: re.Match[str]) -> str:
        words = found[0].split(".")
        for size in range(len(words), 1, -1):
            new = self._home.get(".".join(words[:size]))
            if new is not None:
                return ".".join([new, *words[size:]])
        return found[0]


def circles(written: dict[Path, str], removed: set[Path]) -> list[str]:
    """Return a sentence for each circle of modules that would import each other when they are loaded."""
    needs: dict[str, set[tuple[str, str]]] = {}
    for path in {*SOURCE.rglob("*.py"), *written} - (removed - set(written)):
        if path.is_relative_to(SOURCE):
            needs[module_of(path)] = {
                (node.module, alias.name)
                for node in ast.parse(written.get(path) or path.read_bytes()).body
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
            }
    modules = {
        module: {
            name for name in (_module_of_import(*pair, needs) for pair in pairs) if name and name != module
        }
        for module, pairs in needs.items()
    }
    reached = {module: _reached(modules, module) for module in modules}
    found = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in modules
        if module in reached[module]
    }
    return [
        "modules would import each other: "
        + "; ".join(f"{module} -> {', '.join(sorted(modules[module] & circle))}" for module in sorted(circle))
        for circle in found
    ]


def _module_of_import(module: str, name: str, known: Container[str]) -> str | None:
    return next((found for found in (f"{module}.{name}", module) if found in known), None)


def _reached(needs: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = list(needs[start])
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += needs[module]
    return seen


def carry_out(targets: Sequence[Target]) -> list[Path]:
    """Write every module of the plan and follow what names its parts; return the Python files written."""
    plan = Plan(targets)
    texts = Texts(plan)
    written: dict[Path, str] = {}
    parts: dict[str, Part] = {}
    for path in python_files():
        module = module_of(path) if path.is_relative_to(SOURCE) else None
        own = plan.home.get(module or "")
        rewriting = Rewriting(Source(path), own, module)
        rewrite(plan, rewriting)
        if own is not None:
            assert module is not None
            parts[module] = read_part(plan, rewriting)
        else:
            text = texts.follow(rewriting.source.result())
            if path == COMPILED:
                text = texts.follow_compiled(text)
            if text != rewriting.source.raw.decode():
                written[path] = text
    removed = [path_of(part) for part in plan.home]
    problems: list[str] = []
    for target in targets:
        path = SOURCE / Path(*target.name.split(".")).with_suffix(".py")
        folder = path.with_suffix("")
        if folder.is_dir() and (left := set(folder.rglob("*.py")) - set(removed)):
            path = folder / "__init__.py"
            if path not in removed and path in left:
                raise PlanError(f"{target.name} is a package whose __init__ is no part: {sorted(left)[:3]}")
        try:
            written[path] = texts.follow(merged(target, in_order([parts[part] for part in target.parts])))
        except PlanError as error:
            problems.append(str(error))
    problems += circles(written, set(removed))
    if problems:
        raise PlanError("\n".join(problems))
    for path in text_files():
        before = path.read_text(encoding="utf-8")
        if "tools/moves" not in path.as_posix() and (after := texts.follow(before)) != before:
            path.write_text(after, encoding="utf-8")
    for path in removed:
        path.unlink()
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents if path.is_relative_to(SOURCE) else ():
            if folder == SOURCE:
                break
            if not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text("")
        path.write_text(text, encoding="utf-8")
    _remove_empty_packages(removed)
    return [path for path in written if path.exists()]


def _remove_empty_packages(removed: Sequence[Path]) -> None:
    for folder in sorted({path.parent for path in removed}, key=lambda path: -len(path.parts)):
        if not folder.is_dir():
            continue
        left = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        if not left or (left == [folder / "__init__.py"] and folder.with_suffix(".py").exists()):
            subprocess.run(["rm", "-rf", str(folder)], check=True)
        elif left == [folder / "__init__.py"]:
            print(f"only __init__.py is left in {folder.relative_to(TOP)}: remove it if nothing imports it")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.merge_modules")
    parser.add_argument("plan", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    for path in given.plan:
        try:
            plan = read_plan(path)
            written = carry_out(plan)
        except PlanError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        names = [str(path) for path in written]
        ruff = [str(Path(sys.executable).parent / "ruff")]
        subprocess.run([*ruff, "check", "-q", "--select", "I,RUF022", "--fix", *names], cwd=TOP, check=False)
        targets = [
            str(path_of(target.name)) for target in plan if not path_of(target.name).match("__init__.py")
        ]
        subprocess.run([*ruff, "check", "-q", "--select", "F401", "--fix", *targets], cwd=TOP, check=False)
        subprocess.run([*ruff, "format", "-q", *names], cwd=TOP, check=True)
        print(f"{path.name}: {len(written)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
