"""SPEC's replication rows as scripts that read as comments, commands and what comes of them.

A script in ``scripts/`` consists of remarks (``#``), commands (``>``) and, below each command, what the stage
shows. After an intended change, write the outcomes again with ``NILOMETER_REGENERATE=1`` and read the
difference.

    > replicas ABC min-isr=2      the first one leads
    > produce A 2 acks=1          two records
    > fetch B max=3 at-once lost  one fetch; answered at once even without an update; the answer gets lost
    > crash C unnoticed | restart C | expire A | late A | learns A | elect B | lag A C
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nilometer.simulation.scenario_stage import Stage

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def act(stage: Stage, verb: str, names: list[str], words: set[str], numbers: dict[str, str]) -> None:
    match verb, names:
        case "produce", [name]:
            stage.produce(name, int(numbers.get("count", 1)), acks_all=numbers.get("acks") != "1")
        case "fetch", [name]:
            stage.fetch(
                name,
                max_records=int(numbers.get("max", 1)),
                may_wait="at-once" not in words,
                answer_is_lost="lost" in words,
            )
        case "crash", [name]:
            stage.crash(name, notice="unnoticed" not in words)
        case "lag", [leader, follower]:
            stage.lag(leader, follower)
        case "late", [name]:
            stage.stops_reading_metadata(name)
        case (("restart" | "expire" | "elect" | "learns"), [name]):
            getattr(stage, verb)(name)
        case _:
            raise ValueError(f"no such command: {verb} {names}")


def played(script: str) -> str:
    """``script`` with the outcome of every command below it."""
    output: list[str] = []
    stage = Stage("A")
    for line in script.splitlines():
        if line.startswith("#") or (not line and output and output[-1].startswith("#")):
            output += (
                ["", line] if output and not output[-1].startswith("#") and line else [line] if line else []
            )
        if not line.startswith("> "):
            continue
        verb, *rest = line[2:].split()
        numbers = dict(word.split("=") for word in rest if "=" in word)
        if verb == "replicas":
            stage = Stage(rest[0], min_insync_replicas=int(numbers.get("min-isr", 1)))
            stage.show()
        else:
            names = [word for word in rest if word.isupper()]
            act(stage, verb, names, {word for word in rest if word.islower()}, numbers)
        output += ["", line, *(f"  {shown}".rstrip() for shown in stage.lines if shown)]
        stage.lines.clear()
    return "\n".join(output).strip() + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_script(path: Path) -> None:
    script = path.read_text()
    text = played(script)
    if os.environ.get("NILOMETER_REGENERATE"):
        path.write_text(text)
    assert text == path.read_text()
    assert "> " in text
