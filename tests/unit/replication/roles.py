"""Roles for tests, with the arguments that do not matter filled in. Leader: broker 1; broker epochs: 10 ×
id."""

from __future__ import annotations

from nilometer.replication.follower import FollowerRole, TruncationRule
from nilometer.replication.isr import AlterPartition
from nilometer.replication.leader import LeaderRole
from nilometer.replication.shell_interface import (
    Effect,
    Effects,
    FetchResult,
    FollowerFetch,
    Registration,
    SendAlterPartition,
)
from nilometer.simulation.model_check.processes import ModelLog

ALL_REPLICAS = {1: 10, 2: 20, 3: 30}


def registered(
    *isr: int,
    leader: int = 1,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    replicas: tuple[int, ...] = (1, 2, 3),
) -> Registration:
    return Registration(
        replicas=replicas,
        isr=isr or replicas,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
    )


def log_of(*epochs: int) -> ModelLog:
    """A log with one record in each of the given epochs; the value is the offset."""
    return ModelLog((epoch, offset) for offset, epoch in enumerate(epochs))


class Leading:
    """A leader, its log, and what the tests do to both."""

    def __init__(
        self,
        log: ModelLog,
        registration: Registration,
        *,
        high_watermark: int = 0,
        min_insync_replicas: int = 1,
        eligible: dict[int, int] | None = None,
        now_ms: int = 0,
    ) -> None:
        self.log = log
        self.role = LeaderRole(
            registration,
            log,
            broker_id=1,
            broker_epoch=10,
            high_watermark=high_watermark,
            eligible=ALL_REPLICAS if eligible is None else eligible,
            now_ms=now_ms,
            min_insync_replicas=min_insync_replicas,
        )
        self.first_effects = self.role.start(now_ms)
        log.start_epoch(registration.leader_epoch, log.log_end_offset)

    def append(self, count: int = 1, now_ms: int = 0) -> Effects:
        for _ in range(count):
            self.log.append(self.role.leader_epoch, self.log.log_end_offset)
        return self.role.on_appended(self.log.log_end_offset, now_ms)

    def fetch(
        self,
        replica: int,
        offset: int,
        *,
        last_epoch: int | None = None,
        leader_epoch: int | None = None,
        broker_epoch: int | None = None,
        now_ms: int = 0,
    ) -> tuple[FetchResult, Effects]:
        fetch = FollowerFetch(
            replica,
            ALL_REPLICAS[replica] if broker_epoch is None else broker_epoch,
            self.role.leader_epoch if leader_epoch is None else leader_epoch,
            offset,
            (self.log.records[offset - 1][0] if offset else -1) if last_epoch is None else last_epoch,
            0,
        )
        return self.role.on_follower_fetch(fetch, now_ms)


def following(
    log: ModelLog,
    *,
    leader: int = 1,
    leader_epoch: int = 0,
    high_watermark: int = 0,
    rule: TruncationRule = TruncationRule.BY_LEADER_EPOCH,
) -> FollowerRole:
    """Broker 2, following."""
    return FollowerRole(
        registered(leader=leader, leader_epoch=leader_epoch),
        log,
        broker_id=2,
        broker_epoch=20,
        high_watermark=high_watermark,
        rule=rule,
    )


def asked(effects: tuple[Effect, ...]) -> AlterPartition:
    """The one request among the effects."""
    (request,) = [effect.request for effect in effects if isinstance(effect, SendAlterPartition)]
    return request


def members(request: AlterPartition) -> tuple[int, ...]:
    return tuple(member for member, _ in request.new_isr)
