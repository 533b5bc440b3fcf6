"""Raises a consumer group's epoch and computes target assignments.

Records are written through a draft, which applies each of them to the group at once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from nilometer.client_patterns import LIGHT, compile_effort
from nilometer.groups import group_with_epochs
from nilometer.groups.consumer.assignors import Assignor, MemberSpec, assign_ranges, assign_uniformly
from nilometer.groups.consumer.group import ConsumerGroup, Member, ResolvedRegex, topics_count, topics_of
from nilometer.groups.group_with_epochs import RecordTypes
from nilometer.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.topics import (
    NO_PARTITIONS,
    Assignment,
    Topics,
    match_weight,
    matches,
    matching_topics,
    topic_partitions,
)
from nilometer.groups.turn import (
    AssignmentNeeded,
    MatchesNeeded,
    RebalanceNote,
    UnwrittenTarget,
    partition_count,
    write_on,
)


class Draft(group_with_epochs.Draft[ConsumerGroup]):
    __slots__ = ()
    types = RecordTypes(
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
    )

    def target(self, member_id: str, assignment: Assignment) -> None:
        self._write(
            ConsumerGroupTargetAssignmentMemberKey(self.group.group_id, member_id),
            ConsumerGroupTargetAssignmentMemberValue(topic_partitions(assignment)),
        )

    def group_epoch(self, epoch: int, metadata_hash: int) -> None:
        self._write(
            ConsumerGroupMetadataKey(self.group.group_id), ConsumerGroupMetadataValue(epoch, metadata_hash)
        )
        if self.group.has_partition_metadata:
            self._write(ConsumerGroupPartitionMetadataKey(self.group.group_id), None)

    def regex(self, regex: str, topics: frozenset[str], version: int) -> None:
        self._write(
            ConsumerGroupRegularExpressionKey(self.group.group_id, regex),
            ConsumerGroupRegularExpressionValue(tuple(sorted(topics)), version, self.turn.wall_ms),
        )

    def remove_regex(self, regex: str) -> None:
        self._write(ConsumerGroupRegularExpressionKey(self.group.group_id, regex), None)


AT_ONCE_MAX: Final = 1_000
"""An assignment of more members and partitions together is computed outside of the shard."""
NAMED_AT_ONCE_MAX: Final = 10_000
"""And one of members that subscribe to more topics, all that they name counted."""

EFFORT_AT_ONCE: Final = 2_000
"""So much (:func:`compile_effort`) of a group's expressions is compiled in a turn of the shard."""
MATCHED_TOGETHER: Final = 64
"""So many expressions are matched by one computation, and their results written in one turn."""

MATCHED_MAX: Final = 100_000
"""So many topics match all expressions of a group, if it has several: they are walked in one turn. An
expression for whose result there is no room keeps its last one."""

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}


def resolve_regexes(draft: Draft, topics: Topics) -> None:
    """Match the regular expressions of all members against the topic names, and write changed results.

    Expressions without a subscriber are removed. Names that were matched before are not matched again. What
    takes long is matched outside of the shard; until then the expression has its last result, or none.
    """
    group = draft.group
    subscribed = group.subscribed_regexes()
    if not subscribed and not group.regexes:
        return
    for regex in sorted(group.regexes.keys() - subscribed):
        draft.remove_regex(regex)
    names, seen = topics.names(), group.topic_names_seen
    new = names - seen if seen is not None else names
    due: list[_Due] = []
    for regex in sorted(subscribed - group.matching):
        before = group.regexes.get(regex)
        if before is None or seen is None:
            due.append(_Due(regex, frozenset(), names))
        elif names is not seen:
            due.append(_Due(regex, before.topics & names, new))
    _match(draft, topics, due)
    group.topic_names_seen = names


class _Due(NamedTuple):
    """An expression that is to be matched."""

    regex: str
    kept: frozenset[str]
    """Names that are known to match."""
    new: frozenset[str]
    """The names that are to be matched."""


