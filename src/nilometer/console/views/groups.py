"""The list of consumer groups, and the pages of a consumer group and of a share group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from nilometer.client.admin.group_admin import PartitionLag
from nilometer.client.admin.group_descriptions import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    ShareOffset,
    rebalance_warning,
)
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.console.views.lists import Asked, Columns, Page, page_of
from nilometer.console.views.rates import Chart
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import DeliveryRange, RebalanceState, SharePartitionState

# The list of consumer groups and the page of one. Pure.


@dataclass(frozen=True, slots=True)
class GroupRow:
    group_id: str
    group_type: str
    state: str
    members: int | None = None
    """None of a group that this user may not describe."""
    topics: tuple[str, ...] = ()
    """Those of its committed offsets and of its members' assignments."""
    lag: int | None = None
    """Behind the high watermarks; None if nothing is committed, or no end is known."""
    lags: Mapping[str, int] = field(default_factory=dict[str, int])
    """By topic, without those whose ends are not known."""


LISTED: Columns[GroupListing] = {"state": lambda one: one.state, "protocol": lambda one: one.group_type}
"""What the list of groups tells without a look at each."""
COLUMNS: Columns[GroupRow] = {
    "members": lambda row: row.members,
    "lag": lambda row: row.lag,
    "topics": lambda row: len(row.topics),
}


class GroupsView(msgspec.Struct, frozen=True):
    page: Page[GroupRow]
    note: str | None = None
    """Why the list is not sorted as asked."""


