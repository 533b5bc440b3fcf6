"""The boundary to the operating system: clock, disk, network, entropy.

A broker, a client or the coordination store accesses time, files, the network and randomness only through a
:class:`Runtime`. In production its parts are the operating system's; in simulation they are virtual and
driven by one seed.

In addition, code with I/O may use asyncio itself (tasks, futures, ``sleep``, ``call_later``): the simulation
replaces the event loop as a whole. Code outside this folder must not use threads, sockets, ``time``,
``random``, or those parts of asyncio whose order depends on object addresses (``TaskGroup``,
``asyncio.wait``). What a broker runs waits for futures with :func:`~nilometer.runtime.gathering.gather`.
"""

from nilometer.runtime.disk import Disk, DiskLock, DiskWatch, File, LockHeld
from nilometer.runtime.loggers import Loggers
from nilometer.runtime.network import Listener, Network
from nilometer.runtime.runtime import Clock, Entropy, Runtime, WithSecret, with_secret

__all__ = [
    "Clock",
    "Disk",
    "DiskLock",
    "DiskWatch",
    "Entropy",
    "File",
    "Listener",
    "LockHeld",
    "Loggers",
    "Network",
    "Runtime",
    "WithSecret",
    "with_secret",
]
