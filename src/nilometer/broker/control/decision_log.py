"""The log lines of what this broker decided as controller: written when the entry is folded and counts.

Only the controller that decided an entry knows why, so only that broker writes its lines; an entry that was
appended with an unknown outcome gets them when it appears. Changes of the ISR that a leader requested are
written by that leader, which knows why (:mod:`nilometer.broker.replicas.isr_changes`); here they are at
DEBUG.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nilometer.broker.decision_lines import PartitionDecision, log_decision, log_partition_decisions
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.config import is_sensitive
from nilometer.cluster.delta import BrokerTransition, ImageDelta
from nilometer.cluster.entries import Entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType, Election, PartitionChanged
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import BrokerId, TopicIdPartition
from nilometer.wire.api_keys import AnyApiKey

logger = logging.getLogger("nilometer.broker.controller")

ENTRIES_MAX = 16
"""How many entries of unknown outcome are remembered with their causes."""
_HIDDEN = "(hidden)"
_RULES = {
    Election.IN_SYNC: "in sync",
    Election.ELIGIBLE: "an eligible leader replica",
    Election.LAST_KNOWN: "the last known leader: no replica was safe",
    Election.UNCLEAN: "an unclean election: records may be lost",
}


class Cause(NamedTuple):
    """Why a decision was made: the end of a sentence after "because"."""

    text: str
    is_isr_request: bool = False
    """Whether a leader requested the ISR, and writes the line about it."""


class _Expected(NamedTuple):
    data: bytes
    entry: Entry
    cause: Cause


class DecisionLog:
    def __init__(self) -> None:
        self._expected: deque[_Expected] = deque(maxlen=ENTRIES_MAX)

    def expect(self, data: bytes, entry: Entry, cause: Cause) -> None:
        """Note that this broker appends ``entry``, encoded as ``data``, for this cause."""
        if all(one.data != data for one in self._expected):  # it may be appended again, under another number
            self._expected.append(_Expected(data, entry, cause))

    def on_folded(self, data: bytes | None, delta: ImageDelta, image: ClusterImage) -> None:
        """Write the lines of an entry, if this broker appended it and it counts."""
        found = next((one for one in self._expected if one.data == data), None)
        if found is None:
            return
        self._expected.remove(found)
        if delta.accepted:
            _log_entry(found.entry, found.cause, delta, image)


def _log_entry(entry: Entry, cause: Cause, delta: ImageDelta, image: ClusterImage) -> None:
    if delta.controller_changed:
        epoch = image.controller_epoch
        sentence = f"This broker is the controller, in epoch {epoch}"
        log_decision(logger, "controller-became", sentence, cause.text, {"controller_epoch": epoch})
    for broker_id, transition in delta.brokers.items():
        _log_broker(broker_id, transition, cause)
    for topic in delta.topics_created.values():
        count, replicas = len(topic.partitions), len(topic.partitions[0].replicas) if topic.partitions else 0
        sentence = f"Topic {topic.name} is created with {count} partitions, {replicas} replicas each"
        fields = {"topic": topic.name, "partitions": count, "replicas": replicas}
        log_decision(logger, "topic-created", sentence, cause.text, fields)
    for topic in delta.topics_deleted.values():
        fields = {"topic": topic.name, "partitions": len(topic.partitions)}
        log_decision(logger, "topic-deleted", f"Topic {topic.name} is deleted", cause.text, fields)
    log_partition_decisions(logger, list(_partitions(entry, cause, delta, image)))
    _log_settings(delta, cause)


def _log_broker(broker_id: BrokerId, transition: BrokerTransition, cause: Cause) -> None:
    before, after = transition
    fields: dict[str, object] = {"broker": broker_id}
    if after is None:
        event, sentence = "broker-unregistered", f"Broker {broker_id} is unregistered"
    elif before is None or before.epoch != after.epoch:
        event = "broker-registered"
        sentence = f"Broker {broker_id} is registered in broker epoch {after.epoch}"
        fields["broker_epoch"] = after.epoch
    elif after.fenced and not before.fenced:
        event, sentence = "broker-fenced", f"Broker {broker_id} is fenced"
    elif after.in_controlled_shutdown and not before.in_controlled_shutdown:
        event, sentence = "broker-shutdown", f"Broker {broker_id} is in controlled shutdown"
    else:
        return
    log_decision(logger, event, sentence, cause.text, fields)


def _log_settings(delta: ImageDelta, cause: Cause) -> None:
    for resource, settings in delta.configs.items():
        if resource.type is ConfigResourceType.CLUSTER:
            owner = "the cluster"
        else:
            owner = f"{resource.type.value} {resource.name}".strip()
        for key, value in settings.items():
            shown = _HIDDEN if value is not None and is_sensitive(key) else value
            what = f"{key} of {owner} is removed" if value is None else f"{key} of {owner} is now {shown}"
            fields: dict[str, object] = {"resource": owner, "key": key, "value": shown}
            log_decision(logger, "config-changed", f"Setting {what}", cause.text, fields)
    for name, level in delta.features.items():
        sentence = f"Feature {name} is finalized at level {level}"
        log_decision(logger, "feature-changed", sentence, cause.text, {"feature": name, "level": level})
    if delta.acls:
        sentence = f"{delta.acls} ACLs are created or deleted"
        log_decision(logger, "acls-changed", sentence, cause.text, {"acls": delta.acls})
    if delta.scram:
        sentence = f"SCRAM credentials of {delta.scram} users are set or removed"
        log_decision(logger, "credentials-changed", sentence, cause.text, {"credentials": delta.scram})
    if delta.quotas:
        sentence = f"{delta.quotas} quotas of clients are set or removed"
        log_decision(logger, "quotas-changed", sentence, cause.text, {"quotas": delta.quotas})
    if delta.tokens:
        sentence = f"{len(delta.tokens)} delegation tokens are issued, changed or removed"
        log_decision(logger, "tokens-changed", sentence, cause.text, {"tokens": len(delta.tokens)})


# ── partitions ──────────────────────────────────────────────────────────────────────────────────
def _partitions(
    entry: Entry, cause: Cause, delta: ImageDelta, image: ClusterImage
) -> Iterator[PartitionDecision]:
    elections = {
        TopicIdPartition(record.topic_id, record.partition): record.election
        for record in entry.records
        if isinstance(record, PartitionChanged) and record.election is not None
    }
    for key, (before, after) in delta.partitions.items():
        topic = image.topic_by_id(key.topic_id)
        if after is None or topic is None or key.topic_id in delta.topics_created:
            continue  # its topic has a line
        if before is None:
            yield _added(topic.name, key.partition, after, cause)
        else:
            yield _changed(topic.name, key.partition, before, after, cause, elections.get(key))


def _added(topic: str, partition: int, after: PartitionState, cause: Cause) -> PartitionDecision:
    def sentence() -> str:
        return f"Partition {topic}-{partition} is created with replicas {_ids(after.replicas)}"

    fields = {"replicas": list(after.replicas)}
    return PartitionDecision(
        "partition-created", topic, partition, "partitions are created", cause.text, sentence, fields
    )


def _changed(
    topic: str,
    partition: int,
    before: PartitionState,
    after: PartitionState,
    cause: Cause,
    election: Election | None,
) -> PartitionDecision:
    event, summary, level = _kind(before, after, cause, election)

    def sentence() -> str:
        return f"{topic}-{partition}: {', '.join(_changes(before, after, election)) or 'new leader epoch'}"

    fields = {
        "leader": after.leader,
        "leader_epoch": after.leader_epoch,
        "isr": after.isr,
        "former_leader": before.leader,
        "former_isr": before.isr,
    }
    return PartitionDecision(event, topic, partition, summary, cause.text, sentence, fields, level)


def _kind(
    before: PartitionState, after: PartitionState, cause: Cause, election: Election | None
) -> tuple[str, str, int]:
    """Return event, summary and level of a change."""
    if not after.has_leader and before.has_leader:
        return "leader-lost", "partitions have no leader any more", logging.WARNING
    if after.leader != before.leader:
        unclean = election in (Election.UNCLEAN, Election.LAST_KNOWN)
        summary = "leaders are elected uncleanly" if unclean else "leaders are elected"
        return "leader-elected", summary, logging.WARNING if unclean else logging.INFO
    if (before.adding, before.removing) != (after.adding, after.removing):
        return "reassignment", "reassignments change", logging.INFO
    if before.offline != after.offline:
        return "replica-offline", "partitions have other offline replicas", logging.INFO
    level = logging.DEBUG if cause.is_isr_request else logging.INFO
    return "isr-changed", "ISRs change", level


def _changes(before: PartitionState, after: PartitionState, election: Election | None) -> Iterator[str]:
    if after.leader != before.leader:
        if after.has_leader:
            rule = f", {_RULES[election]}" if election is not None else ""
            former = f"before it was {before.leader}" if before.has_leader else "before there was none"
            epoch = after.leader_epoch
            yield f"broker {after.leader} is elected leader in epoch {epoch} ({former}{rule})"
        else:
            yield f"there is no leader any more (it was {before.leader})"
    if set(after.isr) != set(before.isr):
        lost, joined = set(before.isr) - set(after.isr), set(after.isr) - set(before.isr)
        verb = "shrinks" if lost and not joined else "expands" if joined and not lost else "changes"
        yield f"the ISR {verb} from {_ids(before.isr)} to {_ids(after.isr)}"
    if after.is_reassigning and (before.adding, before.removing) != (after.adding, after.removing):
        yield f"its reassignment to {_ids(after.target_replicas)} begins"
    elif before.is_reassigning and not after.is_reassigning:
        completed = set(after.replicas) == set(before.target_replicas)
        yield f"its reassignment {'is complete' if completed else 'is cancelled'}: {_ids(after.replicas)}"
    if before.offline != after.offline:
        were, are = (_ids(state.offline) or "none" for state in (before, after))
        yield f"the offline replicas are {are} (before: {were})"


def _ids(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(map(str, brokers))


# Why the controller decides something: the causes that more than one caller states.

PREFERRED_LEADERS = Cause("the preferred replica is in sync again (auto.leader.rebalance.enable)")
INTERNAL_TOPIC_GROWTH = Cause("the internal topic has fewer replicas than its replication factor")
CLUSTER_DEFAULTS = Cause("the new controller's server.properties has it")
EXPIRED_TOKENS = Cause("they have expired")
REPAIR = Cause("an earlier controller did not complete its decision")


def client_request(key: AnyApiKey, client_id: str | None, context: RequestContext) -> Cause:
    return Cause(f"{client_name(client_id, context)} requested it ({_api_name(key)})")


def auto_creation(client: str) -> Cause:
    return Cause(f"{client} requested its metadata (auto.create.topics.enable)")


def client_name(client_id: str | None, context: RequestContext) -> str:
    """Return a client as log lines name it: client id, address, and principal if it has authenticated."""
    if context.is_broker:
        return f"broker {context.broker_id}"
    address = f"{context.client_address}:{context.client_port}"
    return f"client {client_id or ''!r} at {address} as {context.principal}"


def isr_request(leader: int) -> Cause:
    return Cause(f"broker {leader}, the leader, requested it", is_isr_request=True)


def forfeited_replicas(broker_id: int, *, offline: bool) -> Cause:
    what = "cannot use its replica any more" if offline else "found damage in its replica"
    return Cause(f"broker {broker_id} {what}; its log has the reason")


def shutdown(broker_id: int) -> Cause:
    return Cause(f"broker {broker_id} is stopped in an orderly way")


def producer_ids(broker_id: int) -> Cause:
    return Cause(f"broker {broker_id} needs producer ids")


def internal_topic(broker_id: int) -> Cause:
    return Cause(f"broker {broker_id} needs the internal topic")


def sessions_ended(broker_ids: Sequence[int]) -> Cause:
    if len(broker_ids) == 1:
        return Cause(f"the session of broker {broker_ids[0]} ended")
    return Cause(f"the sessions of brokers {','.join(map(str, broker_ids))} ended")


def registration(broker_id: int, *, first: bool, lossless: bool) -> Cause:
    """``lossless``: whether its previous incarnation certainly lost no records."""
    if first:
        return Cause(f"broker {broker_id} joined the cluster for the first time")
    how = "lost no records" if lossless else "may have lost records"
    return Cause(f"broker {broker_id} began a session, and its previous incarnation {how}")


def _api_name(key: AnyApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))
