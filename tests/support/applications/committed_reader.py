"""Reads a topic from its first record on with ``read_committed``, and collects the records."""

from __future__ import annotations

from types import TracebackType

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ..eventually import eventually

BATCH = 1_000
LOOK_S = 0.2
WAIT_S = 120.0


class CommittedReader:
    """Use as `with CommittedReader(bootstrap, "t", partitions=3) as reader: reader.look()`; has no group."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        self._seen: list[Message] = []
        self._to_end = set(range(partitions))

    def look(self) -> list[Message]:
        """Poll once, and return all records read so far, each partition's in order of offsets."""
        for message in self._consumer.consume(BATCH, LOOK_S):
            error = message.error()
            if error is None:
                self._seen.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._to_end.discard(message.partition())
            elif not error.retriable():
                raise AssertionError(f"{message.topic()}-{message.partition()}: {error}")
        return self._seen

    def was_at_ends(self) -> bool:
        """Whether it has reached the end of every partition once, so that all earlier records are read."""
        return not self._to_end

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> CommittedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def committed_records(bootstrap: str, topic: str, partitions: int = 1) -> list[Message]:
    """Return all committed records of a topic."""
    with CommittedReader(bootstrap, topic, partitions) as reader:
        eventually(lambda: reader.look() is not None and reader.was_at_ends(), f"{topic} is read", WAIT_S)
        return reader.look()
