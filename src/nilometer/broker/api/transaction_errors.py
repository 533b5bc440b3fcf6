"""Errors of transactions in the words of older versions of their APIs."""

from __future__ import annotations

from nilometer.wire.errors import ErrorCode


def error_for(error: ErrorCode, version: int, first_with_producer_fenced: int) -> ErrorCode:
    """PRODUCER_FENCED where the version knows it, else INVALID_PRODUCER_EPOCH, which is as fatal there."""
    if error is ErrorCode.producer_fenced and version < first_with_producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return error
