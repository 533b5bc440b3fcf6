"""The settings of groups."""

from __future__ import annotations

import pytest

from nilometer.groups.settings import ConsumerGroupMigrationPolicy, GroupConfig


# ── settings ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("settings_", "error"),
    [
        (
            {"group_min_session_timeout_ms": 10, "group_max_session_timeout_ms": 9},
            "group.min.session.timeout",
        ),
        ({"group_consumer_session_timeout_ms": 44_999}, "group.consumer.min.session.timeout"),
        ({"group_consumer_session_timeout_ms": 60_001}, "group.consumer.max.session.timeout"),
        ({"group_consumer_heartbeat_interval_ms": 4_999}, "group.consumer.min.heartbeat.interval"),
        ({"group_consumer_assignors": ()}, "group.consumer.assignors"),
        (
            {
                "group_consumer_max_heartbeat_interval_ms": 50_000,
                "group_consumer_heartbeat_interval_ms": 45_000,
            },
            "heartbeat.interval.ms must be below",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings_: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        GroupConfig(**settings_)  # type: ignore[arg-type]


def test_the_migration_policy_says_which_way_is_open() -> None:
    ways = {each: (each.allows_upgrade, each.allows_downgrade) for each in ConsumerGroupMigrationPolicy}
    assert list(ways.values()) == [(False, False), (False, True), (True, False), (True, True)]
