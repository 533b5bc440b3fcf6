"""The settings of a topic or a broker, with their sources and defaults. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nilometer.client.admin.admin import ConfigEntry, ConfigSource

_SOURCES = {
    ConfigSource.UNKNOWN: "unknown",
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker, dynamic",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, dynamic",
    ConfigSource.STATIC_BROKER_CONFIG: "broker's file",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG: "logger",
    ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG: "client metrics",
    ConfigSource.DYNAMIC_GROUP_CONFIG: "group",
}


class ConfigRow(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    """None: sensitive, or not set."""
    source: str
    is_default: bool
    default: str | None
    """The value without it; None if that is not known or the value is the default."""
    read_only: bool
    sensitive: bool
    documentation: str | None


def config_rows(entries: Mapping[str, ConfigEntry]) -> tuple[ConfigRow, ...]:
    """Return the settings: first those that differ from their defaults, each part by name."""
    rows = [_row(entry) for entry in entries.values()]
    return tuple(sorted(rows, key=lambda row: (row.is_default, row.name)))


def _row(entry: ConfigEntry) -> ConfigRow:
    is_default = entry.source is ConfigSource.DEFAULT_CONFIG
    defaults = [one.value for one in entry.synonyms if one.source is ConfigSource.DEFAULT_CONFIG]
    return ConfigRow(
        entry.name,
        None if entry.sensitive else entry.value,
        _SOURCES[entry.source],
        is_default,
        defaults[-1] if defaults and not is_default and not entry.sensitive else None,
        entry.read_only,
        entry.sensitive,
        entry.documentation,
    )
