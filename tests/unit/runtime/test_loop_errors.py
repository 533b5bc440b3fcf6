"""Which errors of the event loop reach the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from nilometer.runtime.event_loop import on_loop_error


class SSLProtocol:
    """Named as uvloop's, which only a TLS connection makes."""


RESET = "unable to perform operation on <TCPTransport closed=True reading=False 0x55>; the handler is closed"


async def logged(context: dict[str, Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    loop.call_exception_handler({"message": "Error occurred during shutdown", **context})
    return [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]


async def test_a_peer_that_goes_while_its_tls_connection_is_closed_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await logged({"exception": RuntimeError(RESET), "protocol": SSLProtocol()}, caplog) == []


@pytest.mark.parametrize(
    "context",
    [
        {"exception": RuntimeError("dictionary changed size"), "protocol": SSLProtocol()},
        {"exception": ValueError(RESET), "protocol": SSLProtocol()},
        {"exception": RuntimeError(RESET), "handle": "a callback that writes after the end"},
        {"protocol": SSLProtocol()},
    ],
    ids=["another RuntimeError", "another exception", "not of TLS", "no exception"],
)
async def test_every_other_error_is_logged(context: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    (message,) = await logged(context, caplog)
    assert message.startswith("Error occurred during shutdown")
