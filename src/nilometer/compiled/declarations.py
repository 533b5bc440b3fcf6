"""Makes Cython's declarations (``.pxd``) of a module from its source, so that nothing is written twice.

A class becomes an extension type: its attributes are at fixed places, and it calls its own methods directly.
Such a class has no attributes but those that its methods assign to ``self``, and neither they nor its methods
can be replaced from outside, nor can a function that its module calls: a test that does so needs the module
interpreted. What is annotated with an extension type holds an instance of it, or None; other values stay
Python's objects, but for what ``__init__`` sets to True or False, what it annotates as an :data:`Offset`, and
the variables of loops that are annotated with a type of :mod:`.widths`. Arithmetic with those is checked for
overflow.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping

PACKAGE = "nilometer."
TypeOf = Callable[[ast.expr | None], str]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUTURE = "from __future__ import annotations"
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
        self.source = source
        tree = ast.parse(source)
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.all_functions = [
            one
            for holder in (tree, *self.classes.values())
            for one in holder.body
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        """Those of the module and of its classes."""
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
        return self.class_of(node.bases[0].id)

    def class_of(self, name: str) -> tuple[str, str]:
        """Return (module, class) of what the module calls ``name``."""
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


class _TypeNames:
    """What Cython calls the extension types that a module's annotations name."""

    def __init__(self, module: Module, types: set[tuple[str, str]]) -> None:
        self._module = module
        self._types = types
        self.imports: set[str] = set()

    def __call__(self, annotation: ast.expr | None) -> str:
        """Return the type, or ``object``; what is of another module is imported."""
        name = _class_name(annotation)
        if name is None or (found := self._module.class_of(name)) not in self._types:
            return "object"
        if found[0] != self._module.name:
            self.imports.add(f"from {PACKAGE}{found[0]} cimport {name}")
        return name


def declarations(module: Module, types: set[tuple[str, str]]) -> tuple[str, str]:
    """Return the text of the module's ``.pxd``, and its source with the types of other functions."""
    type_of = _TypeNames(module, types)
    lines: list[str] = []
    declared: list[ast.FunctionDef] = []
    for node in module.classes.values():
        if (module.name, node.name) not in types:
            continue
        base = module.base_of(node)
        if base is not None:
            type_of(ast.Name(base[1]))
        lines.append(f"cdef class {node.name}{f'({base[1]})' if base else ''}:")
        methods = [one for one in _methods(node) if _can_be_in_c(one)]
        body = [*_attributes(node, type_of), *(line for one in methods for line in _declared(one, type_of))]
        if base is None:
            body.append("cdef object __weakref__")
        lines += [f"    {line}" for line in body or ["pass"]]
        declared += methods
    functions = [one for one in module.functions if _can_be_in_c(one)]
    lines += [line for one in functions for line in _declared(one, type_of)]
    declared += functions
    if module.typed_parameters:
        raise ValueError(
            f"{module.name}: parameters stay objects, also those of fixed width: "
            f"{', '.join(module.typed_parameters)}; assign them to variables"
        )
    if (number := sum(bool(_widths(one)) for one in declared)) != module.typed_functions:
        raise ValueError(
            f"{module.name}: {module.typed_functions} functions have variables of fixed width, and "
            f"{number} of them can be declared"
        )
    source = _with_types(module, declared, type_of)
    uses_cython = any(line.lstrip().startswith("@cython.") for line in lines)
    preamble = _PREAMBLE if uses_cython else []
    return "\n".join([*sorted(type_of.imports), *preamble, *lines, ""]), source


def _with_types(module: Module, declared: list[ast.FunctionDef], type_of: TypeOf) -> str:
    """Return the source with the types of what functions use that the ``.pxd`` cannot declare: in the empty
    line before each, so that all lines keep their numbers."""
    lines = module.source.splitlines()
    for function in module.all_functions:
        before = function.lineno - 2
        if function in declared or not _is_plain(function) or lines[before]:
            continue
        given = {one.arg: type_of(one.annotation) for one in function.args.args + function.args.kwonlyargs}
        if typed := [
            f"{name}={kind}"
            for name, kind in (given | _variables(function, type_of)).items()
            if kind != "object"
        ]:
            lines[before] = f"{' ' * function.col_offset}@cython.locals({', '.join(typed)})"
    if _FUTURE in lines:
        lines[lines.index(_FUTURE)] += "; import cython"
    return "\n".join([*lines, ""])


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


