"""The settings of one connection, under Kafka's keys, for the producer, consumers and admin that it makes."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.client.admin.admin_keys import ADMIN_CONFIG_DEFINITION
from nilometer.client.consumer.consumer_keys import CONSUMER_CONFIG_DEFINITION
from nilometer.client.producer.producer_keys import PRODUCER_CONFIG_DEFINITION
from nilometer.client.settings.client_settings import ClientSettings, GivenConfig, GivenValue
from nilometer.config import ConfigDefinition, ConfigError
from nilometer.kafka.errors import InvalidSetting

BY_ARGUMENT = {
    "bootstrap.servers": "the first argument of connect()",
    "client.id": "client_id of connect()",
    "group.id": "group of consume()",
    "auto.offset.reset": "start of consume()",
    "enable.auto.commit": "auto_commit of consume()",
    "isolation.level": "read_committed of consume()",
    "transactional.id": "the argument of transaction()",
}
_DEFINITIONS = (PRODUCER_CONFIG_DEFINITION, CONSUMER_CONFIG_DEFINITION, ADMIN_CONFIG_DEFINITION)


class ConnectionSettings:
    def __init__(self, servers: str, client_id: str, given: GivenConfig) -> None:
        """Raises InvalidSetting."""
        for key in given:
            if key in BY_ARGUMENT:
                raise InvalidSetting(f"{key} is {BY_ARGUMENT[key]}")
            if not any(key in definition.keys for definition in _DEFINITIONS):
                raise InvalidSetting(f"there is no setting {key} of a producer, consumer or admin")
        self._given: dict[str, GivenValue] = {**given, "bootstrap.servers": servers, "client.id": client_id}
        try:
            for definition in _DEFINITIONS:
                ClientSettings(definition, self._of(definition))
        except ConfigError as error:
            raise InvalidSetting(str(error)) from None

    def producer(self, own: Mapping[str, GivenValue]) -> GivenConfig:
        return {**self._of(PRODUCER_CONFIG_DEFINITION), **own}

    def consumer(self, own: Mapping[str, GivenValue]) -> GivenConfig:
        return {**self._of(CONSUMER_CONFIG_DEFINITION), **own}

    def admin(self) -> GivenConfig:
        return self._of(ADMIN_CONFIG_DEFINITION)

    def _of(self, definition: ConfigDefinition) -> dict[str, GivenValue]:
        """Return the given settings that this client has; each of them is one of some client."""
        return {key: value for key, value in self._given.items() if key in definition.keys}
