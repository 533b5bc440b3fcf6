"""The interface of a group, whichever protocol its members use.

``ClassicGroup`` and ``ConsumerGroup`` implement it. The ``check_*`` methods return an error code;
``ErrorCode.none`` accepts the request.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import ListedGroup, OffsetCommit, OffsetFetch
from nilometer.wire.errors import ErrorCode


class GroupType(Enum):
    """The type of a group, with its name in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class RetentionStart(msgspec.Struct, frozen=True):
    """The time from which the retention of a group's offsets is counted."""

    wall_ms: int | None
    """Since the epoch; None: for each offset, the time of its commit."""


SINCE_COMMIT = RetentionStart(None)


class Group(Protocol):
    @property
    def group_id(self) -> str: ...

    @property
    def type(self) -> GroupType: ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members: it may be deleted, or replaced by one of the other protocol."""
        ...

    def check_offset_commit(self, request: OffsetCommit) -> ErrorCode:
        """Check that the sender is a member of this generation, or may commit without being one."""
        ...

    def check_offset_fetch(self, request: OffsetFetch) -> ErrorCode: ...

    def check_offset_delete(self) -> ErrorCode: ...

    def check_delete(self) -> ErrorCode: ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member is subscribed to ``topic``, or may be: its offsets neither expire nor may be
        deleted."""
        ...

    def retention_start(self) -> RetentionStart | None:
        """Return from when the retention of offsets is counted; None if none may expire in this state."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the tombstones of all records of the group, except its offsets."""
        ...

    def listed(self) -> ListedGroup: ...

    def metadata_bytes(self) -> int:
        """Return how much memory is taken by what the members have sent of themselves, about."""
        ...
