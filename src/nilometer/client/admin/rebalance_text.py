"""Why a group rebalances, as a sentence for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from nilometer.client.admin.group_descriptions import GroupDescription
from nilometer.wire.own_apis import RebalanceState

REBALANCING_STATES = ("PreparingRebalance", "CompletingRebalance")
WITHOUT_MEMBERS = ("Empty", "Dead")
"""All members have left: nothing rebalances, whatever caused the last rebalances."""
WARN_AFTER_REBALANCES = 3
"""The number of rebalances in a row caused by one member from which a warning is printed."""


def rebalance_warning(group: GroupDescription) -> str | None:
    """Return a warning that names the member that causes repeated rebalances, or None (E-43)."""
    last = group.last_rebalance
    if last is None or last.reason is None or group.state in WITHOUT_MEMBERS:
        return None
    if group.state not in REBALANCING_STATES and last.times_in_a_row < WARN_AFTER_REBALANCES:
        return None
    when = datetime.fromtimestamp(last.wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if last.times_in_a_row < WARN_AFTER_REBALANCES:
        return f"Rebalancing since {when} UTC: {last.reason}{_by(last)}."
    return (
        f"Keeps rebalancing: {_culprit(last)} caused the last {last.times_in_a_row} rebalances, "
        f"the latest at {when} UTC: {last.reason}."
    )


def _by(last: RebalanceState) -> str:
    return f" ({_culprit(last)})" if last.member_id else ""


def _culprit(last: RebalanceState) -> str:
    if not last.member_id:
        return "the group itself"
    static = f", instance {last.group_instance_id}" if last.group_instance_id else ""
    return f"member {last.member_id} (client {last.client_id} on {last.client_host}{static})"
