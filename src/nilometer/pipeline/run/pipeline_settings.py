"""The settings of a pipeline: its dataclass ``Settings``, changed by ``--set KEY=VALUE`` and TOML files.

A file has one table per pipeline, ``[activity]``, so that one file serves several. Durations are texts such
as ``30 minutes`` or ``45m``; rows, such as the steps of a funnel, are tables or lists. Pure.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import msgspec

from nilometer.pipeline.errors import PipelineError

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)")
_UNITS: Final = {
    **dict.fromkeys(("", "s", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
SECONDS_MAX: Final = 10 * 365 * 86_400


class SettingError(PipelineError):
    """A setting is unknown or has an invalid value; the message names it."""


def duration(text: str) -> timedelta:
    """Parse ``30 minutes``, ``45m``, ``90`` (seconds). Raises ValueError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found.group(2) not in _UNITS:
        raise ValueError(f"{text!r} is no duration; examples are 30 minutes, 45m, 2h, 90s")
    seconds = float(found.group(1)) * _UNITS[found.group(2)]
    if not 0 < seconds <= SECONDS_MAX:
        raise ValueError(f"{text!r} is not more than 0 and at most ten years")
    return timedelta(seconds=seconds)


def given_settings(name: str, files: Sequence[tuple[str, str]], pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of pipeline ``name`` in TOML files (name and text) and then in ``--set`` pairs.

    A value of a pair is TOML, or a text. Raises SettingError.
    """
    found: dict[str, Any] = {}
    for source, text in files:
        try:
            table = tomllib.loads(text).get(name, {})
        except tomllib.TOMLDecodeError as error:
            raise SettingError(f"--settings: {source} is not TOML: {error}") from None
        if not isinstance(table, dict):
            raise SettingError(f"--settings: {source}: {name} must be a table, [{name}]")
        found.update(cast("dict[str, Any]", table))
    for key, value in pairs.items():
        found[key] = _toml_value(value)
    return found


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def make_settings(settings_type: type[Any], given: Mapping[str, Any]) -> Any:
    """Return ``settings_type`` with the given values. Raises SettingError for one that does not fit."""
    hints = typing.get_type_hints(settings_type)
    names = [one.name for one in dataclasses.fields(settings_type)]
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in names:
            raise SettingError(f"there is no setting {key}. There are {', '.join(names)}")
        try:
            values[key] = _converted(value, hints[key])
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise SettingError(f"setting {key}: {error}") from None
    return settings_type(**values)


def _converted(value: Any, hint: Any) -> Any:
    if hint is timedelta:
        return duration(str(value))
    if typing.get_origin(hint) is tuple:
        (row, _) = typing.get_args(hint)
        if not isinstance(value, list) or not value:
            raise ValueError("it is a list of at least one row")
        return tuple(_row(one, row) for one in cast("list[Any]", value))
    return msgspec.convert(value, hint)


def _row(value: Any, row: Any) -> Any:
    """Return a row, given as a list or as a table of the row's columns."""
    columns: tuple[str, ...] = getattr(row, "_fields", ())
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        unknown, missing = sorted(set(table) - set(columns)), [one for one in columns if one not in table]
        if unknown or missing:
            raise ValueError(f"a row has the columns {', '.join(columns)}, and not {', '.join(table)}")
        value = [table[one] for one in columns]
    return msgspec.convert(value, row)


def settings_listing(module: types.ModuleType | object) -> dict[str, str]:
    """Return the settings of a pipeline's module and their defaults, for people."""
    settings_type = getattr(module, "Settings", None)
    if settings_type is None:
        return {}
    default = settings_type()
    return {one.name: str(getattr(default, one.name)) for one in dataclasses.fields(settings_type)}
