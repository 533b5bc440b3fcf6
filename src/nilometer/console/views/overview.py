"""The overview of a cluster and the list of its brokers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.client.admin.admin import LogDirDescription
from nilometer.client.admin.cluster_health import ClusterHealth, problems
from nilometer.client.admin.quorum_admin import QuorumView
from nilometer.client.admin.replica_survey import Survey
from nilometer.console.views.lists import HangingRow, hanging_row
from nilometer.console.views.rates import Chart, Rate


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    address: str
    rack: str | None
    state: str
    reason: str | None
    is_controller: bool
    broker_epoch: int | None
    metadata_number: int | None
    leads: int
    """How many partitions it leads."""
    hosts: int
    """How many replicas it hosts."""
    out_of_sync: int
    """How many of its replicas are not in sync."""
    size_bytes: int | None
    """Of the replicas' logs that it reports."""


class OverviewView(msgspec.Struct, frozen=True, kw_only=True):
    grade: str
    problems: tuple[str, ...]
    cluster_id: str | None
    controller_id: int | None
    controller_epoch: int | None
    metadata_number: int | None
    quorum: QuorumView | None
    """None: there is none, or it has no leader; the problems say why."""
    brokers: tuple[BrokerRow, ...]
    topics: int
    partitions: int
    replicas: int
    offline: int
    under_min_isr: int
    under_replicated: int
    reassignments: int
    records_per_s: float | None
    """Records appended per second, since the reading before; None after the first one."""
    bytes_per_s: float | None
    hanging: tuple[HangingRow, ...]
    charts: tuple[Chart, ...]
    """Records and bytes per second of the last minutes."""
    size_bytes: int | None


class LogDirRow(msgspec.Struct, frozen=True):
    path: str
    error: str | None
    replicas: int
    size_bytes: int
    total_bytes: int | None
    usable_bytes: int | None


def overview_view(
    health: ClusterHealth, survey: Survey | None, rate: Rate | None, charts: Sequence[Chart] = ()
) -> OverviewView:
    rows = survey.rows if survey is not None else ()
    sizes = [row.state.size_bytes for row in rows if row.state is not None and row.state.size_bytes >= 0]
    return OverviewView(
        grade=health.grade.value,
        problems=tuple(problems(health)),
        cluster_id=health.cluster_id,
        controller_id=_known(health.controller_id),
        controller_epoch=_known(health.controller_epoch),
        metadata_number=_known(health.metadata_number),
        quorum=None if isinstance(health.quorum, str) else health.quorum,
        brokers=broker_rows(health, survey),
        topics=0 if survey is None else len(survey.metadata.topics),
        partitions=len(health.partitions),
        replicas=len(rows),
        offline=len(health.offline),
        under_min_isr=len(health.under_min_isr),
        under_replicated=len(health.under_replicated),
        reassignments=len(health.moves),
        records_per_s=None if rate is None else rate.records_per_s,
        bytes_per_s=None if rate is None else rate.bytes_per_s,
        hanging=tuple(map(hanging_row, health.hanging)),
        charts=tuple(charts),
        size_bytes=sum(sizes) if sizes else None,
    )


def broker_rows(health: ClusterHealth, survey: Survey | None) -> tuple[BrokerRow, ...]:
    answers = {one.broker_id: one for one in (survey.brokers if survey is not None else ())}
    leads: dict[int, int] = {}
    for part in health.partitions:
        leads[part.leader] = leads.get(part.leader, 0) + 1
    hosts: dict[int, int] = {}
    out: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for row in survey.rows if survey is not None else ():
        hosts[row.broker_id] = hosts.get(row.broker_id, 0) + 1
        out[row.broker_id] = out.get(row.broker_id, 0) + (row.in_sync is False)
        if row.state is not None and row.state.size_bytes >= 0:
            sizes[row.broker_id] = sizes.get(row.broker_id, 0) + row.state.size_bytes
    found: list[BrokerRow] = []
    for one in health.brokers:
        answer = answers.get(one.id)
        state = None if answer is None or answer.answer is None else answer.answer.broker
        found.append(
            BrokerRow(
                id=one.id,
                address=f"{one.host}:{one.port}",
                rack=None if answer is None or answer.node is None else answer.node.rack,
                state=one.state,
                reason=one.reason,
                is_controller=one.id == health.controller_id,
                broker_epoch=None if state is None else _known(state.broker_epoch),
                metadata_number=None if state is None else _known(state.metadata_number),
                leads=leads.get(one.id, 0),
                hosts=hosts.get(one.id, 0),
                out_of_sync=out.get(one.id, 0),
                size_bytes=sizes.get(one.id),
            )
        )
    return tuple(found)


def log_dir_rows(found: Sequence[LogDirDescription]) -> tuple[LogDirRow, ...]:
    return tuple(
        LogDirRow(
            one.path,
            None if not one.error else one.error.name.upper(),
            sum(not replica.is_future for replica in one.replicas),
            sum(replica.size_bytes for replica in one.replicas),
            _known(one.total_bytes),
            _known(one.usable_bytes),
        )
        for one in found
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number
