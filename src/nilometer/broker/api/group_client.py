"""The client of a request, as groups record it for their members."""

from __future__ import annotations

from nilometer.broker.api.spec import Request


def client_id(request: Request) -> str:
    return request.header.client_id or ""


def client_host(request: Request) -> str:
    """Return the client's IP address after a slash, as Kafka (Java) prints an address without a host name."""
    return f"/{request.connection.peer[0]}"
