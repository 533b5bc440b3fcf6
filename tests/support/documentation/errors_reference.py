"""The list of error codes in docs/errors.md: those that the code names, with the texts sent with them."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nilometer
from nilometer.wire.errors import ErrorCode, is_retriable

from .code_blocks import DOCS

PAGE = DOCS / "errors.md"
SOURCE = Path(nilometer.__file__).parent
_NO_ERRORS_OF_A_CLUSTER = {"simulation", "testing", "pipeline"}
PLACEHOLDER = "…"
_CODE_OF_CLASS = {"InvalidRecord": "invalid_record"}
"""Errors that are raised with their text alone."""


def errors_parts() -> dict[str, str]:
    """Return the generated parts of the page, by their names."""
    return {"codes": "\n".join(_entry(code, texts) for code, texts in sorted(error_texts().items()))}


@cache
def error_advice() -> dict[str, str]:
    """Return when a code is sent and what to do, by its name; not every code has that."""
    return tomllib.loads(Path(__file__).with_name("error_advice.toml").read_text(encoding="utf-8"))


@cache
def error_texts() -> dict[str, list[str]]:
    """Return the names of all error codes in the code, each with its texts; … stands for a value."""
    found: dict[str, set[str]] = {}
    for text in sources():
        if "ErrorCode." in text or any(name in text for name in _CODE_OF_CLASS):
            for code, texts in _of_module(ast.parse(text)):
                found.setdefault(code.upper(), set()).update(texts)
    found.pop("NONE")
    return {code: sorted(texts) for code, texts in found.items()}


def sources() -> Iterator[str]:
    """Yield the text of each module whose errors a cluster or a client can show."""
    for path in SOURCE.rglob("*.py"):
        if not _NO_ERRORS_OF_A_CLUSTER & set(path.relative_to(SOURCE).parts):
            yield path.read_text(encoding="utf-8")


def literal(node: ast.AST) -> str | None:
    """Return the text of a literal, also of one with values in it or of a sum of such; None for all else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(literal(each) or PLACEHOLDER for each in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = literal(left), literal(right)
            return None if first is None or second is None else first + second
        case _:
            return None


def _of_module(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Yield each error code with the texts that stand beside it in a call or a tuple."""
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id="ErrorCode"), attr=code) if code in ErrorCode.__members__:
                yield code, []
            case ast.Call(func=ast.Name(id=name), args=[argument]) if name in _CODE_OF_CLASS:
                text = literal(argument)
                yield _CODE_OF_CLASS[name], [] if text is None else [text]
            case ast.Call(args=arguments, keywords=keywords):
                yield from _pairs([*arguments, *(each.value for each in keywords)])
            case ast.Tuple(elts=elements):
                yield from _pairs(elements)
            case _:
                pass


def _pairs(nodes: list[ast.expr]) -> Iterator[tuple[str, list[str]]]:
    texts = [text for node in nodes if (text := literal(node)) is not None and " " in text]
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="ErrorCode"), attr=code) if code in ErrorCode.__members__:
                yield code, texts
            case _:
                pass


def _entry(name: str, texts: list[str]) -> str:
    code = ErrorCode[name.lower()]
    retriable = "retriable" if is_retriable(code) else "not retriable"
    advice = error_advice().get(name, "")
    lines = [f"### {name}\n", f"Code {code.value}, {retriable}. {advice}".rstrip() + "\n"]
    if texts:
        lines.append("".join(f"- {_as_code(text)}\n" for text in texts))
    return "\n".join(lines)


def _as_code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
