"""Who a peer is, and how its connection is protected: the authenticated identity in Kafka's form
``type:name``, the user that a client's certificate stands for, and the security protocols of listeners. Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec


class SecurityProtocol(enum.Enum):
    """Kafka's security protocols of listeners: with or without TLS, with or without SASL."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


# The authenticated identity of a peer, in Kafka's form ``type:name``.

USER = "User"
BROKER = "Broker"
"""The type of a broker that has proved that it is one; no client can have it."""


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of connections that do not authenticate: those of PLAINTEXT listeners, and of SSL
listeners that request no certificate."""


def parse_principal(text: str) -> Principal:
    """Parse ``type:name``; the name may contain colons. Raises ValueError."""
    kind, separator, name = text.partition(":")
    if not (separator and kind and name):
        raise ValueError(f"{text!r} is not a principal of the form type:name")
    return Principal(kind, name)


# From a client's certificate to its user: the subject as Java prints it, and ``ssl.principal.mapping.rules``
# (KIP-371).

# The subject of a certificate as Java prints it: RFC 2253, the last part first.
#
# Kafka's principals and ``ssl.principal.mapping.rules`` are about this text. Only as much of DER is read as
# is needed to find the subject of a certificate that has been verified already.

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""ASN.1's types of text that Java prints as text: UTF8, Printable, T61, IA5, General and BMPString. It takes
the bytes of each for UTF-8, so that a name in BMPString has an escaped NUL before each letter."""
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_VERSION = 0xA0
_ESCAPED = {**{each: f"\\{each}" for each in ',=+<>#;"\\'}, "\0": "\\00"}
_PADDING = " \r"
"""What is escaped at the begin and the end of a value."""
_FIELDS_BEFORE_SUBJECT = 4
"""Serial number, signature algorithm, issuer and validity."""


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER. Raises ValueError if it is damaged."""
    try:
        (_, whole) = next(_items(certificate))
        (_, signed) = next(_items(whole))
        fields = [value for tag, value in _items(signed) if tag != _VERSION]
        names = [_relative_name(value) for _, value in _items(fields[_FIELDS_BEFORE_SUBJECT])]
    except (IndexError, StopIteration, ValueError):
        raise ValueError("the certificate is damaged") from None
    return ",".join(reversed(names))


def _relative_name(data: bytes) -> str:
    parts: list[str] = []
    for _, pair in _items(data):
        (_, oid), (tag, value) = _items(pair)
        parts.append(_part(_object_identifier(oid), tag, value))
    return "+".join(parts)


def _part(oid: str, tag: int, value: bytes) -> str:
    keyword = _KEYWORDS.get(oid)
    if keyword is None or tag not in _STRINGS:
        return f"{keyword or oid}=#{_encoded(tag, value).hex()}"
    # Java has one character for bytes that encode half a surrogate pair, Python one for each.
    text = _SURROGATE.sub(b"\xef\xbf\xbd", value).decode("utf-8", "replace")
    return f"{keyword}={_escaped(text)}"


def _escaped(text: str) -> str:
    shown = "".join(_ESCAPED.get(each, each) for each in text)
    first = len(shown) - len(shown.lstrip(_PADDING))
    end = len(shown.rstrip(_PADDING))
    return "".join(each if first <= position < end else f"\\{each}" for position, each in enumerate(shown))


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of the elements of ``data``. Raises IndexError."""
    position = 0
    while position < len(data):
        tag, size = data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > len(data):
            raise IndexError
        yield tag, data[position : position + size]
        position += size


def _encoded(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value


def _object_identifier(data: bytes) -> str:
    numbers, number = list[int](), 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


# ``ssl.principal.mapping.rules``: from the subject of a client's certificate to its user (KIP-371).
#
# The first rule whose pattern matches the whole subject gives the name: ``RULE:pattern/replacement/L``, with
# ``$1`` for a group, and L or U for small letters or capitals. ``DEFAULT`` gives the subject itself.

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
