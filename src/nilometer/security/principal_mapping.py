"""``ssl.principal.mapping.rules``: from the subject of a client's certificate to its user (KIP-371).

The first rule whose pattern matches the whole subject gives the name: ``RULE:pattern/replacement/L``, with
``$1`` for a group, and L or U for small letters or capitals. ``DEFAULT`` gives the subject itself.
"""

from __future__ import annotations

import re

import msgspec

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|$)"
)


class _Rule(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str] | None
    """None: any subject, which stays as it is."""
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        name = match.expand(self.replacement)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class PrincipalMapping:
    def __init__(self, text: str) -> None:
        """Raises ValueError if ``text`` is not valid."""
        self._rules = _parse(text)

    def name_of(self, subject: str) -> str:
        """Return the user's name. Raises ValueError if no rule applies."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {subject}")


def _parse(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ValueError(f"rule {len(rules) + 1} is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        rules.append(_rule(match, len(rules) + 1))
        position = match.end()
    if not rules:
        raise ValueError("there is no rule")
    return rules


def _rule(match: re.Match[str], number: int) -> _Rule:
    if match["default"]:
        return _Rule(None, "", "")
    try:
        pattern = re.compile(match["pattern"].replace("\\/", "/"))
        replacement = re.sub(r"\$(\d)", r"\\g<\1>", match["replacement"].replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"rule {number} has an invalid pattern: {error}") from None
    groups = [int(digit) for digit in re.findall(r"\$(\d)", match["replacement"])]
    if any(group > pattern.groups for group in groups):
        raise ValueError(f"rule {number} names a group that its pattern does not have")
    try:
        pattern.sub(replacement, "")
    except re.error as error:
        raise ValueError(f"rule {number} has an invalid replacement: {error}") from None
    return _Rule(pattern, replacement, match["case"])