def _match(draft: Draft, topics: Topics, due: Sequence[_Due]) -> None:
    """Match the new names, and write what matches, or have them matched: what takes long, and what is left
    when all together would."""
    group, effort, load = draft.group, 0, 0
    later: list[tuple[_Due, int]] = []
    characters = {new: sum(len(name) + 1 for name in new) for new in {one.new for one in due}}
    for one in due:
        effort += compile_effort(one.regex)
        mine = compile_effort(one.regex) * characters[one.new]
        if effort <= EFFORT_AT_ONCE or len(due) == 1:
            mine = match_weight(one.regex, one.new)
            load += mine
            if load <= LIGHT:
                _write_match(draft, topics, one.regex, one.kept | matching_topics(one.regex, one.new))
                continue
        later.append((one, mine))
    for first in range(0, len(later), MATCHED_TOGETHER):
        some = later[first : first + MATCHED_TOGETHER]
        kept = {one.regex: one.kept for one, _ in some}
        group.matching.update(kept)
        compute = functools.partial(matches, {one.regex: one.new for one, _ in some})
        weight = sum(mine for _, mine in some)
        draft.turn.act(MatchesNeeded(group.group_id, kept, topics.names(), compute, weight))


def _write_match(draft: Draft, topics: Topics, regex: str, matched: frozenset[str]) -> None:
    group, before = draft.group, draft.group.regexes.get(regex)
    had = frozenset[str]() if before is None else before.topics
    others = group.matched_count - len(had)
    if others and others + len(matched) > MATCHED_MAX:
        matched &= had  # what is new finds no room
    if before is None or had != matched:
        draft.regex(regex, matched, topics.metadata_version)


def write_matches(
    draft: Draft, topics: Topics, needed: MatchesNeeded, matched: Mapping[str, frozenset[str]]
) -> None:
    """Write which topics match some expressions, and raise the group epoch if a result is another.

    Topics that were created meanwhile are matched now.
    """
    group = draft.group
    group.matching.difference_update(needed.kept)
    subscribed, before = group.subscribed_regexes(), dict(group.regexes)
    names = topics.names()
    new = names - needed.names
    due: list[_Due] = []
    for regex in needed.kept:
        if regex in subscribed:
            known = (needed.kept[regex] | matched[regex]) & names
            _write_match(draft, topics, regex, known)
            if new:
                due.append(_Due(regex, known, new))
    _match(draft, topics, due)
    changed = any(group.regexes.get(regex) is not before.get(regex) for regex in needed.kept)
    _raise_epoch(draft, topics, subscription_changed=changed, cause="a regular expression was matched")


def refresh(draft: Draft, topics: Topics, *, subscription_changed: bool, cause: str) -> None:
    """Raise the group epoch if a subscription or the subscribed topics changed.

    ``cause``: why a subscription changed, for the log.
    """
    group = draft.group
    if not subscription_changed and group.metadata_version_seen == topics.version:
        return
    resolve_regexes(draft, topics)
    _raise_epoch(draft, topics, subscription_changed=subscription_changed, cause=cause)
    group.metadata_version_seen = topics.version


def _raise_epoch(draft: Draft, topics: Topics, *, subscription_changed: bool, cause: str) -> None:
    group = draft.group
    metadata_hash = topics.hash_of(group.subscribed_topics(topics.names()))
    if subscription_changed or metadata_hash != group.metadata_hash:
        draft.group_epoch(group.group_epoch + 1, metadata_hash)
        why = cause if subscription_changed else "the subscribed topics changed"
        draft.turn.act(RebalanceNote(group.group_id, group.group_epoch, why))


def subscription_cause(member: Member) -> str:
    """Return the cause of a group epoch that ``member`` raises, as the log has it."""
    instance = f" (instance {member.instance_id})" if member.instance_id is not None else ""
    client = f"client {member.client_id!r} at {member.client_host}"
    return f"a member joined or changed its subscription: member {member.member_id}{instance}, {client}"


