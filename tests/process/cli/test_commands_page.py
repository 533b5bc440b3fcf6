"""docs/commands.md has every command and option, and the fields of every JSON document."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import nilometer as package
from support.command_line import Nilometer
from support.documentation.command_reference import PAGE, leaf_commands, page_with, reference
from support.ports import free_ports


def examples() -> list[tuple[str, Any]]:
    """Return each command and its document: paragraphs that begin with the one, before a block of JSON."""
    paragraphs = PAGE.read_text("utf-8").split("\n\n")
    return [
        (command[1], json.loads(after.removeprefix("```json\n").removesuffix("```")))
        for before, after in itertools.pairwise(paragraphs)
        if (command := re.match("`nilometer ([^`]+)`", before)) and after.startswith("```json\n")
    ]


EXAMPLES = examples()
WITHOUT_JSON = {
    "nilometer broker",  # runs a broker: its log is its output
    "nilometer completion",  # prints a script
    "nilometer console",  # serves pages over HTTP
    "nilometer exporter",  # serves metrics over HTTP
    "nilometer pipeline formats show",  # prints a file
    "nilometer pipeline new",  # writes files, and says how to go on
    "nilometer spark submit",  # the output is that of the job
    "nilometer spark pipelines",
}


def test_the_page_lists_every_command_and_option() -> None:
    assert PAGE.read_text("utf-8") == page_with(reference()), (
        "run: PYTHONPATH=tests python -m support.documentation.command_reference"
    )


def test_every_command_prints_json() -> None:
    lacking = {
        name
        for name, command in leaf_commands()
        if not any("--json" in option.opts for option in command.params)
    }
    assert lacking == WITHOUT_JSON


def test_every_document_has_the_fields_of_the_page(
    nilometer: Nilometer, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples are run in their order: each finds what those before it left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("1\n2\n3\n")
    port = str(free_ports(1)[0])
    configs = nilometer("broker", "config", "1", "--all", "--json").document["configs"]
    data = configs["log.dirs"]["value"]
    (Path(data) / f"orders-0.{'0' * 32}-stray").mkdir()
    assert len(EXAMPLES) >= 36
    try:
        for command, example in EXAMPLES:
            if command == "transaction list":
                asyncio.run(one_transaction(bootstrap))
            words = [
                port if word == "PORT" else word.replace("DATA/", f"{data}/") for word in command.split()
            ]
            done = nilometer(*words, "--json")
            assert done.code == 0, (command, done)
            compare(command, example, json.loads(done.out.splitlines()[0]))
    finally:
        nilometer("down")


async def one_transaction(bootstrap: str) -> None:
    async with package.connect(bootstrap) as kafka, kafka.transaction("payments") as transaction:
        await transaction.send("clicks", b"paid")


def compare(where: str, example: Any, found: Any) -> None:
    """Fail unless ``found`` has the fields of ``example``, with values of the same kinds."""
    if isinstance(example, dict):
        assert isinstance(found, dict), where
        if where.endswith(".configs"):  # of all settings, the page has a sample
            found = {key: value for key, value in found.items() if key in example}
        assert set(found) == set(example), where
        for key, value in example.items():
            compare(f"{where}.{key}", value, found[key])
    elif isinstance(example, list):
        assert isinstance(found, list), where
        assert bool(found) >= bool(example), where
        if example and found:
            compare(f"{where}[0]", example[0], found[0])
    elif example is not None and found is not None:
        assert type(example) is type(found), (where, found)
