"""Names of levels: the words and numbers of many programs -> the severities of syslog. Pure."""

from __future__ import annotations

SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Syslog's severities, in the order of their numbers (RFC 5424, 6.2.1)."""

_OTHER_WORDS = {
    "panic": "emerg",
    "emergency": "emerg",
    "critical": "crit",
    "fatal": "crit",
    "error": "err",
    "severe": "err",
    "warn": "warning",
    "information": "info",
    "informational": "info",
    "log": "info",
    "note": "notice",
    "failure": "err",
    "fail": "err",
    "dpanic": "crit",
    "assert": "crit",
    "dbug": "debug",
    "verbose": "debug",
    "trce": "trace",
}
_NUMBERS = {**dict(enumerate(SEVERITIES)), 10: "trace", 20: "debug", 30: "info", 40: "warning"} | {
    50: "err",
    60: "crit",
}
"""Syslog's severities, and the levels of JSON loggers that count in tens."""


def level_of(text: str) -> str:
    """Return the severity that ``text`` names, by word or number; another word in lower case."""
    word = text.strip().lower()
    if word.isascii() and word.isdigit() and len(word) <= 2:
        return _NUMBERS.get(int(word), word)
    return _OTHER_WORDS.get(word, word)


def severity_of_priority(priority: int) -> str:
    """Return the severity of syslog's ``<priority>``, which is facility * 8 + severity."""
    return SEVERITIES[priority % 8]
