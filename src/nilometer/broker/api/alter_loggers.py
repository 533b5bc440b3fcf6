"""IncrementalAlterConfigs of BROKER_LOGGER resources (KIP-412): log levels of this broker, while it runs."""

from __future__ import annotations

from collections import Counter

from nilometer.broker.api.audited_changes import audit_own_change
from nilometer.broker.api.config_access import denied_alterations
from nilometer.broker.api.config_changes import Outcomes, respond
from nilometer.broker.api.config_resources import RESOURCE_BROKER_LOGGER
from nilometer.broker.api.log_levels import check_level, set_level
from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.controller.configs import ConfigOperation
from nilometer.cluster.controller.decision import OK, Outcome
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message


def names_loggers(request: Request) -> bool:
    return any(each.resource_type == RESOURCE_BROKER_LOGGER for each in request.body.resources)


def alter_loggers(services: Services, request: Request) -> Reply:
    """Change the log levels of this broker's loggers: of each resource either all, or none if one is invalid.

    Resources of other types get INVALID_REQUEST: the controller alters them, in a separate request.
    """
    outcomes: Outcomes = denied_alterations(services, request)
    for resource in request.body.resources:
        if (resource.resource_type, resource.resource_name) in outcomes:
            continue
        try:
            levels = _levels(services, resource)
            if not request.body.validate_only:
                for name, level in levels.items():
                    set_level(name, level)
                audit_own_change(services, request, levels=levels)
            outcome = OK
        except KafkaError as error:
            outcome = Outcome(error.code, error.message)
        outcomes[resource.resource_type, resource.resource_name] = outcome
    return respond(services, request, outcomes)


def _levels(services: Services, resource: Message) -> dict[str, str | None]:
    """Return the requested levels by logger name; None removes the logger's level.

    Raises KafkaError if one is invalid.
    """
    if resource.resource_type != RESOURCE_BROKER_LOGGER:
        raise KafkaError(
            ErrorCode.invalid_request, "The settings of loggers must be altered in a separate request."
        )
    check_names_this_broker(services, resource.resource_name)
    times = Counter(config.name for config in resource.configs)
    levels: dict[str, str | None] = {}
    for config in resource.configs:
        if times[config.name] > 1:
            raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
        level = _level(config)
        check_level(config.name, level)
        levels[config.name] = level
    return levels


def check_names_this_broker(services: Services, name: str) -> None:
    """Raise KafkaError (INVALID_REQUEST) unless ``name`` is the id of this broker."""
    if not name.removeprefix("-").isdecimal():
        raise KafkaError(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}")
    if int(name) != services.broker_id:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {services.broker_id} but received {name}",
        )


def _level(config: Message) -> str | None:
    match config.config_operation:
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.SET if config.value is not None:
            return str(config.value)
        case ConfigOperation.SET:
            why = f"Null value not supported for : {config.name}"
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            operation = ConfigOperation(config.config_operation).name
            why = f"{operation} operation is not allowed for the BROKER_LOGGER resource"
        case _:
            why = f"There is no config operation {config.config_operation}."
    raise KafkaError(ErrorCode.invalid_request, why)
