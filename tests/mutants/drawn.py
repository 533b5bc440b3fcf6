"""``PYTHONPATH=tests python -m mutants.drawn``: try the mutants that a seed draws, and keep what killed each.

What is known is in ``drawn.jsonl``, a line for each mutant; the others are tried, so a run that was stopped
goes on where it was. A survivor that is equivalent to the program has a line with the reason in
``judged.jsonl``. A mutant is tried by the quick tests that execute its line (unit tests without, then with
the model check, then those of what is simulated), then by simulated clusters, then by the quick tests of real
processes, until one fails.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click

from mutants import covered_lines
from mutants.mutant import REPOSITORY, Tree
from mutants.sites import STRATA, Site, drawn

TOP = Path("src/nilometer")
RESULTS = Path(__file__).with_name("drawn.jsonl")
JUDGED = Path(__file__).with_name("judged.jsonl")
"""The survivors that no test can notice, since the program does the same, each with the reason."""
LINES = REPOSITORY / "build" / "mutants" / "lines"
TESTS_MAX = 150
SEEDS, MINUTES = 6, 0.6
TIMEOUT_S = 240.0
UNIT, SIMULATION, MODEL_CHECK = "tests/unit/", "tests/simulation/", "model_check"
NOT_SIMULATED = ("security", "client/admin")


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_covered_lines() -> None:
    LINES.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "quick", "-p", "mutants.covered_lines"]
    command += ["--numprocesses", "2", "--dist", "loadfile", UNIT, SIMULATION]
    environment = {**os.environ, covered_lines.DATA: str(LINES), "PYTHONPATH": "src:tests"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    covered_lines.combine(LINES)


def covering(site: Site) -> list[str]:
    """The tests that execute the line, those of its own package first; at most ``TESTS_MAX``.

    A line at the top of a module is executed before all tests: then those that execute another line of it.
    """
    by_line = covered_lines.tests_by_line(LINES, REPOSITORY / TOP / site.path)
    lines = by_line.values() if not site.function else [by_line.get(site.line, [])]
    found = {one for each in lines for one in each}
    own = f"{UNIT}{site.path.partition('/')[0]}/"
    return sorted(found, key=lambda one: (not one.startswith(own), not one.startswith(UNIT), one))[:TESTS_MAX]


class Attempt:
    """One mutant in the copy of the tree, until something notices it."""

    def __init__(self, tree: Tree, site: Site) -> None:
        self._tree = tree
        self.site = site

    def killer(self) -> tuple[str, str] | None:
        """Return the layer and the test that noticed it; None if it survived."""
        tests = covering(self.site)
        unit = [one for one in tests if one.startswith(UNIT)]
        plain = [one for one in unit if MODEL_CHECK not in one]
        checks = [one for one in unit if MODEL_CHECK in one]
        simulated = [one for one in tests if one.startswith(SIMULATION)]
        for layer, chosen in (("unit", plain), ("model check", checks), ("simulation", simulated)):
            if chosen and (failed := self._failing(chosen)):
                return layer, failed
        if not self.site.path.startswith(NOT_SIMULATED) and (failed := self._fails_simulated()):
            return "simulation", failed
        if failed := self._failing(["tests/process"]):
            return "process", failed
        return None

    def _failing(self, tests: Sequence[str]) -> str | None:
        names = [one.removeprefix("tests/") for one in tests]
        try:
            failed = self._tree.failing(names, "-x", "-q", "-m", "quick", timeout_s=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "does not end"  # the error that ends a test may be taken for another one, and tried again
        return failed[0] if failed else None

    def _fails_simulated(self) -> str | None:
        program = [
            "simulate",
            "--seeds",
            str(SEEDS),
            "--minutes",
            str(MINUTES),
            "--jobs",
            "1",
            "--no-minimise",
        ]
        try:
            done = self._tree.run(["-m", "nilometer.cli", *program], TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "does not end"
        if done.returncode == 0:
            return None
        lines = [line for line in done.stdout.splitlines() if line.startswith("seed ") and "failed" in line]
        return lines[0] if lines else (done.stderr.strip().splitlines() or ["?"])[-1]


def in_turns(sites: Sequence[Site]) -> list[Site]:
    """The sites of all packages in turns: a run that was stopped says something of each."""
    numbers: Counter[str] = Counter()
    places: list[tuple[int, Site]] = []
    for site in sites:
        package = site.path.partition("/")[0]
        numbers[package] += 1
        places.append((numbers[package], site))
    return [site for _, site in sorted(places, key=lambda one: one[0])]


def lines_of(path: Path) -> dict[str, dict[str, object]]:
    """Return the lines of a file by the names of their mutants."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {one["name"]: one for one in map(json.loads, lines)}


def known() -> dict[str, dict[str, object]]:
    return lines_of(RESULTS)


def table(tried: Mapping[str, Mapping[str, object]], judged: Collection[str]) -> str:
    """What was tried, by package and by what noticed it first; then the share that was noticed.

    ``judged``: the survivors that are equivalent to the program; the share is of the others.
    """
    layers = ("unit", "model check", "simulation", "process", "survived", "equivalent")
    counts: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    for name, one in tried.items():
        package = name.partition("::")[0].partition("/")[0]
        layer = str(one["layer"] or ("equivalent" if name in judged else "survived"))
        counts[package, layer] += 1
        seconds[package] += round(float(str(one["cpu_s"])))
    rows = [f"| package | {' | '.join(layers)} | CPU s |", "|---|" + "---|" * (len(layers) + 1)]
    for package in STRATA:
        cells = " | ".join(str(counts[package, layer]) for layer in layers)
        rows.append(f"| {package} | {cells} | {seconds[package]} |")
    survived, equivalent = (sum(counts[each, layer] for each in STRATA) for layer in layers[-2:])
    count = counts.total() - equivalent
    share = f" ({(count - survived) / count:.1%})" if count else ""
    return "\n".join([*rows, "", f"Noticed: {count - survived} of {count} that are not equivalent{share}."])


@click.command(help=__doc__)
@click.option("--limit", type=int, default=0, help="Try this many at most.")
@click.option("--package", type=click.Choice(list(STRATA)), help="Only those of one package.")
@click.option("--table", "only_table", is_flag=True, help="Only print the table of what is known.")
def main(limit: int, package: str | None, only_table: bool) -> None:
    if only_table:
        click.echo(table(known(), lines_of(JUDGED)))
        return
    if not LINES.exists():
        write_covered_lines()
    done = known()
    left = [
        site
        for site in in_turns(drawn(REPOSITORY / TOP))
        if site.name not in done and (package is None or site.path.partition("/")[0] == package)
    ]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(Path(folder))
        for site in left[: limit or None]:
            before = cpu_s()
            with tree.changed(TOP / site.path, site.applied):
                killer = Attempt(tree, site).killer()
            layer, by = killer or (None, None)
            line = {"name": site.name, "line": site.line, "new": site.new, "layer": layer, "by": by}
            line["cpu_s"] = round(cpu_s() - before, 1)
            with RESULTS.open("a", encoding="utf-8") as target:
                target.write(json.dumps(line) + "\n")
            click.echo(f"{site.name} (line {site.line}): {f'{layer}: {by}' if killer else 'SURVIVED'}")
    click.echo(table(known(), lines_of(JUDGED)))


if __name__ == "__main__":
    main()
