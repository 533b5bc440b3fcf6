"""Keeps the state of share partitions at their share coordinators, for the leaders of the partitions and for
the group coordinator (KIP-932, the *persister*).

A request is sent again while its coordinator moves, for ``RETRY_MS``. Requests to one broker go together:
those that wait while others are under way are in the next ones. Writes of one share partition follow each
other; those that wait are merged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias
from uuid import UUID

from nilometer.broker.control.broker_peers import PeerConnections
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.sharing.share_coordinator import ShareCoordinator, coordinator_key
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.states import SHARE_GROUP_STATE_TOPIC
from nilometer.groups.turn import DeleteShareState, InitializeShareState, ShareStateResult
from nilometer.identifiers import topic_id_of, uuid_from_text
from nilometer.runtime import Runtime
from nilometer.runtime.gathering import gather
from nilometer.share.partition_events import Write
from nilometer.share.state_records import (
    UNKNOWN_COUNT,
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    StateBatch,
)
from nilometer.share.state_shard import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateRequest,
    StateResult,
    WriteState,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import NONE, ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.sharing")

RETRY_MS = 10_000
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 20, 1_000
COMPLETE_COUNT_SINCE = 1
"""The version of WriteShareGroupState (KIP-1226)."""
PER_REQUEST_MAX = 60
"""Share partitions in a request: brokers handle so many as a whole."""
BATCHES_AT_ONCE = 250
"""Of the state batches of share partitions, so many are written at once, or those of one write less; what
members acknowledge record by record may be many times as much."""
DECISION_ELEMENTS = 64
"""As so many elements of long work counts a share partition that a group begins or deletes."""
WRITTEN_AT_ONCE = 32
"""The states of so many share partitions are written in one turn. Locks of thousands may end together."""
AWAY = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.broker_not_available,
    }
)
"""The errors of a coordinator that moves, or cannot be reached."""


_FIRST = attrgetter("first_offset")


Done: TypeAlias = Callable[[ErrorCode], Generator[int, None, None]]
"""Called once with the error of a write; yields how many elements it has gone through since."""


class _Asked(NamedTuple):
    request: StateRequest
    result: asyncio.Future[StateResult]


class _Writing(NamedTuple):
    epochs: tuple[int, int]
    write: Write
    done: Done


class SharePersister:
    def __init__(
        self,
        broker_id: int,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        coordinator: ShareCoordinator,
        connections: PeerConnections,
        turns: Turns,
    ) -> None:
        self._turns = turns
        self._broker_id = broker_id
        self._runtime = runtime
        self._tasks = tasks
        self._metadata = metadata
        self._coordinator = coordinator
        self._connections = connections
        self._queues: dict[int, list[_Asked]] = {}
        """By broker, what is sent to it next; a task sends while there is an entry."""
        self._writes: dict[SharePartitionKey, list[_Writing]] = {}
        """In order; a task writes while there is an entry."""

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> SharePartitionState:
        """Return the state of a share partition, which the leader in ``leader_epoch`` takes over: earlier
        leaders cannot write it any more. Raises KafkaError."""
        result = await self.ask(ReadState(key, leader_epoch))
        if result.error is not NONE or result.state is None:
            raise KafkaError(result.error, result.message or f"the state of {coordinator_key(key)}")
        return result.state

    def write(self, key: SharePartitionKey, epochs: tuple[int, int], write: Write, done: Done) -> None:
        """Write after all earlier writes of ``key``.

        ``epochs``: of the state, and of the leader. ``done`` is called in a later iteration of the
        event loop.
        """
        waiting = self._writes.get(key)
        if waiting is None:
            self._writes[key] = [_Writing(epochs, write, done)]
            self._tasks.spawn(self._write_all(key), name=f"writing share state {coordinator_key(key)}")
        else:
            waiting.append(_Writing(epochs, write, done))

    @property
    def is_busy(self) -> bool:
        """Whether many share partitions are written now: more of them wait for their turns."""
        return len(self._writes) > WRITTEN_AT_ONCE

    async def _write_all(self, key: SharePartitionKey) -> None:
        try:
            if self.is_busy:
                await self._turns.wait_next()
            while self._writes[key]:
                epochs = self._writes[key][0].epochs
                taken = [one for one in self._writes[key] if one.epochs == epochs]
                self._writes[key] = [one for one in self._writes[key] if one.epochs != epochs]
                error = await self._write_together(key, epochs, [one.write for one in taken])
                work = LongWork(self._turns)
                for one in taken:
                    await work.go_through(one.done(error))
                    await work.step(1)
        finally:
            del self._writes[key]

    async def _write_together(
        self, key: SharePartitionKey, epochs: tuple[int, int], writes: Sequence[Write]
    ) -> ErrorCode:
        """Write in the order of the offsets, some batches after the others; return the first error.

        If a later part fails, the coordinator has an earlier one although its members get an error: as if the
        response to the whole had been lost.
        """
        batches = sorted((batch for one in writes for batch in one.batches), key=_FIRST)
        newest, work = writes[-1], LongWork(self._turns)
        for first in range(0, len(batches) or 1, BATCHES_AT_ONCE):
            result = await self.ask(
                WriteState(
                    key,
                    *epochs,
                    newest.start_offset,
                    newest.delivery_complete_count,
                    tuple(batches[first : first + BATCHES_AT_ONCE]),
                )
            )
            if result.error is not NONE:
                return result.error
            await work.step(BATCHES_AT_ONCE)
        return NONE

    async def carry_out(self, action: InitializeShareState | DeleteShareState) -> ShareStateResult:
        """Begin or delete the states that a share group's coordinator has decided on."""
        requests: list[StateRequest] = []
        for topic_id, partitions in action.topics.items():
            for partition in sorted(partitions):
                key = SharePartitionKey(action.group_id, topic_id_of(topic_id), partition)
                if isinstance(action, InitializeShareState):
                    start_offset = action.topics[topic_id][partition]
                    requests.append(InitializeState(key, action.state_epoch, start_offset))
                else:
                    requests.append(DeleteState(key))
        work = LongWork(self._turns)
        asking: list[asyncio.Future[StateResult]] = []
        for request in requests:
            asking.append(asyncio.ensure_future(self.ask(request)))
            await work.step(DECISION_ELEMENTS)
        results = await gather(*asking)
        errors: dict[UUID, dict[int, ErrorCode]] = {}
        for result in results:
            if result.error is not NONE:
                topic_id = uuid_from_text(result.key.topic_id)
                errors.setdefault(topic_id, {})[result.key.partition] = result.error
        return ShareStateResult(action, errors)

    async def ask(self, request: StateRequest) -> StateResult:
        """Return the coordinator's result; its error if it cannot be reached for ``RETRY_MS``."""
        clock = self._runtime.clock
        deadline_ms, pause_ms = clock.monotonic_ms() + RETRY_MS, FIRST_PAUSE_MS
        while True:
            result = await self._ask_once(request)
            if result.error not in AWAY or clock.monotonic_ms() + pause_ms > deadline_ms:
                return result
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)

    async def _ask_once(self, request: StateRequest) -> StateResult:
        if self._metadata.image.topic(SHARE_GROUP_STATE_TOPIC) is None:
            await self._coordinator.ensure_topic()
        text = coordinator_key(request.key)
        topic = self._metadata.image.topic(SHARE_GROUP_STATE_TOPIC)
        state = None if topic is None else topic.partition(self._coordinator.partition_for(text))
        if state is None or not state.has_leader:
            return StateResult(request.key, ErrorCode.coordinator_not_available)
        if state.leader == self._broker_id:
            return await self._coordinator.answer(text, request)
        result: asyncio.Future[StateResult] = asyncio.get_running_loop().create_future()
        broker_id = int(state.leader)
        queue = self._queues.get(broker_id)
        if queue is None:
            self._queues[broker_id] = [_Asked(request, result)]
            self._tasks.spawn(self._send_all(broker_id), name=f"share state to broker {broker_id}")
        else:
            queue.append(_Asked(request, result))
        return await result

    async def _send_all(self, broker_id: int) -> None:
        try:
            while queue := self._queues[broker_id]:
                self._queues[broker_id] = []
                try:
                    await gather(*(self._send(broker_id, one) for one in _together(queue)))
                finally:
                    for one in queue:
                        if not one.result.done():
                            one.result.set_result(StateResult(one.request.key, ErrorCode.network_exception))
        finally:
            del self._queues[broker_id]

    async def _send(self, broker_id: int, asked: Sequence[_Asked]) -> None:
        api_key, topic_type = _EXCHANGES[type(asked[0].request)]
        try:
            connection = await self._connections.to(broker_id)
            response = await connection.request(
                api_key, lambda api: _message(api, topic_type, [one.request for one in asked])
            )
        except KafkaError as refused:
            logger.info("No response about share state from broker %d: %s", broker_id, refused)
            return
        results = _replies(asked[0].request.key.group_id, response)
        for one in asked:
            result = results.get(one.request.key)
            if result is not None and not one.result.done():
                one.result.set_result(result)


