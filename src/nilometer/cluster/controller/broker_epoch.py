"""Checking the broker epoch of a request: one from an earlier incarnation of a broker is rejected (KIP-380).

An *incarnation* is one session of a broker process; each gets a broker epoch when it registers.
"""

from __future__ import annotations

from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerEpoch, BrokerId
from nilometer.wire.errors import ErrorCode


def check_broker_epoch(image: ClusterImage, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
    """Raise Refusal: STALE_BROKER_EPOCH for an earlier broker epoch or a fenced broker, NOT_CONTROLLER for
    a later epoch than the image has.

    A later epoch means that the broker has read further in the metadata log: this controller is outdated, and
    the broker must find the current one (KAFKA-9839).
    """
    broker = image.broker(broker_id)
    if broker is None:
        raise Refusal(
            ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered"
        )
    if broker_epoch > broker.epoch:
        raise Refusal(
            ErrorCode.not_controller,
            f"Broker {broker_id} is registered with epoch {broker.epoch} here, not yet with {broker_epoch}",
        )
    if broker_epoch < broker.epoch or broker.fenced:
        raise Refusal(
            ErrorCode.stale_broker_epoch,
            f"Expected broker epoch {broker.epoch} of broker {broker_id}, but got {broker_epoch}"
            + (" of a fenced incarnation" if broker.fenced else ""),
        )
