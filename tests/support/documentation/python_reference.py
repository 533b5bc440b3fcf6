"""The reference of the Python API: the signatures and docstrings of what a program uses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, ForwardRef

import nilometer.testing
from nilometer import kafka
from support.documentation.code_blocks import DOCS

PAGE = DOCS / "python-reference.md"
NAMES = {
    "client": (kafka, ("connect", "Kafka", "TypedProducer", "Records", "Record", "Transaction")),
    "queues": (
        kafka,
        ("Queue", "Job", "Jobs", "Backoff", "Ended", "DeadLetter", "QueueStats"),
    ),
    "parts": (kafka, ("Delivery", "RecordMetadata", "TopicPartition", "RebalanceListener")),
    "formats": (kafka, ("Format", "nullable", "Avro", "JsonSchema", "SchemaRegistry")),
    "admin": (kafka, ("KafkaAdmin", "OffsetRange")),
    "testing": (nilometer.testing, ("Cluster", "Faults", "Fault", "KafkaContainer")),
}
"""The parts of the page, with the names that each has."""
NOT_FOR_PROGRAMS = frozenset(
    {
        *("has_buffered", "next_buffered", "on_committed", "processed", "send_encoded", "decode", "of"),
    }
)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_LINE_MAX = 100


def python_parts() -> dict[str, str]:
    return {
        part: "\n".join("\n".join(_entry(module, name)) for name in names) + "\n"
        for part, (module, names) in NAMES.items()
    }


def _entry(module: Any, name: str) -> Iterator[str]:
    found = getattr(module, name)
    yield f"### {name}\n"
    if not inspect.isclass(found):
        yield _code([_signature(name, found)])
        yield from _said(found)
        return
    yield from _said(found)
    fields = getattr(found, "_fields", ())
    if fields:
        annotations = found.__annotations__
        yield _code([f"{field}: {_annotation(annotations[field])}" for field in fields])
    for member, value in _members(found):
        if isinstance(value, property):
            returned = inspect.signature(value.fget).return_annotation if value.fget is not None else ""
            yield _code([f"{member}: {_annotation(returned)}"])
            yield from _said(value)
        elif member not in fields:
            yield _code([_signature(member, value)])
            yield from _said(value)


def _members(found: type) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for owner in found.__mro__:
        if owner.__module__.partition(".")[0] != "nilometer":
            continue
        for name, value in vars(owner).items():
            if name.startswith("_") or name in NOT_FOR_PROGRAMS or name in seen:
                continue
            if inspect.isfunction(value) or isinstance(value, property):
                seen.add(name)
                yield name, value


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parts: list[str] = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(part.startswith("*") for part in parts):
                parts.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = f"{star}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
    head = ("async def " if inspect.iscoroutinefunction(function) else "def ") + name
    returned = signature.return_annotation
    end = "" if returned is signature.empty else f" -> {_annotation(returned)}"
    line = f"{head}({', '.join(parts)}){end}"
    if len(line) <= _LINE_MAX:
        return line
    return "\n".join([f"{head}(", *(f"    {part}," for part in parts), f"){end}"])


def _annotation(given: Any) -> str:
    if isinstance(given, ForwardRef):
        return given.__forward_arg__
    return given if isinstance(given, str) else getattr(given, "__name__", str(given))


def _code(lines: list[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```\n"


def _said(found: Any) -> Iterator[str]:
    text = inspect.getdoc(found) if not inspect.isclass(found) or "__doc__" in vars(found) else None
    if text:
        yield _ROLE.sub(r"`\1`", text).replace("``", "`") + "\n"