def _together(queue: Sequence[_Asked]) -> list[list[_Asked]]:
    """Divide what is asked into requests: of one kind, and about share partitions of one group, each named
    once, with few batches."""
    requests: dict[tuple[type, str], list[dict[SharePartitionKey, _Asked]]] = {}
    batches: dict[tuple[type, str], int] = {}
    for one in queue:
        kind = type(one.request), one.request.key.group_id
        of_kind = requests.setdefault(kind, [{}])
        count = len(one.request.batches) if isinstance(one.request, WriteState) else 0
        together = batches.get(kind, 0) + count
        is_full = len(of_kind[-1]) >= PER_REQUEST_MAX or (of_kind[-1] and together > BATCHES_AT_ONCE)
        if is_full or one.request.key in of_kind[-1]:
            of_kind.append({})
            together = count
        of_kind[-1][one.request.key] = one
        batches[kind] = together
    return [list(request.values()) for of_kind in requests.values() for request in of_kind]


# ── messages ────────────────────────────────────────────────────────────────────────────────────
_EXCHANGES: Mapping[type[StateRequest], tuple[ApiKey, str]] = {
    InitializeState: (ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeStateData"),
    ReadState: (ApiKey.READ_SHARE_GROUP_STATE, "ReadStateData"),
    WriteState: (ApiKey.WRITE_SHARE_GROUP_STATE, "WriteStateData"),
    DeleteState: (ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteStateData"),
    ReadSummary: (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "ReadStateSummaryData"),
}
"""By kind of request, its API, and the message type of a topic in it."""


def _fields(api: Api, request: StateRequest) -> Mapping[str, object]:
    """Return the fields of a partition, besides its number."""
    match request:
        case InitializeState():
            return {"state_epoch": request.state_epoch, "start_offset": request.start_offset}
        case ReadState() | ReadSummary():
            return {"leader_epoch": request.leader_epoch}
        case DeleteState():
            return {}
        case WriteState():
            pass
    fields: dict[str, object] = {
        "state_epoch": request.state_epoch,
        "leader_epoch": request.leader_epoch,
        "start_offset": request.start_offset,
        "state_batches": tuple(
            api.make_request(
                "StateBatch",
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=int(batch.state),
                delivery_count=batch.delivery_count,
            )
            for batch in request.batches
        ),
    }
    if api.version >= COMPLETE_COUNT_SINCE:
        fields["delivery_complete_count"] = request.delivery_complete_count
    return fields


def _message(api: Api, topic_type: str, requests: Sequence[StateRequest]) -> Message:
    by_topic: dict[str, list[Message]] = {}
    for request in requests:
        fields = _fields(api, request)
        part = api.make_request("PartitionData", partition=request.key.partition, **fields)
        by_topic.setdefault(request.key.topic_id, []).append(part)
    topics = (
        api.make_request(topic_type, topic_id=uuid_from_text(topic_id), partitions=tuple(parts))
        for topic_id, parts in by_topic.items()
    )
    return api.request(group_id=requests[0].key.group_id, topics=tuple(topics))


def _replies(group_id: str, response: Message) -> dict[SharePartitionKey, StateResult]:
    results: dict[SharePartitionKey, StateResult] = {}
    for topic in response.results:
        for part in topic.partitions:
            key = SharePartitionKey(group_id, topic_id_of(topic.topic_id), part.partition)
            results[key] = StateResult(key, ErrorCode(part.error_code), part.error_message, _state(part))
    return results


def _state(part: Message) -> SharePartitionState | None:
    if not hasattr(part, "state_epoch"):
        return None
    batches = (
        StateBatch(one.first_offset, one.last_offset, DeliveryState(one.delivery_state), one.delivery_count)
        for one in getattr(part, "state_batches", ())
    )
    return SharePartitionState(
        part.state_epoch,
        getattr(part, "leader_epoch", -1),
        part.start_offset,
        getattr(part, "delivery_complete_count", UNKNOWN_COUNT),
        tuple(batches),
    )
