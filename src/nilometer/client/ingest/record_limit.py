"""The maximum size of a record, from ``max.request.size`` and the topic's ``max.message.bytes``.

It is read before anything is sent, so that a line that is too long is detected before later lines are in the
topic. If this client may not read the topic's configuration, a broker must reject the record.
"""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.descriptions import ResourceType
from nilometer.client.producer.accumulator import size_bound
from nilometer.client.producer.producer import Headers
from nilometer.client.producer.producer_config import ProducerConfig
from nilometer.client.settings.client_settings import GivenConfig
from nilometer.runtime import Runtime
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES
from nilometer.wire.records import BatchBuilder

MESSAGE_BYTES_KEY = "max.message.bytes"
SETTINGS_NOT_TOLD = frozenset(
    {
        ErrorCode.unsupported_version,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)


@dataclass(frozen=True, slots=True)
class RecordLimit:
    request_bytes: int
    """``max.request.size``: the limit for a record before compression."""
    message_bytes: int | None = None
    """The topic's ``max.message.bytes``: the limit for a batch after compression; None if unknown."""
    codec: Codec = Codec.NONE
    level: int | None = None

    def value_bytes(self, key: bytes | None, headers: Headers) -> int:
        """Return the size up to which every value fits; 0 if none does."""
        most = self.request_bytes
        if self.message_bytes is not None:
            most = min(most, self.message_bytes - HEADER_BYTES)
        return max(most - size_bound(key, b"", headers), 0)

    def value_bytes_max(self, key: bytes | None, headers: Headers) -> int:
        """Return the size above which no value fits, however well it compresses."""
        return max(self.request_bytes - size_bound(key, b"", headers), 0)

    def fits(self, key: bytes | None, value: bytes, headers: Headers) -> bool:
        """Whether the record fits, if compressed alone in its batch."""
        if size_bound(key, value, headers) > self.request_bytes:
            return False
        if self.message_bytes is None:
            return True
        batch = BatchBuilder(self.codec, level=self.level)
        batch.append(0, key, value, headers)
        return len(batch.build()) <= self.message_bytes

    def __str__(self) -> str:
        named = [f"max.request.size is {self.request_bytes}"]
        if self.message_bytes is not None:
            named.append(f"the topic's {MESSAGE_BYTES_KEY} {self.message_bytes}")
        return " and ".join(named)


async def learn_record_limit(
    runtime: Runtime, common: GivenConfig, producer: ProducerConfig, topic: str
) -> RecordLimit:
    """Return the limit for records of ``topic``. Raises KafkaError.

    ``common`` are the settings to connect with; ``producer`` has the size limit and the compression.
    """
    message_bytes: int | None = None
    try:
        async with Admin(runtime, common) as admin:
            entry = (await admin.describe_configs(ResourceType.TOPIC, topic)).get(MESSAGE_BYTES_KEY)
        if entry is not None and entry.value is not None:
            message_bytes = int(entry.value)
    except KafkaError as error:
        if error.code not in SETTINGS_NOT_TOLD:
            raise
    return RecordLimit(producer.max_request_size, message_bytes, producer.codec, producer.level)
