"""The measures of the house in docs/architecture.md are about those of the code: `architecture.measure`."""

from __future__ import annotations

import re

from architecture.measure import Module, circles, committed, modules, rooms, table

ABOUT = 0.1
"""By how much a number may differ from the table before the table is written again."""
WRITE = "PYTHONPATH=tests python -m architecture.measure"


def test_the_table_is_about_what_the_code_is() -> None:
    now, then = (_rows(text) for text in (table(), committed()))
    assert now.keys() == then.keys(), WRITE
    off = [
        (room, column)
        for room, numbers in now.items()
        for column, (number, written) in enumerate(zip(numbers, then[room], strict=True))
        if abs(number - written) > max(2, ABOUT * written)
    ]
    assert not off, f"{off}: {WRITE}"


def test_no_new_circle_of_modules() -> None:
    number = int(re.findall(r"counted: (\d+)", committed())[0])
    found = circles(modules())
    assert len(found) <= number, "\n".join(" <-> ".join(circle) for circle in found)


def test_small_modules_and_circles_are_found() -> None:
    def module(name: str, lines: int, *imports: str) -> tuple[str, Module]:
        return name, Module(name, False, lines, 1, frozenset(imports))

    house = dict(
        [
            module("n.a.small", 59, "n.a.other"),
            module("n.a.other", 60, "n.a.small", "n.b.far"),
            module("n.b.far", 10),
        ]
    )
    assert {name: (room.modules, room.code_lines, room.small) for name, room in rooms(house).items()} == {
        "a/": (2, 119, 1),
        "b/": (1, 10, 0),
    }
    assert circles(house) == [["n.a.other", "n.a.small"]]


def _rows(text: str) -> dict[str, list[int]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: [int(cell) for cell in cells[1:]] for cells in rows[1:]}
