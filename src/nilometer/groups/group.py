"""What a shard asks of any group, whichever protocol its members speak.

Two classes answer: ``ClassicGroup`` and ``ConsumerGroup``. Verdicts are error codes; ``ErrorCode.none`` lets
the request pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import ListedGroup, OffsetCommit, OffsetFetch
from nilometer.wire.errors import ErrorCode


class GroupType(Enum):
    """By the name that ListGroups gives it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class RetentionStart:
    """Since when the retention of a group's offsets is counted."""

    wall_ms: int | None
    """None: each offset since its own commit."""


SINCE_COMMIT = RetentionStart(None)


class Group(Protocol):
    @property
    def group_id(self) -> str: ...

    @property
    def type(self) -> GroupType: ...

    @property
    def is_empty(self) -> bool:
        """No members: the group may be deleted, or turned into one of the other protocol."""
        ...

    def check_offset_commit(self, request: OffsetCommit) -> ErrorCode:
        """Is the sender a member of this generation, or allowed to commit without being one?"""
        ...

    def check_offset_fetch(self, request: OffsetFetch) -> ErrorCode: ...

    def check_offset_delete(self) -> ErrorCode: ...

    def check_delete(self) -> ErrorCode: ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Offsets of such a topic neither expire nor may be deleted. True if that cannot be ruled out."""
        ...

    def retention_start(self) -> RetentionStart | None:
        """None: as the group is now, no offset of it expires."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """For everything that records keep of the group, its offsets apart."""
        ...

    def listed(self) -> ListedGroup: ...
