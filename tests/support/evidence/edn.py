"""The part of EDN that a history needs: maps, vectors, keywords, strings, integers, booleans and nil."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_TOKENS = re.compile(r"""[\s,]+|(?P<token>[{}\[\]]|"(?:[^"\\]|\\.)*"|[^\s,{}\[\]"]+)""")
_END = {"{": "}", "[": "]"}
_WORDS = {"nil": None, "true": True, "false": False}


class Keyword(str):
    """A name such as ``:ok``, which stands for itself; the text is without the colon."""

    __slots__ = ()


def written(value: object) -> str:
    """Return ``value`` as EDN. Raises TypeError for anything but the types named above."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case Keyword():
            return f":{value}"
        case int():
            return str(value)
        case str():
            return json.dumps(value)
        case list() | tuple():
            return f"[{' '.join(map(written, value))}]"
        case dict():
            return "{" + ", ".join(f"{written(key)} {written(one)}" for key, one in value.items()) + "}"
        case _:
            raise TypeError(f"EDN has no form here for {value!r}")


def parsed(text: str) -> Any:
    """Return the one value that ``text`` holds. Raises ValueError for other text."""
    tokens = _tokens(text)
    try:
        value = _value(next(tokens), tokens)
    except StopIteration:
        raise ValueError(f"the text ends too early: {text[-40:]!r}") from None
    if (rest := next(tokens, None)) is not None:
        raise ValueError(f"{rest!r} follows the value")
    return value


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKENS.match(text, at)
        if found is None:
            raise ValueError(f"not EDN: {text[at : at + 40]!r}")
        at = found.end()
        if found["token"] is not None:
            yield found["token"]


def _value(token: str, tokens: Iterator[str]) -> Any:
    if token in _END:
        inside: list[Any] = []
        while (one := next(tokens)) != _END[token]:
            inside.append(_value(one, tokens))
        if token == "[":
            return inside
        if len(inside) % 2:
            raise ValueError(f"a map without its last value: {inside}")
        return dict(zip(inside[::2], inside[1::2], strict=True))
    if token[0] == '"':
        return json.loads(token)
    if token[0] == ":":
        return Keyword(token[1:])
    if token in _WORDS:
        return _WORDS[token]
    return int(token)
