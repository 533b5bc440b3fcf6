"""The configuration keys of an admin client; any other key is rejected."""

from __future__ import annotations

from nilometer.client.settings.common_keys import API_TIMEOUT, COMMON_KEYS
from nilometer.config import ConfigDefinition, ConfigKey

ADMIN_KEYS: tuple[ConfigKey, ...] = (*COMMON_KEYS, API_TIMEOUT)

ADMIN_CONFIG_DEFINITION = ConfigDefinition.of("admin", ADMIN_KEYS)
