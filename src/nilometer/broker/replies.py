"""The response to one request, now or later."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.runtime.direct_future import DirectFuture
from nilometer.wire.compression import Bytes

Reply = Sequence[Bytes] | None
"""The response to one request: buffers that form a frame, or None for no response (acks=0)."""


class CloseConnection(Exception):
    """No response in a format that the client understands is possible: the connection is closed, and the
    reason logged."""


class WaitingReply(DirectFuture[Reply]):
    """The response to a request that waits for another event: records, an acknowledgement.

    It leaves with that event. Since that may be an append, whose effects are being applied, its listeners
    must not process another request. It is cancelled if the client disconnects.
    """

    __slots__ = ()
