"""Members of a classic group at a broker, brought together as one generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.groups.group_requests import (
    Member,
    wait_for_coordinator,
)


@contextmanager
def members(side: Side, group: str, *names: str, **instances: str) -> Iterator[list[Member]]:
    wait_for_coordinator(side, group)
    found = [Member(side, group, name) for name in names]
    found += [Member(side, group, name, instance) for name, instance in instances.items()]
    yield found
    for member in found:
        member.close()


def stable(*group: Member) -> None:
    """Bring members together as one generation; the first leads."""
    leader, *others = group
    leader.join()
    for number, member in enumerate(others, start=1):
        member.ask_to_join()
        for present in group[:number]:
            eventually(
                lambda present=present: (
                    present.heartbeat_message().error_code == ErrorCode.rebalance_in_progress
                ),
                "the group rebalances",
            )
            present.ask_to_join()
        for present in group[: number + 1]:
            present.hear_joined()
    for member in others:
        member.ask_to_sync()
    leader.sync({member.id: f"of {member.name}".encode() for member in group})
    for member in others:
        member.hear_synced()


def describe(side: Side, version: int, *groups: str, operations: bool = False) -> Plain:
    return side.ask(ApiKey.DESCRIBE_GROUPS, version, groups=groups, include_authorized_operations=operations)
