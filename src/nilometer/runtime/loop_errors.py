"""What an event loop reports that no caller can be told."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger("nilometer.runtime")

_PEER_HAS_GONE = "the handler is closed"


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error that reached the event loop: an exception handler for :mod:`asyncio`.

    uvloop's TLS reports a RuntimeError if it still has bytes to send when its connection has been reset, or
    when an attempt to connect is cancelled at that moment. The peer has gone: that is no fault of this
    process, and the owner of the connection sees a reset. All else is logged with its traceback, also the
    same error of a task or a callback that writes to a connection that has ended.
    """
    error = context.get("exception")
    is_of_tls = type(context.get("protocol")).__name__ == "SSLProtocol"
    if is_of_tls and isinstance(error, RuntimeError) and _PEER_HAS_GONE in str(error):
        logger.debug("A TLS connection ended while it was being closed: %s", error)
    else:
        loop.default_exception_handler(context)
