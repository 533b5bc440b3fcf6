"""The broker's own log: its level, its format, its files. Not the logs of partitions.

``nilometer.log.level`` is a level, or levels by logger: ``INFO,nilometer.broker.groups=DEBUG``. Levels have
Kafka's names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from nilometer.config import ConfigValue, Settings, key_table

ROOT = "root"
LEVELS: Mapping[str, int] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""Highest first."""
TEXT, JSON = "text", "json"


def _why_bad_levels(value: ConfigValue) -> str | None:
    assert isinstance(value, tuple)
    for item in value:
        name, separator, level = item.rpartition("=")
        if level not in LEVELS or (separator and not name):
            return f"{item} is neither LEVEL nor LOGGER=LEVEL, with one of the levels {', '.join(LEVELS)}"
    return None


LOG_KEYS = key_table(
    f"""
nilometer.log.level: list = INFO
    The level of the broker's log, and LOGGER=LEVEL for single loggers, separated by commas. Tools change
    levels while the broker runs (entity type broker-loggers).
nilometer.log.format: string = {TEXT}
    The format of the broker's log: text, or json (an object for each line).
nilometer.log.file: string =
    The file of the broker's log. Empty: standard error.
nilometer.log.file.max.bytes: long 1024.. = {20 * 1024 * 1024}
    The size at which the file of the broker's log is renamed to FILE.1, and a new one is begun.
nilometer.log.files: int 2.. = 5
    How many files the broker's log has at most, FILE included; the oldest is removed.
""",
    choices={"nilometer.log.format": (TEXT, JSON)},
    checks={"nilometer.log.level": _why_bad_levels},
)


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    levels: Mapping[str, int]
    """By logger; ``root`` is always there."""
    is_json: bool
    path: str | None
    """None: standard error."""
    max_bytes: int
    files: int


def log_settings(settings: Settings) -> LogSettings:
    levels = {ROOT: logging.INFO}
    for item in settings.strings("nilometer.log.level"):
        name, _, level = item.rpartition("=")
        levels[name or ROOT] = LEVELS[level]
    return LogSettings(
        levels=levels,
        is_json=settings.string("nilometer.log.format") == JSON,
        path=settings.string("nilometer.log.file") or None,
        max_bytes=settings.integer("nilometer.log.file.max.bytes"),
        files=settings.integer("nilometer.log.files"),
    )
