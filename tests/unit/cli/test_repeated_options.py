"""An option that is given twice is taken twice, or refused by its name: every option of every command."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from nilometer.cli.main import cli, run
from support.documentation.command_reference import leaf_commands

TAKES_A_KEY_TWICE = {("produce", "--header")}
"""Options of KEY=VALUE whose keys may be repeated: a record has a list of headers."""
ARGUMENTS = {
    "topic create": "t",
    "topic alter": "t",
    "topic config": "t",
    "broker config": "--all-brokers",
    "produce": "t",
    "consume": "t",
    "ingest": "/dev/null --topic t",
    "queue create": "q",
    "export": "--topic t --to DIR",
    "pipeline run": "logs",
    "pipeline deliver": "--webhook http://127.0.0.1:1/",
}


def options() -> Iterator[tuple[str, click.Command, click.Option]]:
    for name, command in [("nilometer", cli), *leaf_commands()]:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield name.removeprefix("nilometer").strip(), command, parameter


ALL = list(options())
SPELLINGS = [
    pytest.param(name, command, option, spelling, id=f"{name} {spelling}")
    for name, command, option in ALL
    for spelling in (*option.opts, *option.secondary_opts)
]
PAIRS = [
    pytest.param(name, option.opts[-1], id=f"{name} {option.opts[-1]}")
    for name, _, option in ALL
    if option.multiple and option.metavar in ("KEY=VALUE", "NAME=VALUE")
    if (name, option.opts[-1]) not in TAKES_A_KEY_TWICE
]


def given(option: click.Option, spelling: str) -> list[str]:
    return [spelling] if option.is_flag else [spelling, "1"]


@pytest.mark.parametrize(("name", "command", "option", "spelling"), SPELLINGS)
def test_an_option_given_twice(
    name: str, command: click.Command, option: click.Option, spelling: str
) -> None:
    context = click.Context(command, info_name=name)
    words = [*given(option, spelling), *given(option, option.opts[0])]
    if option.multiple:
        values, _, _ = command.make_parser(context).parse_args([*words])
        assert len(values[option.name or ""]) == 2
        return
    with pytest.raises(click.UsageError, match=rf"{option.opts[-1]}\b.* is given twice"):
        command.parse_args(context, words)


def test_options_that_give_one_value_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["elect-leaders", "--all", "--unclean", "--preferred"]) == 2
    assert "give one of --unclean and --preferred" in capsys.readouterr().err


def test_there_are_many() -> None:
    assert len(SPELLINGS) > 400
    assert len(PAIRS) > 12


@pytest.mark.parametrize(("name", "option"), PAIRS)
def test_a_key_given_twice(name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*name.split(), *ARGUMENTS.get(name, "").split(), option, "k=1", option, "k=2"]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert "k twice" in said and option in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("quota set producer_byte_rate=1 producer_byte_rate=2 --user a", "producer_byte_rate is given twice"),
        ("broker --log-level INFO --log-level DEBUG", "--log-level is given twice for all loggers"),
        ("pipeline run logs --topic a --topic b", "--topic is given twice for logs"),
        ("topic alter t --config a=1 --delete-config a", "a is in --config and in --delete-config"),
        ("quota set producer_byte_rate=1 --user a --user b", "--user is given twice"),
    ],
)
def test_what_else_has_one_value(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    assert said in capsys.readouterr().err
