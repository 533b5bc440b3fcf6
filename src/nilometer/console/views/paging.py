"""Lists of thousands, a page at a time: what matches a search, and which page of it is shown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    number: int
    """From 1; at most ``pages``."""
    pages: int
    matching: int
    total: int
    query: str

    def showing(self, items: tuple[S, ...]) -> Page[S]:
        """Return this page with other items: what is shown of those that it has."""
        return Page(items, self.number, self.pages, self.matching, self.total, self.query)

    @property
    def first(self) -> int:
        """The number of the first item shown, from 1; 0 if there is none."""
        return 0 if not self.matching else (self.number - 1) * PAGE_SIZE + 1

    @property
    def last(self) -> int:
        return max(0, self.first + len(self.items) - 1)


def page_of(items: Sequence[T], name: Callable[[T], str], query: str, number: int) -> Page[T]:
    """Return page ``number`` of the items whose name contains each word of ``query``, in any case."""
    words = query.casefold().split()
    if words:
        found = [item for item in items if all(word in name(item).casefold() for word in words)]
    else:
        found = list(items)
    pages = max(1, -(-len(found) // PAGE_SIZE))
    number = min(max(1, number), pages)
    begin = (number - 1) * PAGE_SIZE
    return Page(tuple(found[begin : begin + PAGE_SIZE]), number, pages, len(found), len(items), query)
