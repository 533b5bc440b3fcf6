"""The log levels of this broker's loggers, by Kafka's names, as tools show and change them while it runs.

A changed level is in force at once and until the process ends; it is kept nowhere, as in Kafka. Loggers are
named after the packages (``nilometer.broker.replicas``); ``root`` is the one above all.
"""

from __future__ import annotations

import logging

from nilometer.broker.settings.log_settings import LEVELS, ROOT
from nilometer.wire.errors import ErrorCode, KafkaError


def logger_levels() -> dict[str, str]:
    """Return the effective level of each logger by the logger's name, sorted by name."""
    names = [name for name, found in logging.root.manager.loggerDict.items() if _is_logger(found)]
    return {name: _level_of(_logger(name)) for name in sorted([ROOT, *names])}


def check_level(name: str, level: str | None) -> None:
    """Raise KafkaError if the level of the logger ``name`` cannot be set to ``level`` (None: be removed)."""
    if name != ROOT and not _is_logger(logging.root.manager.loggerDict.get(name)):
        raise KafkaError(ErrorCode.invalid_config, f"Logger {name} does not exist!")
    if level is None:
        if name == ROOT:
            raise KafkaError(
                ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed"
            )
    elif level not in LEVELS:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def set_level(name: str, level: str | None) -> None:
    """Set the level of a logger; :func:`check_level` must have accepted it. With None, the logger gets the
    level of its parent."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _is_logger(found: object) -> bool:
    """Whether ``found`` is a logger: :mod:`logging` also has placeholders, for prefixes of loggers' names."""
    return isinstance(found, logging.Logger)


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level_of(logger: logging.Logger) -> str:
    """Return the logger's effective level, as the nearest of Kafka's levels that is not above it."""
    level = logger.getEffectiveLevel()
    return next((name for name, number in LEVELS.items() if number <= level), "TRACE")
