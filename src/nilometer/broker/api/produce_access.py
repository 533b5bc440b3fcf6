"""What a producer may not write: topics without WRITE, and transactions of another's transactional id."""

from __future__ import annotations

from uuid import UUID

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import Request
from nilometer.broker.authorization.access import Access
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.image import ClusterImage
from nilometer.wire.produce import ProduceBody
from nilometer.wire.record_batch import BatchHeader, CorruptBatch, UnsupportedMagic, read_header

NO_TOPICS: frozenset[str | UUID] = frozenset()


def denied_topics(services: Services, request: Request) -> frozenset[str | UUID]:
    """Return the topics of the request, as it names them, that its principal may not write to."""
    if services.authorizer is None:
        return NO_TOPICS
    access, body = access_of(services, request), request.body
    return frozenset(
        topic.topic for topic in body.topics if not _may_write(access, services.image, topic.topic)
    )


def _may_write(access: Access, image: ClusterImage, topic: str | UUID) -> bool:
    if isinstance(topic, UUID):
        found = image.topic_by_uuid(topic)
        if found is None:
            return True  # the topic does not exist: the response may say so
        topic = found.name
    return access.allows(Operation.WRITE, ResourceType.TOPIC, topic)


def is_transaction_denied(services: Services, request: Request) -> bool:
    """Return whether a batch of the request is part of a transaction that its principal may not write."""
    if services.authorizer is None:
        return False
    access, body = access_of(services, request), request.body
    if access.is_full or not _has_transactional_batches(body):
        return False
    transactional_id: str | None = body.transactional_id
    return transactional_id is None or not access.allows(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _has_transactional_batches(body: ProduceBody) -> bool:
    headers = (sequenced(part.records) for topic in body.topics for part in topic.partitions)
    return any(header is not None and header.is_transactional for header in headers)


def sequenced(records: memoryview | None) -> BatchHeader | None:
    """Return the header of the first batch; None if it cannot be read or has no producer id."""
    if not records:
        return None
    try:
        header = read_header(records)
    except (CorruptBatch, UnsupportedMagic):
        return None
    return header if header.producer_id >= 0 else None