def _attributes(node: ast.ClassDef, type_of: TypeOf) -> Iterator[str]:
    kinds = {**_references(node, type_of), **dict(_kinds(node))}
    for name in _assigned(node):
        yield f"cdef public {kinds.get(name, 'object')} {name}"


def _references(node: ast.ClassDef, type_of: TypeOf) -> dict[str, str]:
    """Return the extension types of attributes that only ever hold instances of one, or None."""
    found: dict[str, set[str]] = {}
    annotated: dict[str, str] = {}
    for function in _functions(node):
        parameters = {one.arg: one.annotation for one in function.args.args + function.args.kwonlyargs}
        for statement in ast.walk(function):
            if isinstance(statement, ast.AnnAssign):
                if isinstance(statement.target, ast.Attribute) and _is_self(statement.target.value):
                    annotated[statement.target.attr] = type_of(statement.annotation)
                continue
            if not isinstance(statement, ast.Assign):
                continue
            for target in statement.targets:
                for one, value in _pairs(target, statement.value):
                    if isinstance(one, ast.Attribute) and _is_self(one.value):
                        found.setdefault(one.attr, set()).add(_type_of_value(value, parameters, type_of))
    kinds = {
        name: next(iter(types - {""}), "object") for name, types in found.items() if len(types - {""}) == 1
    }
    return {**kinds, **annotated}


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if not isinstance(target, ast.Tuple):
        yield target, value
    elif isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield from ((one, None) for one in target.elts)


def _type_of_value(value: ast.expr | None, parameters: Mapping[str, ast.expr | None], type_of: TypeOf) -> str:
    """Return the type of what is assigned; "" if it is None, which every extension type takes."""
    if isinstance(value, ast.Constant) and value.value is None:
        return ""
    if isinstance(value, ast.Name):
        return type_of(parameters.get(value.id))
    if isinstance(value, ast.Call):
        return type_of(value.func)
    return "object"


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"


def _class_name(annotation: ast.expr | None) -> str | None:
    """Return the class that an annotation names, alone or beside None."""
    if isinstance(annotation, ast.Name):
        return annotation.id
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [annotation.left, annotation.right]
        names = [one.id for one in sides if isinstance(one, ast.Name)]
        if len(names) == 1 and any(isinstance(one, ast.Constant) and one.value is None for one in sides):
            return names[0]
    return None


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


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for function in _functions(node):
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("__"):
            yield function


def _can_be_in_c(function: ast.FunctionDef) -> bool:
    given = function.args
    return _is_plain(function) and not (given.kwonlyargs or given.vararg or given.kwarg)


def _is_plain(function: _Function) -> bool:
    """Whether a function has one scope, and no decorators."""
    if isinstance(function, ast.AsyncFunctionDef) or function.decorator_list:
        return False
    return not any(isinstance(one, _NEEDS_OWN_SCOPE) for one in ast.walk(function) if one is not function)


def _declared(function: ast.FunctionDef, type_of: TypeOf) -> Iterator[str]:
    """Yield the declaration of a function in C."""
    given = function.args
    if variables := _widths(function) | _variables(function, type_of):
        yield f"@cython.locals({', '.join(f'{name}={kind}' for name, kind in variables.items())})"
    required = len(given.args) - len(given.defaults)
    names = [_parameter(one, type_of) + ("=*" if at >= required else "") for at, one in enumerate(given.args)]
    yield f"cpdef {type_of(function.returns)} {function.name}({', '.join(names)})"


def _variables(function: _Function, type_of: TypeOf) -> dict[str, str]:
    """Return the extension types of variables that are annotated with one."""
    found = {
        node.target.id: type_of(node.annotation)
        for node in ast.walk(function)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {name: kind for name, kind in found.items() if kind != "object"}


def _parameter(given: ast.arg, type_of: TypeOf) -> str:
    kind = type_of(given.annotation)
    return given.arg if kind == "object" else f"{kind} {given.arg}"


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
