"""Errors of transactions, as older versions of their APIs know them."""

from __future__ import annotations

from nilometer.wire.errors import ErrorCode


def error_for(error: ErrorCode, version: int, first_with_producer_fenced: int) -> ErrorCode:
    """Return ``error``, or INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in versions that do not know it: there
    it is as fatal."""
    if error is ErrorCode.producer_fenced and version < first_with_producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return error