class MemberView(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int | None
    assignment: tuple[str, ...]
    awaited: tuple[str, ...]
    """Partitions of its target assignment that it does not have yet (consumer protocol)."""
    to_revoke: tuple[str, ...]
    """Partitions that it has and that belong to another member in the target assignment."""


class LagRow(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    committed: int | None
    log_start_offset: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    lag: int | None
    """Behind the high watermark."""
    stable_lag: int | None
    """Behind the last stable offset: what a reader of committed records has left."""
    member: str | None
    metadata: str


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    group_type: str
    state: str
    assignor: str
    coordinator_id: int
    epoch: int | None
    assignment_epoch: int | None
    warning: str | None
    """What keeps a rebalance, or who causes rebalance after rebalance."""
    rebalance: str | None
    """The last rebalance: when, why, by which member."""
    members: tuple[MemberView, ...]
    offsets: tuple[LagRow, ...]
    lag: int | None
    """The sum over the partitions whose lag is known; None if none is."""
    stable_lag: int | None
    unknown: int
    """Partitions whose lag is not known: nothing committed, or no leader."""
    chart: Chart | None = None
    """The lag of the last minutes."""


def groups_page(groups: Sequence[GroupListing], asked: Asked) -> Page[GroupListing]:
    return page_of(groups, lambda group: group.group_id, asked, LISTED)


def group_rows(
    listed: Iterable[GroupListing],
    described: Mapping[str, GroupDescription | KafkaError],
    committed: Mapping[str, Iterable[TopicPartition]],
    lags: Mapping[str, Mapping[str, int]],
) -> tuple[GroupRow, ...]:
    """Return a row of each group; of one that could not be described only what the list says."""
    return tuple(
        _group_row(
            one, described.get(one.group_id), committed.get(one.group_id, ()), lags.get(one.group_id, {})
        )
        for one in listed
    )


def _group_row(
    listing: GroupListing,
    found: GroupDescription | KafkaError | None,
    committed: Iterable[TopicPartition],
    lags: Mapping[str, int],
) -> GroupRow:
    group_id, group_type = listing.group_id, listing.group_type
    if not isinstance(found, GroupDescription):
        return GroupRow(group_id, group_type, listing.state)
    assigned = [partition for member in found.members for partition in member.assignment]
    topics = tuple(sorted({partition.topic for partition in (*assigned, *committed)}))
    lag = sum(lags.values()) if lags else None
    return GroupRow(group_id, group_type, found.state, len(found.members), topics, lag, lags)


def group_view(group: GroupDescription, lags: Sequence[PartitionLag]) -> GroupView:
    return GroupView(
        group_id=group.group_id,
        group_type=group.group_type,
        state=group.state,
        assignor=group.assignor,
        coordinator_id=group.coordinator_id,
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        warning=rebalance_warning(group) or _converging(group),
        rebalance=_rebalance(group.last_rebalance),
        members=tuple(_member(one) for one in group.members),
        offsets=tuple(_lag(group, one) for one in lags),
        lag=_total([one.lag for one in lags]),
        stable_lag=_total([one.stable_lag for one in lags]),
        unknown=sum(one.lag is None for one in lags),
    )


def _converging(group: GroupDescription) -> str | None:
    """Return which members a group of the consumer protocol waits for; None if there are none."""
    behind = [
        one for one in group.members if one.target is not None and set(one.target) != set(one.assignment)
    ]
    if not behind:
        return None
    revoking = [one for one in behind if set(one.assignment) - set(one.target or ())]
    waited = revoking or behind
    names = ", ".join(f"{one.member_id} (client {one.client_id} on {one.host})" for one in waited[:3])
    more = "" if len(waited) <= 3 else f" and {len(waited) - 3} more"
    what = "give up partitions of their old assignment" if revoking else "take their new partitions"
    return f"Rebalancing: the group waits until these members {what}: {names}{more}."


def _rebalance(last: RebalanceState | None) -> str | None:
    if last is None or last.reason is None:
        return None
    when = datetime.fromtimestamp(last.wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    by = (
        f", by member {last.member_id} (client {last.client_id} on {last.client_host})"
        if last.member_id
        else ""
    )
    return f"{when} UTC, after generation {last.generation}: {last.reason}{by}"


def _member(one: MemberDescription) -> MemberView:
    here, target = set(one.assignment), set(one.assignment if one.target is None else one.target)
    return MemberView(
        one.member_id,
        one.instance_id,
        one.client_id,
        one.host,
        one.epoch,
        _named(one.assignment),
        _named(sorted(target - here)),
        _named(sorted(here - target)),
    )


def _named(partitions: Sequence[TopicPartition]) -> tuple[str, ...]:
    return tuple(map(str, partitions))


def _lag(group: GroupDescription, one: PartitionLag) -> LagRow:
    owner = group.owner(one.partition)
    return LagRow(
        one.partition.topic,
        one.partition.partition,
        one.committed,
        one.log_start_offset,
        one.last_stable_offset,
        one.high_watermark,
        one.lag,
        one.stable_lag,
        None if owner is None else owner.member_id,
        one.metadata,
    )


def _total(lags: Sequence[int | None]) -> int | None:
    known = [one for one in lags if one is not None]
    return sum(known) if known else None


# The page of a share group: which member has locked what, what was delivered how often, and what holds the
# start offset of each partition. Pure.

RANGES_MAX = 300
"""Rows of the table of deliveries."""
IN_FLIGHT = ("available", "acquired", "archiving")
"""The states of records that are not done with."""
NOT_NILOMETER = "The leader does not run Nilometer, so that its locks cannot be shown."


class ShareMemberView(msgspec.Struct, frozen=True):
    member_id: str
    client_id: str
    host: str
    epoch: int | None
    assignment: tuple[str, ...]
    locks: int
    """How many records it holds."""


class SharePartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    start_offset: int | None
    end_offset: int | None = None
    """The first offset that was never delivered."""
    high_watermark: int | None = None
    lag: int | None = None
    available: int | None = None
    """Delivered before, or passed over, and waiting for a member."""
    acquired: int | None = None
    archiving: int | None = None
    members: tuple[str, ...] = ()
    blocked_by: str
    """What holds the start offset, or why that is not known."""
    is_blocked: bool = False


class DeliveryRow(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    state: str
    deliveries: int
    member_id: str | None
    lock_left_s: int | None


class ShareSettingsView(msgspec.Struct, frozen=True):
    deliveries_max: int
    lock_s: int
    dead_letter_topic: str
    """Empty: none."""


class ShareGroupView(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    group_type: str
    state: str
    assignor: str
    coordinator_id: int
    epoch: int | None
    assignment_epoch: int | None
    settings: ShareSettingsView | None
    """None if the user may not see them."""
    members: tuple[ShareMemberView, ...]
    partitions: tuple[SharePartitionRow, ...]
    deliveries: tuple[DeliveryRow, ...]
    has_more_deliveries: bool
    lag: int | None
    """The sum over the partitions whose lag is known; None if none is."""
    locks: int
    unknown: int
    """Partitions whose lag is not known."""
    chart: Chart | None = None
    """The lag of the last minutes."""


def share_group_view(
    group: GroupDescription,
    offsets: Mapping[TopicPartition, ShareOffset],
    states: Mapping[TopicPartition, SharePartitionState | KafkaError],
    settings: ShareSettingsView | None,
) -> ShareGroupView:
    """``offsets``: as the coordinator knows them; ``states``: as the partitions' leaders do."""
    places = sorted({*offsets, *states})
    rows = tuple(_partition(group, one, offsets.get(one), states.get(one)) for one in places)
    known = [state for state in states.values() if isinstance(state, SharePartitionState)]
    locks: dict[str, int] = {}
    for state in known:
        for one in state.held:
            locks[one.member_id] = locks.get(one.member_id, 0) + one.records
    deliveries = [
        _delivery(state, one)
        for state in sorted(known, key=lambda state: (state.topic, state.partition))
        for one in state.ranges
        if one.state in IN_FLIGHT
    ]
    lags = [row.lag for row in rows if row.lag is not None]
    return ShareGroupView(
        group_id=group.group_id,
        group_type=group.group_type,
        state=group.state,
        assignor=group.assignor,
        coordinator_id=group.coordinator_id,
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        settings=settings,
        members=tuple(
            ShareMemberView(
                one.member_id,
                one.client_id,
                one.host,
                one.epoch,
                tuple(map(str, one.assignment)),
                locks.get(one.member_id, 0),
            )
            for one in group.members
        ),
        partitions=rows,
        deliveries=tuple(deliveries[:RANGES_MAX]),
        has_more_deliveries=len(deliveries) > RANGES_MAX or any(state.has_more_ranges for state in known),
        lag=sum(lags) if lags else None,
        locks=sum(state.acquired for state in known),
        unknown=len(rows) - len(lags),
    )


def _partition(
    group: GroupDescription,
    place: TopicPartition,
    offset: ShareOffset | None,
    state: SharePartitionState | KafkaError | None,
) -> SharePartitionRow:
    members = tuple(member.member_id for member in group.owners(place))
    if isinstance(state, SharePartitionState) and state.is_loaded:
        return SharePartitionRow(
            topic=place.topic,
            partition=place.partition,
            start_offset=state.start_offset,
            end_offset=state.end_offset,
            high_watermark=state.high_watermark,
            lag=state.lag,
            available=state.available,
            acquired=state.acquired,
            archiving=state.archiving,
            members=members,
            blocked_by=_blocked_by(state),
            is_blocked=state.start_offset < state.end_offset,
        )
    why = "No member fetches it."
    if isinstance(state, KafkaError):
        is_other = state.code is ErrorCode.unsupported_version
        why = NOT_NILOMETER if is_other else f"Not known: {state}"
    return SharePartitionRow(
        topic=place.topic,
        partition=place.partition,
        start_offset=None if offset is None else offset.start_offset,
        lag=None if offset is None else offset.lag,
        members=members,
        blocked_by=why,
    )


def _blocked_by(state: SharePartitionState) -> str:
    """Say why the start offset is where it is."""
    if state.start_offset == state.end_offset:
        waiting = state.high_watermark - state.end_offset
        if waiting <= 0:
            return "Nothing: each record is acknowledged or archived."
        return f"Nothing: the next records have not been delivered yet ({waiting:,})."
    if not state.ranges:
        return f"Offset {state.start_offset:,}."
    first = state.ranges[0]
    times = "once" if first.delivery_count == 1 else f"{first.delivery_count} times"
    begin = f"Offset {first.first_offset:,}"
    if first.state == "acquired":
        return f"{begin}: locked by {first.member_id} for another {_seconds(first)} s, delivered {times}."
    if first.state == "archiving":
        return f"{begin}: its dead letter is being written. It was delivered {times}."
    delivered = f"delivered {times} before" if first.delivery_count else "not delivered yet"
    return f"{begin}: it waits for a member, {delivered}."


def _seconds(one: DeliveryRange) -> int:
    return max(0, -(-(one.lock_left_ms or 0) // 1000))


def _delivery(state: SharePartitionState, one: DeliveryRange) -> DeliveryRow:
    return DeliveryRow(
        state.topic,
        state.partition,
        one.first_offset,
        one.last_offset,
        one.state,
        one.delivery_count,
        one.member_id,
        None if one.lock_left_ms is None else _seconds(one),
    )


def settings_of(texts: Mapping[str, str | None]) -> ShareSettingsView | None:
    """Return what the page says of a group's settings, by their names; None if one is missing."""
    limit, lock_ms = texts.get("share.delivery.count.limit"), texts.get("share.record.lock.duration.ms")
    if limit is None or lock_ms is None:
        return None
    return ShareSettingsView(
        int(limit), int(lock_ms) // 1000, texts.get("errors.deadletterqueue.topic.name") or ""
    )


def lag_by_topic(offsets: Sequence[ShareOffset]) -> dict[str, int]:
    """Return the sum of the known lags of each topic."""
    sums: dict[str, int] = {}
    for one in offsets:
        if one.lag is not None:
            sums[one.partition.topic] = sums.get(one.partition.topic, 0) + one.lag
    return sums
