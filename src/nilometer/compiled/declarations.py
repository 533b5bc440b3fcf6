"""Makes Cython's declarations (``.pxd``) of a module from its source, so that nothing is written twice.

A class becomes an extension type: its attributes are at fixed places, and it calls its own methods directly.
Such a class has no attributes but those that its methods assign to ``self``, and neither they nor its methods
can be replaced from outside: a test that does so needs the module interpreted. Values stay Python's objects,
but for what ``__init__`` sets to True or False, what it annotates as an :data:`Offset`, and the variables of
loops that are annotated with a type of :mod:`.widths`. Arithmetic with those is checked for overflow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

PACKAGE = "nilometer."
FIXED_WIDTH = {"Offset": "long long"}
WIDTHS = {
    "Int64": "cython.longlong",
    "BytesView": "const_byte[::1]",
    "WritableView": "cython.uchar[::1]",
    "Int64View": "cython.longlong[::1]",
}
"""What stands for the types of :mod:`.widths`."""
_PREAMBLE = ["cimport cython", "ctypedef const unsigned char const_byte"]
_NEEDS_OWN_SCOPE = (ast.Yield, ast.YieldFrom, ast.Lambda, ast.GeneratorExp, ast.FunctionDef)
"""What a function in C cannot contain."""


class Module:
    def __init__(self, name: str, source: str) -> None:
        """``name`` without the package's."""
        self.name = name
        tree = ast.parse(source)
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self._imported = {
            alias.asname or alias.name: (node.module or "").removeprefix(PACKAGE)
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        self.typed_functions = sum(
            bool(_widths(node)) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        )
        """How many functions have variables of fixed width."""
        self.typed_parameters = [
            f"{node.arg} in line {node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.arg) and _is_width(node.annotation)
        ]

    def base_of(self, node: ast.ClassDef) -> tuple[str, str] | None:
        """Return (module, class) of the only base; None if it has none, or more, or another expression."""
        if len(node.bases) != 1 or not isinstance(node.bases[0], ast.Name):
            return None
        name = node.bases[0].id
        return (self.name if name in self.classes else self._imported.get(name, ""), name)

    def own_classes(self) -> Iterator[ast.ClassDef]:
        """Yield the classes that may be extension types, as far as this module tells."""
        for node in self.classes.values():
            if not node.decorator_list and not node.keywords and not _has_defaults(node):
                yield node


def extension_types(modules: Iterable[Module]) -> set[tuple[str, str]]:
    """Return (module, class) of all classes that become extension types."""
    found: set[tuple[str, str]] = set()
    waiting = [(module, node) for module in modules for node in module.own_classes()]
    while True:
        new = {
            (module.name, node.name)
            for module, node in waiting
            if not node.bases or module.base_of(node) in found
        }
        if new <= found:
            return found
        found |= new


def declarations(module: Module, types: set[tuple[str, str]]) -> str:
    """Return the text of the module's ``.pxd``."""
    imports: list[str] = []
    lines: list[str] = []
    for node in module.classes.values():
        if (module.name, node.name) not in types:
            continue
        base = module.base_of(node)
        if base is not None and base[0] != module.name:
            imports.append(f"from {PACKAGE}{base[0]} cimport {base[1]}")
        lines.append(f"cdef class {node.name}{f'({base[1]})' if base else ''}:")
        body = [*_attributes(node), *_methods(node)]
        if base is None:
            body.append("cdef object __weakref__")
        lines += [f"    {line}" for line in body or ["pass"]]
    for function in module.functions:
        if _widths(function):
            lines += _declared(function)
    declared = sum(line.lstrip().startswith("@cython.locals") for line in lines)
    if module.typed_parameters:
        raise ValueError(
            f"{module.name}: parameters stay objects, also those of fixed width: "
            f"{', '.join(module.typed_parameters)}; assign them to variables"
        )
    if declared != module.typed_functions:
        raise ValueError(
            f"{module.name}: {module.typed_functions} functions have variables of fixed width, and "
            f"{declared} of them can be declared"
        )
    return "\n".join([*imports, *(_PREAMBLE if declared else []), *lines, ""])


def _functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _assigned(node: ast.ClassDef) -> dict[str, None]:
    """Return the attributes that the methods assign to ``self``, without those that have a setter."""
    names: dict[str, None] = {}
    for function in _functions(node):
        for found in ast.walk(function):
            if not isinstance(found, ast.Attribute) or not isinstance(found.ctx, ast.Store):
                continue
            if isinstance(found.value, ast.Name) and found.value.id == "self":
                names[found.attr] = None
    for function in _functions(node):
        names.pop(function.name, None)
    return names


def _has_defaults(node: ast.ClassDef) -> bool:
    """Whether an attribute of instances has a default in the class."""
    names = _assigned(node)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id in names for target in targets):
            return True
    return False


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    kinds = dict(_kinds(node))
    for name in _assigned(node):
        yield f"cdef public {kinds.get(name, 'object')} {name}"


def _kinds(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for function in _functions(node):
        if function.name != "__init__":
            continue
        for statement in ast.walk(function):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Attribute):
                if (kind := FIXED_WIDTH.get(ast.unparse(statement.annotation))) is not None:
                    yield statement.target.attr, kind
            elif isinstance(statement, ast.Assign) and _is_bool(statement.value):
                yield from ((one.attr, "bint") for one in statement.targets if isinstance(one, ast.Attribute))


def _is_bool(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, bool)


def _methods(node: ast.ClassDef) -> Iterator[str]:
    for function in _functions(node):
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("__"):
            yield from _declared(function)


def _declared(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the declaration of a function that can be one in C."""
    given = function.args
    if function.decorator_list or given.kwonlyargs or given.vararg or given.kwarg:
        return
    if any(isinstance(one, _NEEDS_OWN_SCOPE) for one in ast.walk(function) if one is not function):
        return
    if widths := _widths(function):
        yield f"@cython.locals({', '.join(f'{name}={width}' for name, width in widths.items())})"
    required = len(given.args) - len(given.defaults)
    names = [one.arg + ("=*" if at >= required else "") for at, one in enumerate(given.args)]
    yield f"cpdef object {function.name}({', '.join(names)})"


def _widths(function: ast.FunctionDef) -> dict[str, str]:
    """Return the variables of fixed width of a function, and what Cython calls their types."""
    return {
        node.target.id: WIDTHS[node.annotation.id]
        for node in ast.walk(function)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
        and _is_width(node.annotation)
    }


def _is_width(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id in WIDTHS
