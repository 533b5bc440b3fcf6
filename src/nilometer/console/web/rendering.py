"""The templates, and how they show numbers, sizes and times. Everything is escaped."""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nilometer.console.views.hold import duration

TEMPLATES = Path(__file__).parents[1] / "templates"
STATIC = Path(__file__).parents[1] / "static"
UNKNOWN = "–"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: float | None) -> str:
    """Return a number with separators of thousands, or a dash if it is not known."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 10 else f"{value:,.1f}"


def size(value: int | None) -> str:
    if value is None:
        return UNKNOWN
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{value} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def moment(ms: int) -> str:
    """Return a time in UTC; as a number if no calendar has it."""
    if ms < 0:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def seconds(us: int) -> str:
    """Return a simulated time, given in microseconds."""
    return f"{us / 1_000_000:,.3f} s"


def listed(values: tuple[object, ...] | None) -> str:
    return ", ".join(map(str, values)) if values else UNKNOWN


def quoted(text: str) -> str:
    """Return text as a part of a URL."""
    return quote(text, safe="")


def _environment() -> Any:  # jinja2's filters and globals have no types
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


class Rendering:
    def __init__(self, **shared: Any) -> None:
        """``shared``: values that every template has; ``user`` is None unless :meth:`of_user` gives it."""
        environment = _environment()
        environment.filters.update(
            n=number,
            size=size,
            moment=moment,
            listed=listed,
            age=duration,
            seconds=seconds,
            q=quoted,
        )
        environment.globals.update(shared)
        self._environment = environment
        self._user: str | None = None

    def of_user(self, user: str) -> Rendering:
        """Return the same templates for a user who has logged in."""
        found = copy(self)
        found._user = user
        return found

    def render(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(user=self._user, **values)
