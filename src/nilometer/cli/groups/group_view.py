"""Formats groups: as tables for people, and as JSON documents for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from nilometer.cli.cluster_options import print_table
from nilometer.client.admin.group_admin import GroupDescription, MemberDescription
from nilometer.client.admin.group_offsets import PartitionLag, PlannedReset
from nilometer.client.admin.rebalance_text import rebalance_warning
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.describe_rebalances import RebalanceState

NONE = "-"
OFFSET_COLUMNS = (
    "topic",
    "partition",
    "committed",
    "high watermark",
    "lag",
    "stable lag",
    "member",
    "host",
    "client id",
)
MEMBER_COLUMNS = ("member", "instance", "client id", "host", "partitions", "assignment", "target")


# --- for people


def describe_group(
    group: GroupDescription, lags: Sequence[PartitionLag], *, offsets: bool, members: bool
) -> None:
    click.echo(_headline(group))
    if (warning := rebalance_warning(group)) is not None:
        click.echo(warning)
    if offsets:
        if lags:
            print_table(OFFSET_COLUMNS, [_offset_row(group, one) for one in lags])
            click.echo(total_lag(lags))
        else:
            click.echo("No offset is committed, and no partition is assigned.")
    if members:
        print_table(MEMBER_COLUMNS, [_member_row(one) for one in group.members])
    click.echo()


def _headline(group: GroupDescription) -> str:
    epoch = "" if group.epoch is None else f", epoch {group.epoch}"
    assignor = f", assignor {group.assignor}" if group.assignor else ""
    count = len(group.members)
    return (
        f"Group {group.group_id}: {group.state}, {count} member{'' if count == 1 else 's'} "
        f"({group.group_type} protocol{assignor}{epoch}), coordinator {group.coordinator_id}"
    )


def _offset_row(group: GroupDescription, one: PartitionLag) -> tuple[object, ...]:
    owner = group.owner(one.partition)
    return (
        one.partition.topic,
        one.partition.partition,
        _or_none(one.committed),
        _or_none(one.high_watermark),
        _or_none(one.lag),
        _or_none(one.stable_lag),
        owner.member_id if owner is not None else NONE,
        owner.host if owner is not None else NONE,
        owner.client_id if owner is not None else NONE,
    )


def total_lag(lags: Sequence[PartitionLag]) -> str:
    """Return the sum of the known lags as a sentence, and why others are not known."""
    known = [one.lag for one in lags if one.lag is not None]
    uncommitted = sum(one.committed is None for one in lags)
    without_end = len(lags) - len(known) - uncommitted
    parts = [f"Total lag {sum(known)}"] if known or not lags else []
    if uncommitted:
        parts.append(f"no offset is committed yet for {_partitions(uncommitted)}")
    if without_end:
        parts.append(f"the end of {_partitions(without_end)} is not known, for lack of a leader")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _member_row(one: MemberDescription) -> tuple[object, ...]:
    return (
        one.member_id,
        one.instance_id or NONE,
        one.client_id,
        one.host,
        len(one.assignment),
        _ranges(one.assignment),
        "" if one.target is None or one.target == one.assignment else _ranges(one.target),
    )


def _ranges(partitions: Sequence[TopicPartition]) -> str:
    """Return partitions as text such as ``logs:0-3,7 t:1``."""
    by_topic: dict[str, list[list[int]]] = {}
    for topic, number in sorted(partitions):
        runs = by_topic.setdefault(topic, [])
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(
        f"{topic}:" + ",".join(str(begin) if begin == end else f"{begin}-{end}" for begin, end in runs)
        for topic, runs in by_topic.items()
    )


def _or_none(value: int | None) -> object:
    return NONE if value is None else value


def reset_rows(plans: Mapping[str, Sequence[PlannedReset]]) -> list[tuple[object, ...]]:
    return [
        (name, one.partition.topic, one.partition.partition, _or_none(one.before), one.after, one.note)
        for name, plan in plans.items()
        for one in plan
    ]


# --- for programs


def group_document(group: GroupDescription, lags: Sequence[PartitionLag]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator_id,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "trouble": rebalance_warning(group),  # codespell:ignore
        "last_rebalance": _rebalance_document(group.last_rebalance),
        "members": [_member_document(one) for one in group.members],
        "offsets": [_offset_document(group, one) for one in lags],
    }


def _rebalance_document(last: RebalanceState | None) -> dict[str, Any] | None:
    if last is None:
        return None
    return {
        "reason": last.reason,
        "member": last.member_id,
        "instance": last.group_instance_id,
        "client_id": last.client_id,
        "host": last.client_host,
        "at_ms": last.wall_ms,
        "generation": last.generation,
        "times_in_a_row": last.times_in_a_row,
    }


def _member_document(one: MemberDescription) -> dict[str, Any]:
    return {
        "member": one.member_id,
        "instance": one.instance_id,
        "client_id": one.client_id,
        "host": one.host,
        "rack": one.rack,
        "epoch": one.epoch,
        "topics": list(one.topics),
        "assignment": _partition_documents(one.assignment),
        "target": None if one.target is None else _partition_documents(one.target),
    }


def _partition_documents(partitions: Sequence[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": number} for topic, number in partitions]


def _offset_document(group: GroupDescription, one: PartitionLag) -> dict[str, Any]:
    owner = group.owner(one.partition)
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed": one.committed,
        "leader_epoch": one.leader_epoch if one.leader_epoch >= 0 else None,
        "metadata": one.metadata,
        "log_start": one.log_start_offset,
        "high_watermark": one.high_watermark,
        "last_stable": one.last_stable_offset,
        "lag": one.lag,
        "stable_lag": one.stable_lag,
        "member": owner.member_id if owner is not None else None,
    }


def reset_document(plans: Mapping[str, Sequence[PlannedReset]], executed: bool) -> dict[str, Any]:
    return {
        "executed": executed,
        "groups": {
            name: [
                {
                    "topic": one.partition.topic,
                    "partition": one.partition.partition,
                    "before": one.before,
                    "after": one.after,
                    "note": one.note,
                }
                for one in plan
            ]
            for name, plan in plans.items()
        },
    }
