"""``PYTHONPATH=tests python -m mutants [NAME…]``: try mutants, all by default, and say which tests kill each.

Exit code 1: some survived. They are named at the end, and need a test.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from mutants.catalogue import BY_NAME
from mutants.mutant import Tree


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(BY_NAME)), metavar="[NAME…]")
@click.option("--first", is_flag=True, help="One test that kills a mutant is enough.")
@click.option("--sound", is_flag=True, help="First run the tests without a mutant.")
def main(names: tuple[str, ...], first: bool, sound: bool) -> None:
    chosen = [BY_NAME[name] for name in names or BY_NAME]
    survivors: list[str] = []
    options = ["-x"] if first else []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(Path(folder))
        if sound and (failed := tree.failing(sorted({one for mutant in chosen for one in mutant.tests}))):
            raise click.ClickException(f"these tests fail without a mutant: {', '.join(failed)}")
        for mutant in chosen:
            killers = tree.killers(mutant, *options)
            click.echo(f"{mutant.name}: {', '.join(killers) or 'SURVIVED'}")
            if not killers:
                survivors.append(mutant.name)
    click.echo(f"{len(chosen) - len(survivors)} of {len(chosen)} killed")
    if survivors:
        click.echo(f"survivors: {' '.join(survivors)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
