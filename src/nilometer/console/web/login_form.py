"""What a browser sends to log in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NAME_MAX = 256
PASSWORD_MAX = 1024
"""In characters."""


class BadLogin(Exception):
    """The form cannot be used; the message says why, without the password."""


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str = field(repr=False)


def credentials(given: Mapping[str, str]) -> Credentials:
    """Raises BadLogin."""
    user, password = given.get("user", "").strip(), given.get("password", "")
    if not user or not password:
        raise BadLogin("Enter a user and a password.")
    if len(user) > NAME_MAX or len(password) > PASSWORD_MAX:
        raise BadLogin(f"A user has at most {NAME_MAX} characters, a password {PASSWORD_MAX}.")
    if "\0" in user + password:
        raise BadLogin("A user and a password have no null characters.")
    return Credentials(user, password)


def own_path(text: str) -> str:
    """Return ``text`` if it is the path of a page of this console, else the overview's.

    ``//host`` and, for browsers, ``/\\host`` are addresses of other sites.
    """
    is_own = text.startswith("/") and text[1:2] not in ("/", "\\") and text.isprintable()
    return text if is_own else "/"
