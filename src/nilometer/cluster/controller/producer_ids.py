"""Allocating producer ids to brokers in blocks. No id is allocated twice, also not by another controller."""

from __future__ import annotations

import msgspec

from nilometer.cluster.controller.brokers import check_broker_epoch
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ProducerIdsAllocated
from nilometer.identifiers import BrokerEpoch, BrokerId
from nilometer.wire.errors import ErrorCode

PRODUCER_ID_BLOCK_SIZE = 1000
_PRODUCER_ID_MAX = (1 << 63) - 1


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """The ids ``first`` to ``first + count - 1``."""

    outcome: Outcome
    first: int = -1
    count: int = 0


def decide_allocate_producer_ids(
    image: ClusterImage, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> Decision[ProducerIdBlock]:
    try:
        check_broker_epoch(image, broker_id, broker_epoch)
        first = image.next_producer_id
        if first > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
            raise Refusal(ErrorCode.unknown_server_error, "All producer ids have been allocated.")
    except Refusal as refusal:
        return Decision((), ProducerIdBlock(refusal.outcome))
    allocated = ProducerIdsAllocated(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    return Decision(((allocated,),), ProducerIdBlock(OK, first, PRODUCER_ID_BLOCK_SIZE))
