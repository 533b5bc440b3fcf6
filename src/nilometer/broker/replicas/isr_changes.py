"""The changes of ISRs that this broker wants as leader: requested from the controller, many at a time, and
logged once each is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from nilometer.broker.control.controller_link import AlterPartitionResponses, ControllerLink
from nilometer.broker.decision_lines import PartitionDecision, log_partition_decisions
from nilometer.broker.replicas.readable_partition import ReadablePartition
from nilometer.broker.tasks import Tasks
from nilometer.coordination.store import CoordinationError
from nilometer.identifiers import BrokerId, TopicIdPartition
from nilometer.replication.followers import NEVER_MS
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse
from nilometer.replication.leader import LeaderRole
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.replicas")

RETRY_S = 0.05
REQUEST_PARTITIONS_MAX = 1000
NO_ANSWER = AlterPartitionResponse(error=ErrorCode.request_timed_out)
"""In place of an answer that has not arrived; the request may be sent again."""


class _Wanted(NamedTuple):
    request: AlterPartition
    on_answer: Callable[[AlterPartition, AlterPartitionResponse], None]


class IsrRequests:
    def __init__(self, link: ControllerLink, tasks: Tasks) -> None:
        self._link = link
        self._tasks = tasks
        self._waiting: dict[TopicIdPartition, _Wanted] = {}
        self._sending: asyncio.Task[None] | None = None
        self._said = ""
        """Why the last request failed, as it was logged; empty if it did not."""
        self.failed = 0
        """How many changes of an ISR the controller has rejected, or not answered."""

    def send(
        self,
        partition: TopicIdPartition,
        request: AlterPartition,
        on_answer: Callable[[AlterPartition, AlterPartitionResponse], None],
    ) -> None:
        """Send ``request`` with the next AlterPartition, and call ``on_answer`` with it and its answer.

        It replaces an earlier request of the partition that has not been sent yet. ``NO_ANSWER`` is passed
        after a pause.
        """
        self._waiting[partition] = _Wanted(request, on_answer)
        if self._sending is None:
            self._sending = self._tasks.service("ISR requests", self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                broker_epoch, batch = self._next_batch()
                answers = await self._ask(broker_epoch, batch)
                for partition, answer in answers.items():
                    if (wanted := batch.pop(partition, None)) is not None:
                        self._answer(wanted, answer)
                if batch:
                    await asyncio.sleep(RETRY_S)
                    for wanted in batch.values():
                        self._answer(wanted, NO_ANSWER)
        finally:
            self._sending = None

    def _answer(self, wanted: _Wanted, answer: AlterPartitionResponse) -> None:
        self.failed += answer.error is not ErrorCode.none
        wanted.on_answer(wanted.request, answer)

    def _next_batch(self) -> tuple[int, dict[TopicIdPartition, _Wanted]]:
        """Take requests that have the same broker epoch; return that epoch and the requests."""
        broker_epoch = next(iter(self._waiting.values())).request.broker_epoch
        batch: dict[TopicIdPartition, _Wanted] = {}
        for partition, wanted in list(self._waiting.items()):
            if wanted.request.broker_epoch == broker_epoch and len(batch) < REQUEST_PARTITIONS_MAX:
                batch[partition] = self._waiting.pop(partition)
        return broker_epoch, batch

    async def _ask(
        self, broker_epoch: int, batch: dict[TopicIdPartition, _Wanted]
    ) -> AlterPartitionResponses:
        requests = [(partition, wanted.request) for partition, wanted in batch.items()]
        try:
            answers = await self._link.alter_partitions(broker_epoch, requests)
        except (KafkaError, CoordinationError) as error:
            if str(error) != self._said:  # once: there are many attempts until a controller is found
                self._said = str(error)
                logger.info("AlterPartition for %d partitions failed, and is repeated: %s", len(batch), error)
            return {}
        if self._said:
            self._said = ""
            logger.info("AlterPartition is answered again")
        return answers


class _Requested(NamedTuple):
    request: AlterPartition
    former_isr: tuple[BrokerId, ...]
    cause: str
    details: str


class IsrLog:
    def __init__(self) -> None:
        self._requested: dict[ReadablePartition, _Requested] = {}
        self._decisions: list[PartitionDecision] = []

    def note_request(self, partition: ReadablePartition, request: AlterPartition, now_ms: int) -> None:
        """Note why the leader requests a new ISR. A request that is sent again keeps its first cause."""
        role, known = partition.replica.role, self._requested.get(partition)
        if isinstance(role, LeaderRole) and (known is None or known.request != request):
            cause, details = _why(role, request, now_ms)
            self._requested[partition] = _Requested(request, role.isr, cause, details)

    def note_state(self, partition: ReadablePartition) -> None:
        """Write the line if the requested ISR is committed; called after each change of the partition."""
        requested = self._requested.get(partition)
        if requested is None:
            return
        role, request = partition.replica.role, requested.request
        if isinstance(role, LeaderRole) and role.leader_epoch == request.leader_epoch:
            if role.partition_epoch == request.partition_epoch:
                return  # not known yet
            if set(role.isr) == {member for member, _ in request.new_isr}:
                self._add(partition, role.isr, requested)
        del self._requested[partition]

    def _add(self, partition: ReadablePartition, isr: tuple[BrokerId, ...], requested: _Requested) -> None:
        former = requested.former_isr
        shrinks = len(isr) < len(former)
        verb = "shrinks" if shrinks else "expands"

        def sentence() -> str:
            change = f"the ISR {verb} from {_ids(former)} to {_ids(isr)}"
            return f"{partition}: {change} ({requested.details})"

        if not self._decisions:
            asyncio.get_running_loop().call_soon(self._write)
        self._decisions.append(
            PartitionDecision(
                "isr-shrunk" if shrinks else "isr-expanded",
                partition.topic,
                partition.key.partition,
                "ISRs shrink" if shrinks else "ISRs expand",
                requested.cause,
                sentence,
                {"isr": isr, "former_isr": former},
            )
        )

    def _write(self) -> None:
        decisions, self._decisions = self._decisions, []
        log_partition_decisions(logger, decisions)


def _why(role: LeaderRole, request: AlterPartition, now_ms: int) -> tuple[str, str]:
    """Return the cause of a request, equal for all partitions that a replica left or joined; and details."""
    members = {member for member, _ in request.new_isr}
    removed = [one for one in role.isr if one not in members]
    added = sorted(members.difference(role.isr))
    remotes = {remote.broker_id: remote for remote in role.remote_replicas}
    places: list[str] = []
    for broker_id in removed or added:
        remote = remotes.get(broker_id)
        if remote is None:
            continue
        lag = ""
        if removed:
            never = remote.last_caught_up_ms == NEVER_MS
            lag = ", never caught up" if never else f", caught up {now_ms - remote.last_caught_up_ms} ms ago"
        end = "an unknown offset" if remote.log_end_offset < 0 else remote.log_end_offset
        places.append(f"replica {broker_id} ends at {end}{lag}")
    places.append(f"the leader ends at {role.log_end_offset}, high watermark {role.high_watermark}")
    if removed:
        cause = f"replica {_ids(tuple(removed))} has not caught up within replica.lag.time.max.ms"
    else:
        cause = f"replica {_ids(tuple(added))} has caught up"
    return cause, "; ".join(places)


def _ids(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(map(str, brokers))
