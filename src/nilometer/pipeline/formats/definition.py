"""Definitions of formats: the schema of a ``[[format]]`` in TOML, its patterns (RE2), and its checks.

The built-in formats (``builtin.toml`` in this folder) and the user's own files have the same schema. Files
are tried in the order given, the built-in ones last; in a file the first format that fits a line takes it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any, Final, Literal, cast

import msgspec
import re2  # pyright: ignore[reportMissingTypeStubs]

from nilometer.pipeline.errors import PipelineError

# Patterns in RE2's syntax, whose time is linear in the line: no pattern and no line can make it explode.
#
# RE2 has no back-references and no look-ahead; its ``.`` matches every character here.

_RE2: Final = cast(Any, re2)
PATTERN_CHARS_MAX: Final = 10_000


class PatternError(ValueError):
    """The pattern is no pattern of RE2; the message says why."""


class Pattern:
    """A compiled pattern. Lines are UTF-8."""

    def __init__(self, text: str) -> None:
        """Compile ``text``. Raises PatternError."""
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"it is longer than {PATTERN_CHARS_MAX:,} characters")
        options = _RE2.Options()
        options.dot_nl = True
        options.log_errors = False
        try:
            self._compiled = _RE2.compile(text, options)
        except _RE2.error as error:
            raise PatternError(_reason(error)) from None
        groups: dict[str, int] = self._compiled.groupindex
        self.names = tuple(sorted(groups, key=groups.__getitem__))

    def first_bytes(self) -> tuple[int, int]:
        """Return the smallest and the largest first byte that a matching line may have."""
        try:
            least, most = cast("tuple[bytes, bytes]", self._compiled.possiblematchrange(1))
        except _RE2.error:
            return 0, 255
        return (least[0] if least else 0), (most[0] if most else 255)

    def match_whole(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups that took part in a match of the whole line; None if there is none."""
        found: Any = self._compiled.fullmatch(line)
        if found is None:
            return None
        groups: dict[str, bytes | None] = found.groupdict()
        return {name: value.decode("utf-8", "replace") for name, value in groups.items() if value is not None}

    def search(self, text: str) -> str | None:
        """Return the first group (the whole match without groups) of a match anywhere; None without one."""
        found: Any = self._compiled.search(text.encode("utf-8", "replace"))
        if found is None:
            return None
        value: bytes | None = found.group(1) if self._compiled.groups else found.group(0)
        return (value or b"").decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    given: object = error.args[0] if error.args else error
    said = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
    if "(?=" in said or "(?!" in said or "(?<" in said:
        return f"{said} (RE2 has no look-ahead and no look-behind)"
    if said.startswith("invalid escape sequence") and said[-1:].isdigit():
        return f"{said} (RE2 has no back-references)"
    return said


Type = Literal["string", "lower", "upper", "integer", "number", "boolean", "severity", "bytes"]
Paths = str | list[str]
NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
RESERVED: Final = ("blank", "unparsed")
"""The names that the pipelines have for lines of no format."""
FORMATS_MAX: Final = 200


class FormatError(PipelineError):
    """A definition is wrong; the message says which one, what, and what to do."""


