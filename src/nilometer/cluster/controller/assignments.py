"""The brokers that may get replicas of a partition, by placement or by manual assignment."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.placement import UsableBroker
from nilometer.cluster.records import Replicas
from nilometer.identifiers import BrokerId
from nilometer.wire.errors import ErrorCode


def usable_brokers(image: ClusterImage) -> list[UsableBroker]:
    """Return all brokers that may get new replicas: those not in controlled shutdown."""
    return [
        UsableBroker(broker.id, broker.rack, not broker.fenced)
        for broker in image.brokers()
        if not broker.in_controlled_shutdown
    ]


def check_assignment(
    image: ClusterImage, replicas: Sequence[BrokerId], replication_factor: int | None = None
) -> None:
    """Check a manual assignment of one partition; ``replication_factor`` is that of the other partitions.

    Raises Refusal if it is invalid.
    """
    if not replicas:
        raise _refused("The manual partition assignment includes an empty replica list.")
    seen: set[BrokerId] = set()
    for broker in sorted(replicas):
        if image.broker(broker) is None:
            raise _refused(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker in seen:
            raise _refused(f"The manual partition assignment includes the broker {broker} more than once.")
        seen.add(broker)
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _refused(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
            f"is not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def first_isr(image: ClusterImage, replicas: Replicas) -> Replicas:
    """Return the first ISR of a new partition: every replica whose broker is active."""
    return tuple(broker for broker in replicas if image.is_active(broker))


def _refused(message: str) -> Refusal:
    return Refusal(ErrorCode.invalid_replica_assignment, message)
