"""The clock, disk, network and entropy of a process, as one value."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nilometer.runtime.disk import Disk
from nilometer.runtime.loggers import Loggers, SystemLoggers
from nilometer.runtime.network import Network, SocketNetwork, open_files_max
from nilometer.runtime.object_store import FileObjectStore, ListedStore, OpenObjectStore, folder_of
from nilometer.runtime.system_disk import SystemDisk

# The clock: wall time and monotonic time, which must not be mixed.


class Clock(Protocol):
    """Wall time, for timestamps that users see; monotonic time, for durations and deadlines."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch. May jump forwards or backwards."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds from an arbitrary start.

        Never decreases; comparable within one process only.
        """
        ...

    def monotonic_us(self) -> int:
        """Return the time of :meth:`monotonic_ms` in microseconds, for short durations."""
        ...

    def thread_cpu_us(self) -> int:
        """Return the processor time that the calling thread has used, in microseconds."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def thread_cpu_us(self) -> int:
        return time.thread_time_ns() // 1_000


# The only source of randomness, so that a simulation can seed it.

T = TypeVar("T")


class Entropy(Protocol):
    def uuid(self) -> uuid.UUID:
        """Return a random (version 4) UUID."""
        ...

    def bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes that cannot be guessed, for keys and nonces."""
        ...

    def below(self, bound: int) -> int:
        """Return an integer in ``[0, bound)``; ``bound`` must be positive."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """Return a number in ``[low, high]``, for example as jitter of a back-off."""
        ...

    def choice(self, options: Sequence[T]) -> T:
        """Return one of ``options``, which must not be empty."""
        ...


class SeededEntropy:
    """Entropy drawn from a ``random.Random``: the system's by default, a seeded one for replay."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source if source is not None else random.SystemRandom()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]


def open_object_store(uri: str, writer: str) -> ListedStore:
    """Open the store at ``uri``, in a process of which ``writer`` is the unique name.

    Its files have threads of their own: a store that hangs must not hold up the logs. Raises ValueError.
    """
    folder = folder_of(uri)
    if folder is not None:
        return FileObjectStore(SystemDisk(), folder, writer)
    if not uri.startswith("s3://"):
        raise ValueError("the URI of a store begins with file:/// or s3://")
    try:
        from nilometer.runtime.object_store_s3 import S3ObjectStore  # an extra: few brokers use it
    except ModuleNotFoundError as error:
        raise ValueError("a store at s3:// needs an extra: pip install 'nilometer[s3]'") from error
    return S3ObjectStore(uri)


class WithSecret(Protocol):
    def __call__(self, name: str, work: Callable[[], T]) -> T:
        """Return what ``work`` makes of a secret: it is no secret itself, and the flight recorder has it.

        Its replay does not call ``work``: it needs no secret, and works with another one in its place.
        """
        ...


def with_secret(name: str, work: Callable[[], T]) -> T:
    return work()


_LOGGERS = SystemLoggers()


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    disk: Disk
    network: Network
    entropy: Entropy
    open_files_max: int = 1_024
    """How many files may be kept open."""
    open_object_store: OpenObjectStore = open_object_store
    """Opens what remote storage is in."""
    with_secret: WithSecret = with_secret
    loggers: Loggers = _LOGGERS

    @classmethod
    def system(cls) -> Runtime:
        """Return the operating system's clocks, files, TCP and randomness."""
        return cls(SystemClock(), SystemDisk(), SocketNetwork(), SeededEntropy(), open_files_max())
