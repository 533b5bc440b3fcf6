"""The coordinators of one kind on this broker: a shell for each partition of their topic that it leads.

The response to one client request is made when the last of its results has arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from nilometer.broker.control.internal_topics import InternalTopics
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinator_shell import (
    ActionT,
    CoordinatorKind,
    CoordinatorShell,
    RecordT,
    RequestT,
    ResultT,
    Shard,
)
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.coordinators import Token, TransactionEnd
from nilometer.replication.leader import LeaderRole
from nilometer.runtime import Runtime
from nilometer.storage.appending import AppendInfo
from nilometer.wire.errors import ErrorCode, KafkaError

# Computes the partition of an internal topic that keeps a group or a transactional id (SPEC C-3).
#
# The hash is Java's ``String.hashCode``: over UTF-16 units, wrapping at 32 bits, signed. Kafka takes its
# absolute value, and 0 for the minimum, which has none.

_INT32_MIN = -(2**31)


def java_string_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for_key(key: str, partitions_count: int) -> int:
    value = java_string_hash(key)
    return (0 if value == _INT32_MIN else abs(value)) % partitions_count


NOT_AVAILABLE = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
)
_COORDINATOR_MOVED = (ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error)
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large, ErrorCode.invalid_fetch_size)


def coordinator_error(error: ErrorCode) -> ErrorCode:
    if error in NOT_AVAILABLE:
        return ErrorCode.coordinator_not_available
    if error in _COORDINATOR_MOVED:
        return ErrorCode.not_coordinator
    if error in _TOO_LARGE:
        return ErrorCode.unknown_server_error
    return error


class PendingResponse(Generic[RequestT, ResultT]):
    __slots__ = ("_future", "_missing", "_respond", "_results", "_tokens")

    def __init__(self, count: int, respond: Callable[[Sequence[ResultT]], Response]) -> None:
        self._results: list[ResultT | None] = [None] * count
        self._missing = count
        self._respond = respond
        self._tokens: list[tuple[CoordinatorShell[RequestT, ResultT, Any, Any], Token]] = []
        self._future: asyncio.Future[Response] | None = None

    def submit(
        self, index: int, shell: CoordinatorShell[RequestT, ResultT, Any, Any], request: RequestT
    ) -> None:
        """Submit ``request`` to ``shell``; its result gets the given ``index`` among the results.

        Raises KafkaError if the shell cannot process requests now.
        """
        token = shell.submit(request, lambda result: self.set_result(index, result))
        if token is not None:
            self._tokens.append((shell, token))

    def set_result(self, index: int, result: ResultT) -> None:
        """Set the result with this ``index``. When all results are set, the response is made from them."""
        self._results[index] = result
        self._missing -= 1
        future = self._future
        if self._missing or future is None or future.done():
            return
        try:
            future.set_result(self._make())
        except Exception as error:
            future.set_exception(error)

    def frame(self) -> Response | asyncio.Future[Response]:
        """Return the response if all results are there, else its future."""
        if not self._missing:
            return self._make()
        self._future = asyncio.get_running_loop().create_future()
        self._future.add_done_callback(self._on_done)
        return self._future

    def _make(self) -> Response:
        return self._respond([result for result in self._results if result is not None])

    def _on_done(self, future: asyncio.Future[Response]) -> None:
        tokens, self._tokens = self._tokens, []
        if future.cancelled():
            for shell, token in tokens:
                shell.forget(token)


logger = logging.getLogger("nilometer.broker.coordinators")

OneResultT = TypeVar("OneResultT")


class CoordinatorShells(Generic[RequestT, ResultT, RecordT, ActionT]):
    def __init__(
        self,
        kind: CoordinatorKind[RequestT, ResultT, RecordT, ActionT],
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: ReplicaManager,
        topics: InternalTopics,
    ) -> None:
        self._kind = kind
        self._runtime = runtime
        self._tasks = tasks
        self._replicas = replicas
        self._topics = topics
        self._metadata = metadata
        self._shells: dict[int, CoordinatorShell[RequestT, ResultT, RecordT, ActionT]] = {}
        replicas.add_hosting_listener(self._on_hosted)
        metadata.subscribe(self._on_delta, self._on_image)

    def partition_for(self, key: str) -> int:
        """Return the partition of the topic that keeps ``key``, from the topic's partition count."""
        topic = self._metadata.image.topic(self._kind.topic)
        count = self._kind.num_partitions if topic is None else len(topic.partitions)
        return partition_for_key(key, count)

    async def ensure_topic(self) -> bool:
        """Have the topic created, if it is not there; return whether it is."""
        return await self._topics.ensure(self._kind.topic)

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def _check(self, key: str, request: RequestT) -> ErrorCode:
        """Return the error of a request that must not reach the shard of its ``key``."""
        return ErrorCode.none

    def ask(
        self, asked: Sequence[tuple[str, RequestT]], respond: Callable[[Sequence[ResultT]], Response]
    ) -> Response | asyncio.Future[Response]:
        """Submit each request of ``asked``, a list of (key, request), to the shell of its key.

        ``respond`` makes the response from all results, in the order of ``asked``. If the client disconnects
        before, the requests are dropped.
        """
        pending = PendingResponse[RequestT, ResultT](len(asked), respond)
        for index, (key, request) in enumerate(asked):
            shell = self._shells.get(self.partition_for(key))
            try:
                if (error := self._check(key, request)) is not ErrorCode.none:
                    raise KafkaError(error)
                if shell is None:
                    raise KafkaError(ErrorCode.not_coordinator)
                pending.submit(index, shell, request)
            except KafkaError as refused:
                pending.set_result(index, self._kind.refuse(request, refused.code))
        return pending.frame()

    async def ask_in_turns(self, asked: Sequence[tuple[str, RequestT]], work: LongWork) -> list[ResultT]:
        """Submit each request of ``asked`` as :meth:`ask` does, slice by slice, and return all results: for
        requests of which each may take long. None waits for the result of another."""
        results: list[asyncio.Future[ResultT]] = []
        for key, request in asked:
            results.append(self._answer_checked(key, request))
            await work.step(1)
        return [await each for each in results]

    def _answer_checked(self, key: str, request: RequestT) -> asyncio.Future[ResultT]:
        if (error := self._check(key, request)) is ErrorCode.none:
            return self.answer(key, request)
        refused: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        refused.set_result(self._kind.refuse(request, error))
        return refused

    def ask_one(
        self, key: str, request: RequestT, kind: type[OneResultT], respond: Callable[[OneResultT], Response]
    ) -> Response | asyncio.Future[Response]:
        """Submit one request, whose result must be of type ``kind``, otherwise as :meth:`ask`."""

        def respond_to(results: Sequence[ResultT]) -> Response:
            (result,) = results
            assert isinstance(result, kind), f"{type(request).__name__} is answered with {kind.__name__}"
            return respond(result)

        return self.ask(((key, request),), respond_to)

    def append_marker(
        self, index: int, write: Callable[[Partition], AppendInfo], end: TransactionEnd
    ) -> AppendInfo:
        """Append a marker to partition ``index`` of the topic through its shell, which notifies the shard.

        ``write`` appends the marker that ends the transaction ``end``. Raises KafkaError.
        """
        shell = self._shells.get(index)
        if shell is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return shell.append_marker(write, end)

    def answer(self, key: str, request: RequestT) -> asyncio.Future[ResultT]:
        """Submit one request of the broker itself; returns the future of its result."""
        return self._answer(self._shells.get(self.partition_for(key)), request)

    def answer_all(self, request: RequestT) -> Iterator[asyncio.Future[ResultT]]:
        """Submit ``request`` to each shell on this broker when the next future is taken."""
        for index in sorted(self._shells):
            yield self._answer(self._shells.get(index), request)

    def _answer(
        self, shell: CoordinatorShell[RequestT, ResultT, RecordT, ActionT] | None, request: RequestT
    ) -> asyncio.Future[ResultT]:
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()

        def deliver(result: ResultT) -> None:
            if not future.done():
                future.set_result(result)

        try:
            if shell is None:
                raise KafkaError(ErrorCode.not_coordinator)
            token = shell.submit(request, deliver)
        except KafkaError as refused:
            deliver(self._kind.refuse(request, refused.code))
            return future
        if token is not None:
            future.add_done_callback(lambda done: shell.forget(token) if done.cancelled() else None)
        return future

    def shards(self) -> Iterator[Shard[RequestT, ResultT, RecordT, ActionT]]:
        """Yield the shards that are loaded."""
        for shell in self._shells.values():
            if shell.shard is not None:
                yield shell.shard

    def states(self) -> Iterator[Iterable[str]]:
        """Yield, for each shell, the state of each of its groups or transactions."""
        for shell in list(self._shells.values()):
            yield shell.states()

    # ── leadership ──────────────────────────────────────────────────────────────────────────────
    def _on_hosted(self, partition: Partition) -> None:
        if partition.topic == self._kind.topic:
            partition.add_role_listener(self._on_role_changed)

    def _on_role_changed(self, partition: Partition) -> None:
        index = partition.key.partition
        shell = self._shells.get(index)
        if not isinstance(partition.replica.role, LeaderRole):
            if shell is not None and shell.partition is partition:
                logger.debug("%s is unloaded", shell)
                del self._shells[index]
                shell.unload()
            return
        if shell is not None:
            if shell.partition is partition and partition.leader_epoch == shell.leader_epoch + 1:
                # Each election raises the epoch by one: no other broker led meanwhile, or this one would be
                # two epochs on. Nothing but this shell's own records is in the log, and its shard stays.
                shell.become_leader_again()
                return
            shell.unload()
        shell = self._shells[index] = CoordinatorShell(
            partition, self._runtime, self._tasks, self._kind, self._replicas.damaged.report
        )
        shell.load()

    # ── the image ───────────────────────────────────────────────────────────────────────────────
    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        grown = any(change.before is None or change.after is None for change in delta.partitions.values())
        if grown or delta.topics_created or delta.topics_deleted or delta.features:
            self._on_image(image)

    def _on_image(self, image: ClusterImage) -> None:
        for index in sorted(self._shells):
            self._shells[index].on_image(image)
