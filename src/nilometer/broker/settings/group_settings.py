"""The group coordinator's settings, as values for ``groups``."""

from __future__ import annotations

from nilometer.broker.settings.group_config_keys import ASSIGNORS
from nilometer.config import ConfigError, Settings
from nilometer.groups.settings import ConsumerGroupMigrationPolicy, GroupConfig

MINUTE_MS = 60_000


def group_config(config: Settings) -> GroupConfig:
    """Return the settings for ``groups``. Raises ConfigError if they contradict each other."""
    integer = config.integer
    assignors = tuple(dict.fromkeys(ASSIGNORS[name] for name in config.strings("group.consumer.assignors")))
    try:
        return GroupConfig(
            group_min_session_timeout_ms=integer("group.min.session.timeout.ms"),
            group_max_session_timeout_ms=integer("group.max.session.timeout.ms"),
            group_initial_rebalance_delay_ms=integer("group.initial.rebalance.delay.ms"),
            group_max_size=integer("group.max.size"),
            offset_metadata_max_bytes=integer("offset.metadata.max.bytes"),
            offsets_retention_ms=integer("offsets.retention.minutes") * MINUTE_MS,
            offsets_retention_check_interval_ms=integer("offsets.retention.check.interval.ms"),
            group_consumer_session_timeout_ms=integer("group.consumer.session.timeout.ms"),
            group_consumer_min_session_timeout_ms=integer("group.consumer.min.session.timeout.ms"),
            group_consumer_max_session_timeout_ms=integer("group.consumer.max.session.timeout.ms"),
            group_consumer_heartbeat_interval_ms=integer("group.consumer.heartbeat.interval.ms"),
            group_consumer_min_heartbeat_interval_ms=integer("group.consumer.min.heartbeat.interval.ms"),
            group_consumer_max_heartbeat_interval_ms=integer("group.consumer.max.heartbeat.interval.ms"),
            group_consumer_max_size=integer("group.consumer.max.size"),
            group_consumer_assignors=assignors,
            group_consumer_migration_policy=ConsumerGroupMigrationPolicy(
                config.string("group.consumer.migration.policy")
            ),
            group_consumer_assignment_interval_ms=integer("group.consumer.assignment.interval.ms"),
            group_consumer_min_assignment_interval_ms=integer("group.consumer.min.assignment.interval.ms"),
            group_consumer_max_assignment_interval_ms=integer("group.consumer.max.assignment.interval.ms"),
        )
    except ValueError as error:
        raise ConfigError(str(error).split(" ", 1)[0], str(error)) from None
