"""Free loopback ports for servers that cannot use "port 0", or that restart on the same port.

They are below the range of ports for outgoing connections: within it, any connection of any test could take
the port of a server that has not started yet, or is down for a moment.
"""

from __future__ import annotations

import itertools
import os
import socket

HOST = "127.0.0.1"
FIRST = 15_000
COUNT = 17_000

_next = itertools.count(os.getpid() * 101)


def free_ports(count: int) -> list[int]:
    """Return ``count`` unused ports that this process has not returned before."""
    found: list[int] = []
    for _ in range(COUNT):
        if len(found) == count:
            return found
        port = FIRST + next(_next) % COUNT
        if is_free(port):
            found.append(port)
    raise AssertionError(f"no {count} free ports between {FIRST} and {FIRST + COUNT}")


def neighbouring_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports."""
    while True:
        ports = free_ports(count)
        if ports == list(range(ports[0], ports[0] + count)):
            return ports[0]


def ports_with_others_above(count: int) -> int:
    """Return the first of ``count`` consecutive free ports; those 1,000 above belong to no other test."""
    while (first := neighbouring_ports(count)) < FIRST + COUNT - 1_000:
        pass
    return first


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
