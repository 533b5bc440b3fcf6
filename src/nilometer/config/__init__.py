"""Typed configuration with Kafka's own keys: definitions, parsing, errors that name the key."""

from nilometer.config.definition import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigKind,
    ConfigRule,
    ResolvedValues,
    Settings,
)
from nilometer.config.key_table import key_table
from nilometer.config.properties import parse_properties

__all__ = [
    "ConfigDefinition",
    "ConfigError",
    "ConfigKey",
    "ConfigKind",
    "ConfigRule",
    "ResolvedValues",
    "Settings",
    "key_table",
    "parse_properties",
]
