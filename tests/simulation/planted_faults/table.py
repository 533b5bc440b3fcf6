"""``PYTHONPATH=tests/simulation python -m planted_faults.table``: hunt every planted fault, and write what
found it, and how soon, into docs/simulation.md. With ``--show`` it only prints. Names after the options hunt
these alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click
from planted_faults.catalogue import BY_NAME, FAULTS
from planted_faults.planting import PlantedFault, look_for

PAGE = Path(__file__).parents[3] / "docs" / "simulation.md"
BEGIN, END = "<!-- planted faults: generated -->", "<!-- planted faults: end -->"
HEAD = (
    "| planted fault | what is wrong | injected faults | found by seed, of | checker |",
    "|---|---|---|---|---|",
)


def line(fault: PlantedFault, seed: int, checker: str) -> str:
    kinds = ", ".join(kind.value for kind in fault.kinds)
    return f"| {fault.name} | {fault.what} | {kinds} | {seed} of {fault.seeds} | {checker} |"


def lines_on_page() -> dict[str, tuple[int, str]]:
    """By fault, the seed and the checker that the page names."""
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in text.splitlines()]
    found: dict[str, tuple[int, str]] = {}
    for row in rows:
        if len(row) == 5 and (seed := re.match(r"(\d+) of \d+$", row[3])):
            found[row[0]] = int(seed[1]), row[4].rstrip(" |")
    return found


def write(rows: Iterable[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join((before + BEGIN, *HEAD, *rows, END)) + after, encoding="utf-8")


@click.command(help=__doc__)
@click.option("--show", is_flag=True, help="Print the rows, write nothing.")
@click.argument("names", nargs=-1, type=click.Choice(list(BY_NAME)))
def main(show: bool, names: tuple[str, ...]) -> None:
    rows: dict[str, str] = {}
    known = lines_on_page()
    for fault in FAULTS:
        if names and fault.name not in names:
            if fault.name in known:
                rows[fault.name] = line(fault, *known[fault.name])
            continue
        found = look_for(fault)
        if found is None:
            raise click.ClickException(f"{fault.name} was not found within {fault.seeds} seeds")
        rows[fault.name] = line(fault, found.seed, found.checker)
        click.echo(rows[fault.name])
    if not show:
        write(rows.values())


if __name__ == "__main__":
    main()
