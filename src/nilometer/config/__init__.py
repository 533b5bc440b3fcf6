"""Typed configuration in Kafka's own keys: definitions, parsing, refusal by name."""

from nilometer.config.definition import (
    ConfigDefinition,
    ConfigKey,
    ConfigKind,
    ConfigProblem,
    ConfigRule,
    SettledValues,
)
from nilometer.config.settings import Settings

__all__ = [
    "ConfigDefinition",
    "ConfigKey",
    "ConfigKind",
    "ConfigProblem",
    "ConfigRule",
    "Settings",
    "SettledValues",
]
