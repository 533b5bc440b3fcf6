"""A simple test cluster: logs in memory, real sockets, and faults that a test injects.

It implements what clients can observe of Kafka: one leader per partition, leader epochs, offsets, the
sequence checks of idempotent producers (five batches remembered), fetch sessions, aborted transactions. It
shares no code with the broker, so that an error in one does not hide an error in the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api
from nilometer.wire.record_batch import batches
from support.scripted.partition_log import PartitionLog
from support.scripted.scripted_broker import HANG_UP, SILENCE, ScriptedBroker

Fault = Callable[[int, int], Any]
"""(API key, number of the request) -> None, an ErrorCode, HANG_UP, or LOSE_ANSWER."""

LOSE_ANSWER = object()
"""Process the request, then close the connection instead of responding."""


class LogCluster:
    def __init__(
        self, brokers: int = 1, topics: dict[str, int] | None = None, *, topic_ids: bool = True
    ) -> None:
        self.brokers = [_LogBroker(self, node_id) for node_id in range(1, brokers + 1)]
        self.logs: dict[tuple[str, int], PartitionLog] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.fault: Fault = lambda _key, _number: None
        self.next_producer_id = 1000
        self.max_message_bytes: int | None = None
        """``max.message.bytes`` of every topic; None: no limit."""
        self.tells_configs = True
        self._numbers: dict[int, int] = {}
        for name, count in (topics or {}).items():
            if topic_ids:
                self.topic_ids[name] = UUID(int=len(self.topic_ids) + 1)
            for index in range(count):
                self.logs[name, index] = PartitionLog(leader=index % brokers + 1)
        self.publish()

    async def __aenter__(self) -> LogCluster:
        for broker in self.brokers:
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.stop()

    @property
    def addresses(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def count(self, key: int) -> int:
        return sum(broker.count(key) for broker in self.brokers)

    def publish(self) -> None:
        """Update the brokers' Metadata responses."""
        for broker in self.brokers:
            broker.peers = list(self.brokers)
            broker.topic_ids = self.topic_ids
            broker.topics.clear()
            for (topic, _), log in sorted(self.logs.items(), key=lambda item: item[0]):
                broker.topics.setdefault(topic, []).append((log.leader, log.epoch))

    def move_leader(self, topic: str, partition: int, leader: int) -> None:
        log = self.logs[topic, partition]
        log.leader = leader
        log.epoch += 1
        log.epoch_starts.append((log.epoch, log.end))
        self.publish()

    def strike(self, key: int) -> Any:
        self._numbers[key] = self._numbers.get(key, 0) + 1
        return self.fault(key, self._numbers[key])

    def topic_of(self, part: Any) -> str:
        if hasattr(part, "topic_id"):
            return next((name for name, one in self.topic_ids.items() if one == part.topic_id), "")
        return part.name if hasattr(part, "name") else part.topic


