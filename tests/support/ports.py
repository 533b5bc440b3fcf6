"""Free loopback ports for servers that cannot use "port 0", or that restart on the same port.

They are below the range of ports for outgoing connections: within it, any connection of any test could take
the port of a server that has not started yet, or is down for a moment. For the same reason no other process
of tests gets a port that this one has returned, as long as this one runs.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
FIRST = 15_000
COUNT = 17_000

_next = itertools.count(os.getpid() * 101)
_taken = os.open(Path(tempfile.gettempdir(), "nilometer-test-ports"), os.O_RDWR | os.O_CREAT, 0o666)
"""Each process has a lock on the bytes at the numbers of its ports, which ends with the process."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` unused ports that this process has not returned before."""
    found: list[int] = []
    for _ in range(COUNT):
        if len(found) == count:
            return found
        port = FIRST + next(_next) % COUNT
        if _take(port) and is_free(port):
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


def _take(port: int) -> bool:
    """Return whether no other process of tests has this port."""
    try:
        fcntl.lockf(_taken, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
