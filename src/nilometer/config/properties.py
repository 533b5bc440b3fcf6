"""Properties files, as Kafka's."""

from __future__ import annotations

from nilometer.config.definition import ConfigError


def parse_properties(text: str, origin: str) -> dict[str, str]:
    """Return the ``key=value`` lines of a properties file. Raises ConfigError, naming file and line."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            # Without the line itself: it may be a part of a private key or of a password.
            raise ConfigError(f"line {number}", f"{origin}, line {number}: not of the form key=value")
        values[key.strip()] = value.strip()
    return values
