"""Typed configuration in Kafka's own keys: definitions, parsing, refusal by name."""

from nilometer.config.definition import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigKind,
    ConfigRule,
    ResolvedValues,
)
from nilometer.config.settings import Settings

__all__ = [
    "ConfigDefinition",
    "ConfigError",
    "ConfigKey",
    "ConfigKind",
    "ConfigRule",
    "ResolvedValues",
    "Settings",
]
