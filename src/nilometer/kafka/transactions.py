"""Transactions: records, and the offsets of the records they were made from, become visible together."""

from __future__ import annotations

from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.kafka.records import Records
from nilometer.kafka.values import Data, Delivery, Headers, to_bytes, to_headers


class Transaction:
    """An open transaction: ``async with kafka.transaction("billing-1") as transaction``.

    It is committed at the end of the block, and aborted if the block raises.
    """

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self._offsets: list[tuple[Records, dict[TopicPartition, OffsetAndMetadata]]] = []

    async def send(
        self,
        topic: str,
        value: Data = None,
        *,
        key: Data = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send a record as part of the transaction; the commit waits for its acknowledgement.

        The parameters are those of ``Kafka.send``. Raises AbortableTransactionError if an earlier record of
        the transaction failed, FatalTransactionError.
        """
        return await self._producer.send(
            topic,
            to_bytes(value),
            key=to_bytes(key),
            headers=to_headers(headers),
            partition=partition,
            timestamp=timestamp,
        )

    async def commit_offsets(self, records: Records) -> None:
        """Commit the records that ``records`` has returned so far as part of the transaction.

        ``records`` needs a group, and ``auto_commit=False``. Raises AbortableTransactionError if the member
        has lost its partitions, FatalTransactionError.
        """
        offsets, member = records.processed()
        await self._producer.send_offsets(offsets, member)
        self._offsets.append((records, offsets))

    def on_committed(self) -> None:
        for records, offsets in self._offsets:
            records.on_committed(offsets)
