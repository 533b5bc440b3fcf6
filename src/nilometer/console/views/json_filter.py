"""A condition on a record's JSON value: a path, and what is found there must be. Pure.

    $.user.id                 something is there, also null
    $.user.id == 7            numbers, strings, true, false, null; also !=, <, <=, >, >=
    $.tags[*] == "new"        any element; [0] is the first one, [-1] the last one
    $.text ~ late             the text contains "late"; a text needs no quotes
    $['a name'].b             a name with other characters

A number is compared with numbers only, a text with texts. A value that is not JSON matches nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec

PATH_MAX = 500
"""A condition with more characters is refused."""
STEPS_MAX = 32

_STEP = re.compile(
    r"""\.?(?P<name>[\w-]+) | \[(?P<index>-?[0-9]{1,9})\] | (?P<any>\.?\* | \[\*\])
        | \[(?P<quoted>'[^']*' | "[^"]*")\]""",
    re.VERBOSE,
)
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|<|>|=|~)\s*")
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class BadFilter(Exception):
    """The condition cannot be understood; the message says where."""


class _AnyElement(msgspec.Struct, frozen=True):
    pass


_Step = str | int | _AnyElement
_ANY = _AnyElement()


class JsonFilter(msgspec.Struct, frozen=True):
    steps: tuple[_Step, ...]
    operator: str | None
    """None: it is enough that something is there."""
    operand: Any = None

    def matches(self, value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            document: Any = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        found = _found(document, self.steps)
        if self.operator is None:
            return any(True for _ in found)
        return any(_compares(one, self.operator, self.operand) for one in found)


def json_filter(text: str) -> JsonFilter:
    """Return the condition that ``text`` describes. Raises BadFilter."""
    if len(text) > PATH_MAX:
        raise BadFilter(f"The condition has more than {PATH_MAX} characters.")
    text = text.strip()
    steps, position = _steps(text)
    found = _OPERATOR.match(text, position)
    if found is None:
        if position < len(text):
            rest = text[position:]
            raise BadFilter(f"The path is not understood from {rest!r} on: it is as in $.user.id == 7.")
        return JsonFilter(steps, None)
    sign, operand = found[1].replace("==", "="), text[found.end() :]
    if not operand:
        raise BadFilter(f"There is nothing to compare with after {found[1]}.")
    return JsonFilter(steps, sign, operand if sign == "~" else _operand(operand))


def _steps(text: str) -> tuple[tuple[_Step, ...], int]:
    """Return the steps of the path that ``text`` begins with, and where the path ends."""
    position = 1 if text.startswith("$") else 0
    steps: list[_Step] = []
    while (found := _STEP.match(text, position)) is not None:
        steps.append(_step(found))
        position = found.end()
    if not steps and not text.startswith("$"):
        raise BadFilter("A path is as in $.user.id, or $ for the whole value.")
    if len(steps) > STEPS_MAX:
        raise BadFilter(f"The path has more than {STEPS_MAX} steps.")
    return tuple(steps), position


def _step(found: re.Match[str]) -> _Step:
    if found["name"] is not None:
        return found["name"]
    if found["index"] is not None:
        return int(found["index"])
    return _ANY if found["any"] is not None else found["quoted"][1:-1]


def _operand(text: str) -> Any:
    """Return the JSON value that ``text`` is; else itself, without quotes."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        is_quoted = len(text) > 1 and text[0] == text[-1] == "'"
        return text[1:-1] if is_quoted else text


def _found(document: Any, steps: tuple[_Step, ...]) -> Iterator[Any]:
    """Yield what the path leads to: nothing, one value, or with :data:`_ANY` several."""
    if not steps:
        yield document
        return
    step, rest = steps[0], steps[1:]
    for inner in _inner(document, step):
        yield from _found(inner, rest)


def _inner(document: Any, step: _Step) -> Iterator[Any]:
    if isinstance(document, dict):
        members = cast("dict[str, Any]", document)
        if isinstance(step, _AnyElement):
            yield from members.values()
        elif isinstance(step, str) and step in members:
            yield members[step]
    elif isinstance(document, list):
        elements = cast("list[Any]", document)
        if isinstance(step, _AnyElement):
            yield from elements
        elif isinstance(step, int) and -len(elements) <= step < len(elements):
            yield elements[step]


def _compares(found: Any, sign: str, operand: Any) -> bool:
    if sign == "~":
        return isinstance(found, str) and operand in found
    is_equal = type(found) is type(operand) and found == operand
    if _is_number(found) and _is_number(operand):
        is_equal = found == operand
    if sign in ("=", "!="):
        return is_equal == (sign == "=")
    comparable = (_is_number(found) and _is_number(operand)) or (
        isinstance(found, str) and isinstance(operand, str)
    )
    return comparable and _ORDERS[sign](found, operand)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
