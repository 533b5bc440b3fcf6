"""Free loopback ports for servers that cannot be told "port 0"."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Distinct ports nobody listens on; held together while they are chosen, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind((HOST, 0))
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()
