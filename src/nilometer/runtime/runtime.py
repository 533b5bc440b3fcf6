"""The clock, disk, network and entropy of a process, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.runtime.clock import Clock, SystemClock
from nilometer.runtime.disk import Disk
from nilometer.runtime.entropy import Entropy, SeededEntropy
from nilometer.runtime.network import Network, SocketNetwork
from nilometer.runtime.system_disk import SystemDisk


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    disk: Disk
    network: Network
    entropy: Entropy

    @classmethod
    def system(cls) -> Runtime:
        """Return the operating system's clocks, files, TCP and randomness."""
        return cls(SystemClock(), SystemDisk(), SocketNetwork(), SeededEntropy())
