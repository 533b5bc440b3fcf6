"""Subjects of certificates are the text that Java has for them: ACLs are about it."""

from __future__ import annotations

import random
import subprocess
from itertools import product
from pathlib import Path

import pytest

from nilometer.security.principal import subject_of
from support.der import Attribute, certificate, name

pytestmark = pytest.mark.java
PROGRAM = Path(__file__).parents[2] / "java" / "Subjects.java"
KEYWORDS = (
    *(f"2.5.4.{number}" for number in (3, 6, 7, 8, 9, 10, 11)),
    "0.9.2342.19200300.100.1.1",
    "0.9.2342.19200300.100.1.25",
)
OTHERS = ("2.5.4.5", "2.5.4.12", "2.5.4.46", "1.2.840.113549.1.9.1", "1.3.6.1.4.1.42.2.11.2.1", "2.999.3")
TEXTS = (0x0C, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1A, 0x1B, 0x1C, 0x1E)
NO_TEXTS = (0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x17, 0x18, 0x30, 0x31, 0x80, 0xA0)
VALUES = (b"Bob", b"", b"a\0b", b"\0B\0o\0b", b"\xe4", b" a\r", b"\0\0\0a")
PIECES = (
    *(bytes((byte,)) for byte in b"\0\t\n\x0b\r \"#'()*+,-./0:;<=>?@\\a&\x7f"),
    *(b"Bob", b"  ", "ä".encode(), "😀".encode(), "\u2028".encode(), "\xa0".encode(), b"\0A", b"\xd8\0"),
    # What is not UTF-8: Latin-1, parts of characters, halves of surrogate pairs, too long forms.
    *(b"\xe4", b"\xff\xfe", b"\xe2\x82", b"\x80", b"\xbf", b"\xed", b"\xed\xa0", b"\xed\xa0\x80"),
    *(b"\xf0", b"\xf0\x9f", b"\xf0\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80"),
)
NAMES = 6_000


def attribute(chance: random.Random) -> Attribute:
    kind = chance.choice(KEYWORDS if chance.random() < 0.9 else OTHERS)
    value = b"".join(chance.choice(PIECES) for _ in range(chance.randrange(7)))
    return kind, chance.choice(TEXTS), value


def random_name(chance: random.Random) -> bytes:
    return name(
        [
            [attribute(chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
            for _ in range(chance.randrange(4))
        ]
    )


def test_subjects_are_those_of_java() -> None:
    chance = random.Random(17)
    each = product((*KEYWORDS, *OTHERS), (*TEXTS, *NO_TEXTS), VALUES)
    names = [name([[one]]) for one in each] + [random_name(chance) for _ in range(NAMES)]
    given = "".join(f"{one.hex()}\n" for one in names)
    done = subprocess.run(
        ["java", PROGRAM], input=given, capture_output=True, text=True, check=True, timeout=300
    )
    expected = [bytes.fromhex(line).decode() for line in done.stdout.splitlines()]
    assert len(expected) == len(names)
    found = [subject_of(certificate(one)) for one in names]
    wrong = [
        f"{one.hex()}: Java {theirs!a}, here {ours!a}"
        for one, theirs, ours in zip(names, expected, found, strict=True)
        if theirs != ours
    ]
    assert not wrong, "\n".join(wrong[:20])
