"""``sasl.jaas.config``: one login module and its options, as Java writes it.

``org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="…";``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<mark>[=;])|(?P<word>[^\s=;"']+))""",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
CONTROLS = ("required", "requisite", "sufficient", "optional")

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class InvalidJaas(ValueError):
    """The text is not a login module; the message says what is wrong, without any of the values."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    name: str
    """The Java class."""
    options: Mapping[str, str] = field(repr=False)

    def users(self) -> dict[str, str]:
        """Return the passwords that a PlainLoginModule of a broker accepts: its options ``user_NAME``."""
        return {
            name.removeprefix("user_"): text
            for name, text in self.options.items()
            if name.startswith("user_")
        }


def client_jaas(module: str, user: str, password: str) -> str:
    """Return the login module of a client as text, which :func:`parse_jaas` reads."""
    return f"{module} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def parse_jaas(text: str) -> LoginModule:
    """Parse one login module. Raises InvalidJaas."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ("mark", ";"):
        raise InvalidJaas('use MODULE required option="value" …; with a semicolon at the end')
    if ("mark", ";") in tokens[:-1]:
        raise InvalidJaas("there is more than one login module")
    (_, name), (_, control), *rest = tokens[:-1]
    if control.lower() not in CONTROLS:
        raise InvalidJaas(f"after the module's name one of {', '.join(CONTROLS)} is expected")
    options: dict[str, str] = {}
    for position in range(0, len(rest), 3):
        match rest[position : position + 3]:
            case [("word" | "quoted", key), ("mark", "="), ("word" | "quoted", value)]:
                options[key] = value
            case _:
                raise InvalidJaas(f'option {position // 3 + 1} is not of the form name="value"')
    return LoginModule(name, options)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidJaas("a quotation mark has no counterpart")
        kind, token = match.lastgroup or "", match[match.lastgroup or 0]
        if kind == "quoted":
            token = re.sub(
                r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), token[1:-1], flags=re.DOTALL
            )
        tokens.append((kind, token))
        position = match.end()
    return tokens
