"""Where `nilometer user add` reads a password, and what it refuses without repeating it."""

from __future__ import annotations

import io

import click
import pytest

from nilometer.cli import users
from nilometer.cli.users import LENGTH_MAX, PASSWORD_VARIABLE, read_password


@pytest.fixture(autouse=True)
def _without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("secret\n", "secret"),
        ("secret", "secret"),
        (" s=é,t \n", " s=é,t "),
        ("x" * LENGTH_MAX, "x" * LENGTH_MAX),
    ],
)
def test_the_only_line_of_a_file(monkeypatch: pytest.MonkeyPatch, text: str, password: str) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the environment")
    assert read_password(io.StringIO(text)) == password


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    assert read_password(None) == "secret"


def test_a_terminal_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["secret", "misspelt", "secret", "secret"]
    monkeypatch.setattr(users.sys, "stdin", Terminal())
    monkeypatch.setattr(click.termui, "hidden_prompt_func", lambda _prompt: answers.pop(0))
    assert read_password(None) == "secret"
    assert answers == []


def test_there_is_no_prompt_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users.sys, "stdin", io.StringIO("secret\n"))
    with pytest.raises(click.UsageError, match="no terminal to ask for it: give --password-file, or NILO"):
        read_password(None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"secret\nmore", "more than one line"),
        (b"\xff-secret\n", "is not UTF-8 text"),
        (b"secret" * LENGTH_MAX, f"more than {LENGTH_MAX} characters"),
    ],
)
def test_a_wrong_file_is_wrong_usage(text: bytes, why: str) -> None:
    with pytest.raises(click.UsageError, match=why) as refused:
        read_password(io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    assert "secret" not in str(refused.value)


def test_a_variable_that_is_not_utf_8_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret\udcff")
    with pytest.raises(click.UsageError, match="is not UTF-8 text") as refused:
        read_password(None)
    assert "secret" not in str(refused.value)