class _LogBroker(ScriptedBroker):
    def __init__(self, cluster: LogCluster, node_id: int) -> None:
        super().__init__(node_id)
        self.cluster = cluster
        self._sessions: dict[int, tuple[int, dict[tuple[str, int], Any]]] = {}
        self.handlers |= {
            ApiKey.PRODUCE: self._produce,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._offset_for_leader_epoch,
            ApiKey.FETCH: self._fetch,
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
        }

    def _log(self, topic: str, partition: int, epoch: int = -1) -> PartitionLog | ErrorCode:
        log = self.cluster.logs.get((topic, partition))
        if log is None:
            return ErrorCode.unknown_topic_or_partition
        if log.leader != self.node_id:
            return ErrorCode.not_leader_or_follower
        if epoch >= 0 and epoch != log.epoch:
            return ErrorCode.fenced_leader_epoch if epoch < log.epoch else ErrorCode.unknown_leader_epoch
        return log

    def _describe_configs(self, request: Any, codec: Api) -> Any:
        code = ErrorCode.none if self.cluster.tells_configs else ErrorCode.topic_authorization_failed
        limit = self.cluster.max_message_bytes
        entries = {} if limit is None or code is not ErrorCode.none else {"max.message.bytes": str(limit)}
        return codec.response(
            results=tuple(
                codec.make(
                    "DescribeConfigsResult",
                    error_code=code,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=tuple(
                        codec.make(
                            "DescribeConfigsResourceResult",
                            name=name,
                            value=value,
                            read_only=False,
                            is_sensitive=False,
                        )
                        for name, value in entries.items()
                    ),
                )
                for resource in request.resources
            )
        )

    def _init_producer_id(self, _request: Any, codec: Api) -> Any:
        struck = self.cluster.strike(codec.key)
        if isinstance(struck, ErrorCode):
            return codec.response(error_code=struck, producer_id=-1, producer_epoch=-1)
        self.cluster.next_producer_id += 1
        return codec.response(
            error_code=ErrorCode.none, producer_id=self.cluster.next_producer_id, producer_epoch=0
        )

    def _produce(self, request: Any, codec: Api) -> Any:
        struck = self.cluster.strike(codec.key)
        if struck is HANG_UP:
            return HANG_UP
        topics: list[Any] = []
        is_held = False
        for topic in request.topic_data:
            parts: list[Any] = []
            for part in topic.partition_data:
                code, base = struck, -1
                if not isinstance(struck, ErrorCode):
                    log = self._log(self.cluster.topic_of(topic), part.index)
                    code, base = (log, -1) if isinstance(log, ErrorCode) else self._append(log, part.records)
                    is_held = is_held or (isinstance(log, PartitionLog) and log.held_at is not None)
                parts.append(
                    codec.make(
                        "PartitionProduceResponse",
                        index=part.index,
                        error_code=code,
                        base_offset=base,
                        log_append_time_ms=-1,
                    )
                )
            topics.append(
                codec.make(
                    "TopicProduceResponse",
                    name=getattr(topic, "name", ""),
                    topic_id=getattr(topic, "topic_id", None),
                    partition_responses=tuple(parts),
                )
            )
        if struck is LOSE_ANSWER:
            return HANG_UP
        # With acks=all there is no response before the records are committed.
        return SILENCE if is_held else codec.response(responses=tuple(topics))

    def _append(self, log: PartitionLog, records: bytes) -> tuple[ErrorCode, int]:
        limit = self.cluster.max_message_bytes
        if limit is not None and any(header.size > limit for _, header in batches(records)):
            return ErrorCode.message_too_large, -1
        return log.append(records)

    def _list_offsets(self, request: Any, codec: Api) -> Any:
        struck = self.cluster.strike(codec.key)

        def answer(topic: str, part: Any) -> Any:
            log = self._log(topic, part.partition_index, getattr(part, "current_leader_epoch", -1))
            code, offset, timestamp = ErrorCode.none, -1, -1
            if isinstance(struck, ErrorCode) or isinstance(log, ErrorCode):
                code = struck if isinstance(struck, ErrorCode) else log
            elif part.timestamp == -1:
                offset = log.end if request.replica_id == -2 else log.high_watermark
            elif part.timestamp == -2:
                offset = log.log_start
            else:
                found = next((r for r in log.records() if r.timestamp >= part.timestamp), None)
                offset, timestamp = (found.offset, found.timestamp) if found is not None else (-1, -1)
            return codec.make(
                "ListOffsetsPartitionResponse",
                partition_index=part.partition_index,
                error_code=code,
                offset=offset,
                timestamp=timestamp,
                leader_epoch=log.epoch if isinstance(log, PartitionLog) else -1,
            )

        topics = tuple(
            codec.make(
                "ListOffsetsTopicResponse",
                name=topic.name,
                partitions=tuple(answer(topic.name, part) for part in topic.partitions),
            )
            for topic in request.topics
        )
        return codec.response(topics=topics)

    def _offset_for_leader_epoch(self, request: Any, codec: Api) -> Any:
        def answer(topic: str, part: Any) -> Any:
            log = self._log(topic, part.partition, part.current_leader_epoch)
            code, epoch, end = (log, -1, -1) if isinstance(log, ErrorCode) else (ErrorCode.none, -1, -1)
            if isinstance(log, PartitionLog):
                epoch, end = log.epoch_end(part.leader_epoch)
            return codec.make(
                "EpochEndOffset",
                error_code=code,
                partition=part.partition,
                leader_epoch=epoch,
                end_offset=end,
            )

        topics = tuple(
            codec.make(
                "OffsetForLeaderTopicResult",
                topic=topic.topic,
                partitions=tuple(answer(topic.topic, part) for part in topic.partitions),
            )
            for topic in request.topics
        )
        return codec.response(topics=topics)

    async def _fetch(self, request: Any, codec: Api) -> Any:
        struck = self.cluster.strike(codec.key)
        if struck is HANG_UP:
            return HANG_UP
        if isinstance(struck, ErrorCode):
            return codec.response(error_code=struck, session_id=0, responses=())
        opened = self._session(request)
        if isinstance(opened, ErrorCode):
            return codec.response(error_code=opened, session_id=0, responses=())
        session_id, wanted = opened
        answers = self._read_all(request, codec, wanted)
        if not answers and request.max_wait:
            await asyncio.sleep(min(request.max_wait.total_seconds(), 0.01))
            answers = self._read_all(request, codec, wanted)
        topics: dict[str, list[Any]] = {}
        for (topic, _), answer in answers.items():
            topics.setdefault(topic, []).append(answer)
        return codec.response(
            error_code=ErrorCode.none,
            session_id=session_id,
            responses=tuple(
                codec.make(
                    "FetchableTopicResponse",
                    topic=topic,
                    topic_id=self.cluster.topic_ids.get(topic),
                    partitions=tuple(parts),
                )
                for topic, parts in topics.items()
            ),
        )

    def _session(self, request: Any) -> tuple[int, dict[tuple[str, int], Any]] | ErrorCode:
        session_id, epoch = request.session_id, request.session_epoch
        if epoch <= 0:
            self._sessions.pop(session_id, None)
            session_id = len(self._sessions) + 100 * self.node_id + len(self.requests) if epoch == 0 else 0
            wanted: dict[tuple[str, int], Any] = {}
        else:
            known = self._sessions.get(session_id)
            if known is None:
                return ErrorCode.fetch_session_id_not_found
            if known[0] != epoch:
                return ErrorCode.invalid_fetch_session_epoch
            wanted = known[1]
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                wanted.pop((self.cluster.topic_of(topic), partition), None)
        for topic in request.topics:
            for part in topic.partitions:
                wanted[self.cluster.topic_of(topic), part.partition] = part
        if epoch >= 0:
            self._sessions[session_id] = (epoch + 1, wanted)
        return session_id, wanted

    def forget_sessions(self) -> None:
        self._sessions.clear()

    def _read_all(
        self, request: Any, codec: Api, wanted: dict[tuple[str, int], Any]
    ) -> dict[tuple[str, int], Any]:
        full = request.session_epoch <= 0
        answers: dict[tuple[str, int], Any] = {}
        left = request.max_bytes
        for (topic, index), part in sorted(wanted.items(), key=lambda item: item[0]):
            answer = self._read_one(codec, topic, index, part, left if answers else max(left, 1))
            if full or answer.records or answer.error_code != ErrorCode.none or _diverges(answer):
                answers[topic, index] = answer
                left -= len(answer.records or b"")
        return answers

    def _read_one(self, codec: Api, topic: str, index: int, part: Any, left: int) -> Any:
        log = self._log(topic, index, getattr(part, "current_leader_epoch", -1))
        if isinstance(log, ErrorCode):
            return codec.make(
                "PartitionData", partition_index=index, error_code=log, high_watermark=-1, records=b""
            )
        fields: dict[str, Any] = {
            "partition_index": index,
            "error_code": ErrorCode.none,
            "high_watermark": log.high_watermark,
            "last_stable_offset": log.high_watermark,
            "log_start_offset": log.log_start,
            "records": b"",
        }
        last_epoch = getattr(part, "last_fetched_epoch", -1)
        if last_epoch >= 0:
            epoch, end = log.epoch_end(last_epoch)
            if epoch < last_epoch or end < part.fetch_offset:
                diverging = codec.make("EpochEndOffset", epoch=epoch, end_offset=end)
                return codec.make("PartitionData", **fields, diverging_epoch=diverging)
        if not log.log_start <= part.fetch_offset <= log.end:
            return codec.make("PartitionData", **{**fields, "error_code": ErrorCode.offset_out_of_range})
        if left > 0:
            fields["records"] = log.read(part.fetch_offset, min(part.partition_max_bytes, left))
        aborted = tuple(
            codec.make("AbortedTransaction", producer_id=pid, first_offset=first)
            for pid, first, last in log.aborted
            if last >= part.fetch_offset
        )
        return codec.make("PartitionData", **fields, aborted_transactions=aborted)


def _diverges(answer: Any) -> bool:
    diverging = getattr(answer, "diverging_epoch", None)
    return diverging is not None and diverging.end_offset >= 0
