"""The list of consumer groups and the page of one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from nilometer.client.admin.group_admin import GroupDescription, GroupListing, MemberDescription, PartitionLag
from nilometer.client.admin.rebalance_text import rebalance_warning
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.console.views.chart import Chart
from nilometer.console.views.paging import Asked, Columns, Page, page_of
from nilometer.wire.errors import KafkaError
from nilometer.wire.own_apis import RebalanceState


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