class Derived(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column made of another one, by a pattern that is searched in it."""

    column: str
    of: str
    pattern: str
    value: str | None = None
    """The value if the pattern is found; without it, the pattern's first group."""
    otherwise: str | None = None
    """The column that is taken if the pattern is not found; without it, the column stays as it is."""


class FormatDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One format. It has exactly one of ``pattern``, ``json``, ``logfmt`` and ``columns``."""

    name: str
    summary: str = ""
    pattern: str | list[str] | None = None
    """Patterns of whole lines in RE2's syntax; the first that matches gives the columns, by named groups."""
    json: dict[str, Paths] | None = None
    """Column -> its path in the object (``a.b``), or several, of which the first that is there counts."""
    logfmt: dict[str, Paths] | None = None
    """Column -> its key, or several keys, in a line of ``key=value`` pairs."""
    columns: list[str] | None = None
    """The columns of a line of separated values, in order. A line of their names is taken as the header."""
    separator: str = ","
    time: str | list[str] | None = None
    """The column with the event time, or several, which are joined by a blank."""
    time_format: str | list[str] = "iso8601"
    time_required: bool = True
    """Whether a line without a readable time does not fit."""
    level: str | list[str] | None = None
    """The column with the level, or several, of which the first with a value counts."""
    level_otherwise: str = ""
    key: str | None = None
    """The column that lines are ranked by: a path, a program, a logger."""
    label: str | None = None
    """The column that lines are counted by, if it is not the level: a status, an action."""
    required: list[str] = []
    types: dict[str, Type] = {}
    derived: list[Derived] = []
    files: list[str] = []
    """Patterns of paths (``*.log``): the format takes only lines of these files."""
    example: str | list[str] = []
    """Lines of the format, for people; the checks of a definition match them."""

    def column_names(self) -> list[str]:
        """Return the names of all columns, in the order of the definition. Raises PatternError."""
        names: list[str] = []
        for pattern in texts(self.pattern):
            names += Pattern(pattern).names
        names += [*(self.json or {}), *(self.logfmt or {}), *(self.columns or [])]
        names += [one.column for one in self.derived]
        return list(dict.fromkeys(names))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: list[FormatDefinition]


def texts(value: str | list[str] | None) -> list[str]:
    """Return a setting that is one text, several, or absent as a list."""
    return [] if value is None else [value] if isinstance(value, str) else value


def parse_formats(text: str, source: str) -> list[FormatDefinition]:
    """Return the definitions in the TOML ``text``, in order. Raises FormatError, which names ``source``."""
    try:
        parsed: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{source} is not TOML: {error}") from None
    if not parsed.get("format"):
        raise FormatError(f"{source} has no [[format]]. `nilometer pipeline formats show access` prints one")
    try:
        definitions = msgspec.convert(parsed, _File).format
    except msgspec.ValidationError as error:
        raise FormatError(f"{source}: {_readable(str(error), parsed)}") from None
    for definition in definitions:
        _check(definition, source)
    return definitions


def _readable(message: str, parsed: dict[str, Any]) -> str:
    """Replace the position in msgspec's message by the name of the format."""

    def named(found: re.Match[str]) -> str:
        given = cast("list[dict[str, Any]]", parsed["format"])[int(found.group(1))]
        return f"format {given.get('name', 'number ' + str(int(found.group(1)) + 1))}, {found.group(2)}"

    return re.sub(r"- at `\$\.format\[(\d+)\]\.?([^`]*)`", lambda one: "in " + named(one), message).rstrip(
        ", "
    )


def _check(definition: FormatDefinition, source: str) -> None:
    def refuse(reason: str) -> FormatError:
        return FormatError(f"{source}, format {definition.name}: {reason}")

    if NAME.fullmatch(definition.name) is None or definition.name in RESERVED:
        raise refuse(f"a name has small letters, digits and hyphens, and is none of {', '.join(RESERVED)}")
    kinds = ("pattern", "json", "logfmt", "columns")
    given = [kind for kind in kinds if getattr(definition, kind) is not None]
    if len(given) != 1:
        raise refuse(f"it needs exactly one of {', '.join(kinds)}, and has {', '.join(given) or 'none'}")
    try:
        names = definition.column_names()
        for one in definition.derived:
            Pattern(one.pattern)
    except PatternError as error:
        raise refuse(f"a pattern is not valid: {error}") from None
    if not names and given != ["pattern"]:
        raise refuse(f"{given[0]} is empty")
    _check_columns(definition, names, refuse)
    if len(definition.separator) != 1:
        raise refuse("separator is one character")


def _check_columns(
    definition: FormatDefinition, names: Sequence[str], refuse: Callable[[str], FormatError]
) -> None:
    for name in names:
        if COLUMN.fullmatch(name) is None:
            raise refuse(f"{name!r} is no name of a column (letters, digits and _)")
    if definition.columns is not None and len(set(definition.columns)) < len(definition.columns):
        raise refuse("columns has a name twice")
    used = {
        "time": texts(definition.time),
        "level": texts(definition.level),
        "key": texts(definition.key),
        "label": texts(definition.label),
        "required": definition.required,
        "types": list(definition.types),
        "derived": [name for one in definition.derived for name in (one.of, *texts(one.otherwise))],
    }
    for setting, columns in used.items():
        for column in columns:
            if column not in names:
                raise refuse(f"{setting} names {column}, which is no column. There are {', '.join(names)}")


def builtin_formats() -> list[FormatDefinition]:
    return parse_formats(builtin_text(), "builtin.toml")


def builtin_text() -> str:
    """Return the TOML of the built-in formats, also from a package inside an archive."""
    return resources.files("nilometer.pipeline.formats").joinpath("builtin.toml").read_text(encoding="utf-8")


def text_of_format(text: str, name: str) -> list[str]:
    """Return the blocks of the TOML ``text`` that define the format ``name``, as they are written there."""
    blocks = re.split(r"(?m)^(?=\[\[format\]\]\s*$)", text)[1:]
    return [_without_next_heading(one) for one in blocks if tomllib.loads(one)["format"][0]["name"] == name]


def _without_next_heading(block: str) -> str:
    """Drop the comments at the end, which are about what follows."""
    lines = block.rstrip().split("\n")
    while lines and (lines[-1].startswith("#") or not lines[-1]):
        lines.pop()
    return "\n".join(lines) + "\n"


def all_formats(own: Iterable[tuple[str, str]]) -> list[FormatDefinition]:
    """Return the user's formats (pairs of source and text) and then the built-in ones.

    A user's format replaces the built-in one of the same name. Raises FormatError.
    """
    found = [one for source, text in own for one in parse_formats(text, source)]
    names = {one.name for one in found}
    found += [one for one in builtin_formats() if one.name not in names]
    if len(found) > FORMATS_MAX:
        raise FormatError(f"there are {len(found)} formats; at most {FORMATS_MAX} are tried")
    return found


def formats_named(definitions: Sequence[FormatDefinition], names: Sequence[str]) -> list[FormatDefinition]:
    """Return the definitions of these names, in their order; without names, all. Raises FormatError."""
    known = {one.name for one in definitions}
    for name in names:
        if name not in known:
            raise FormatError(f"there is no format {name}. There are {', '.join(sorted(known))}")
    return [one for one in definitions if one.name in names] if names else list(definitions)
