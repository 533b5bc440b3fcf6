"""Where a command reads a password: a file, the environment, or a prompt; never the command line, which other
processes and the shell's history can show."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import click

PASSWORD_VARIABLE = "NILOMETER_USER_PASSWORD"
LENGTH_MAX = 1024
"""In characters: a longer text is a wrong file."""

password_file_option = click.option(
    "--password-file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help=f"A file with the password as its only line; - is standard input. Without it the password is in "
    f"{PASSWORD_VARIABLE}, or is asked for.",
)


def read_password(file: TextIO | None) -> str:
    """Return the password. Raises UsageError, which does not repeat it."""
    given = os.environ.get(PASSWORD_VARIABLE)
    if file is not None:
        return _checked(_line_of(file), "--password-file")
    if given:
        return _checked(given, PASSWORD_VARIABLE)
    if not sys.stdin.isatty():
        raise click.UsageError(f"give --password-file, or {PASSWORD_VARIABLE} in the environment")
    return _checked(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True), "Password")


def _line_of(file: TextIO) -> str:
    try:
        text = file.read(LENGTH_MAX + len("\r\n") + 1)
    except UnicodeDecodeError:
        raise click.UsageError("--password-file is not UTF-8 text") from None
    line, _, rest = text.partition("\n")
    if rest:
        raise click.UsageError("--password-file has more than one line")
    return line


def _checked(password: str, where: str) -> str:
    try:
        password.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{where} is not UTF-8 text") from None
    if not password:
        raise click.UsageError(f"{where} is empty")
    if len(password) > LENGTH_MAX:
        raise click.UsageError(f"{where} has more than {LENGTH_MAX} characters")
    return password
