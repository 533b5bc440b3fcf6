"""Lists of thousands, a page at a time: what matches a search, in which order, and which page it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
S = TypeVar("S")

PAGE_SIZE = 50
NAME = "name"

Columns = Mapping[str, Callable[[T], Any]]
"""What a list can be sorted by beside the name: a value of each item; None where it is not known."""


class Asked(msgspec.Struct, frozen=True):
    """What a browser asks of a list."""

    query: str = ""
    number: int = 1
    column: str = NAME
    descending: bool = False


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...]
    number: int
    """From 1; at most ``pages``."""
    pages: int
    matching: int
    total: int
    asked: Asked
    """``column`` is one that the list has."""

    def showing(self, items: tuple[S, ...]) -> Page[S]:
        """Return this page with other items: what is shown of those that it has."""
        return Page(items, self.number, self.pages, self.matching, self.total, self.asked)

    @property
    def first(self) -> int:
        """The number of the first item shown, from 1; 0 if there is none."""
        return 0 if not self.matching else (self.number - 1) * PAGE_SIZE + 1

    @property
    def last(self) -> int:
        return max(0, self.first + len(self.items) - 1)


def page_of(
    items: Sequence[T], name: Callable[[T], str], asked: Asked, columns: Columns[T] | None = None
) -> Page[T]:
    """Return the page asked for, of the items whose name contains each word of the query, in any case.

    ``items`` are sorted by name. Items of one value stay so, and those whose value is not known are the last.
    """
    words = asked.query.casefold().split()
    found = [item for item in items if all(word in name(item).casefold() for word in words)]
    value = (columns or {}).get(asked.column)
    if value is None:
        asked = Asked(asked.query, asked.number, NAME, asked.descending and asked.column == NAME)
        found = found[::-1] if asked.descending else found
    else:
        known = [item for item in found if value(item) is not None]
        known.sort(key=value, reverse=asked.descending)
        found = known + [item for item in found if value(item) is None]
    pages = max(1, -(-len(found) // PAGE_SIZE))
    number = min(max(1, asked.number), pages)
    begin = (number - 1) * PAGE_SIZE
    return Page(tuple(found[begin : begin + PAGE_SIZE]), number, pages, len(found), len(items), asked)
