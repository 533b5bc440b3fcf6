"""Replies with one error for a whole request, set in every error field of its API."""

from __future__ import annotations

from typing import assert_never

from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsReply,
    DescribeTransaction,
    DescribeTransactionReply,
    EndTransaction,
    EndTransactionReply,
    InitProducerId,
    InitProducerIdReply,
    ListTransactions,
    ListTransactionsReply,
    MarkersWritten,
    MarkersWrittenReply,
    TimeOut,
    TimeOutReply,
    TransactionReply,
    TransactionRequest,
    VerifyPartitions,
    VerifyPartitionsReply,
)
from nilometer.wire.errors import ErrorCode


def refusal(request: TransactionRequest, error_code: ErrorCode) -> TransactionReply:
    match request:
        case InitProducerId():
            return InitProducerIdReply(error_code)
        case AddPartitions():
            return AddPartitionsReply(error_code)
        case VerifyPartitions():
            return VerifyPartitionsReply(tuple((each, error_code) for each in request.partitions))
        case EndTransaction():
            return EndTransactionReply(error_code)
        case MarkersWritten():
            return MarkersWrittenReply(completed=False)
        case TimeOut():
            return TimeOutReply(aborted=False)
        case DescribeTransaction():
            return DescribeTransactionReply(error_code, request.transactional_id)
        case ListTransactions():
            return ListTransactionsReply(error_code)
        case _:
            assert_never(request)