class AssigningGroup(Protocol):
    """What the kinds of groups have in common whose coordinator assigns."""

    group_epoch: int
    assignment_epoch: int
    assignment_timestamp: int
    assigning_epoch: int | None

    @property
    def target(self) -> Mapping[str, object]: ...

    @property
    def is_empty(self) -> bool: ...


def assignment_delay_ms(group: AssigningGroup, interval_ms: int, wall_ms: int) -> int | None:
    """Return how long (ms) the next target assignment has to wait, ``interval_ms`` after the last one.

    None if none is needed, or one is being computed.
    """
    if group.is_empty or group.group_epoch <= group.assignment_epoch or group.assigning_epoch is not None:
        return None
    since = wall_ms - group.assignment_timestamp
    if since < 0 or not any(group.target.values()):
        return 0  # no member has an assignment yet, or the clock was set back
    return max(0, interval_ms - since)


def assign_if_due(draft: Draft, topics: Topics, config: GroupConfig) -> None:
    """Compute a target assignment for the group epoch and write it, or have it computed."""
    group, interval_ms = draft.group, config.group_consumer_assignment_interval_ms
    if assignment_delay_ms(group, interval_ms, draft.turn.wall_ms) != 0:
        return
    assignor = group.preferred_assignor()
    if assignor is None or assignor not in ASSIGNORS:
        assignor = config.group_consumer_assignors[0]
    names = group.subscribed_topics(topics.names())
    counts = topics.partition_counts(names)
    ids = topics.ids_by_name(names)
    members, regexes = dict(group.members), dict(group.regexes)
    compute = functools.partial(
        _assign, ASSIGNORS[assignor], members, regexes, dict(group.target), ids, counts
    )
    size = len(members) + sum(counts.values())
    named = sum(topics_count(member, regexes) for member in members.values())
    if size <= AT_ONCE_MAX and named <= NAMED_AT_ONCE_MAX:
        write_target(draft, group.group_epoch, compute())
    else:
        group.assigning_epoch = group.group_epoch
        draft.turn.act(AssignmentNeeded(group.group_id, group.group_epoch, compute, size + named))


def _assign(
    assignor: Assignor,
    members: Mapping[str, Member],
    regexes: Mapping[str, ResolvedRegex],
    target: Mapping[str, Assignment],
    ids: Mapping[str, UUID],
    counts: Mapping[UUID, int],
) -> dict[str, Assignment]:
    """Return each member's assignment. ``target``: the last ones."""
    wanted = ((each.member_id, topics_of(each, regexes), each.instance_id) for each in members.values())
    return assignor(member_specs(wanted, target, ids), counts)


def member_specs(
    members: Iterable[tuple[str, frozenset[str], str | None]],
    target: Mapping[str, Assignment],
    ids: Mapping[str, UUID],
) -> dict[str, MemberSpec]:
    """Return what an assignor takes. ``members``: the id of each, what it subscribes to, and its instance
    id; ``target``: the last assignments; ``ids``: those of the topics that exist, by name."""
    alike: dict[frozenset[str], frozenset[UUID]] = {}
    specs: dict[str, MemberSpec] = {}
    for member_id, names, instance_id in members:
        subscribed = alike.get(names)
        if subscribed is None:
            subscribed = alike[names] = frozenset(ids[name] for name in names & ids.keys())
        specs[member_id] = MemberSpec(subscribed, target.get(member_id, NO_PARTITIONS), instance_id)
    return specs


def write_target(draft: Draft, epoch: int, assigned: Mapping[str, Assignment]) -> None:
    """Write the assignment that was computed for ``epoch``, or begin to; unchanged members get no record."""
    draft.group.assigning_epoch, draft.group.unwritten = (
        epoch,
        UnwrittenTarget(epoch, assigned, partition_count),
    )
    write_on(draft)
