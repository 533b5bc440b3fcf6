"""A small network for a test: a network namespace per node on one bridge, whose links can be cut one way.

Every node has a namespace with one interface; the bridge has a namespace too, so nothing is visible on the
host. All neighbours have permanent hardware addresses, and a cut from A to B is a wrong address for B at A:
packets from A to B are lost without an error, as with a pulled cable.

Needs root and `ip`. Threads and processes inherit the namespace of the thread that starts them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

SUBNET = "10.77.0"
NOWHERE = "02:77:ff:ff:ff:ff"
INTERFACE = "eth0"
CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


def is_available() -> bool:
    """Whether this process can create namespaces and links."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"nlm{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    linked = subprocess.run(
        ["ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
        capture_output=True,
        check=False,
    )
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return linked.returncode == 0


class ChaosNetwork:
    """`with ChaosNetwork(["b1", "b2", "clients"]) as network: … with network.entered("b1"): …`."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._prefix = f"nlm{os.getpid()}-{next(_numbers)}-"
        self._numbers = {node: number for number, node in enumerate(nodes, start=1)}
        self._bridge = self._prefix + "bridge"
        self._cuts: dict[tuple[str, str], None] = {}

    @property
    def nodes(self) -> list[str]:
        return list(self._numbers)

    def address(self, node: str) -> str:
        return f"{SUBNET}.{self._numbers[node]}"

    def __enter__(self) -> ChaosNetwork:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in (*(self._prefix + node for node in self._numbers), self._bridge):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    @contextlib.contextmanager
    def entered(self, node: str) -> Iterator[None]:
        """Put this thread, and all that it starts, into the namespace of ``node`` during the block."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            there = os.open(Path("/run/netns") / (self._prefix + node), os.O_RDONLY)
            try:
                _set_namespace(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _set_namespace(before)
        finally:
            os.close(before)

    # --- faults

    def cut(self, sender: str, receiver: str) -> None:
        """Lose all packets from ``sender`` to ``receiver``; the other direction still works."""
        self._cuts[sender, receiver] = None
        self._point(sender, receiver, NOWHERE)

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, node: str, *others: str) -> None:
        """Cut ``node`` off from ``others``, both ways (from all, if none is named)."""
        for other in others or [one for one in self._numbers if one != node]:
            self.cut_both(node, other)

    def heal(self) -> None:
        """Restore all links."""
        for sender, receiver in list(self._cuts):
            self._point(sender, receiver, self._hardware_address(receiver))
        self._cuts.clear()

    # --- implementation

    def _build(self) -> None:
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "bridge0", "up")
        for node, number in self._numbers.items():
            name = self._prefix + node
            _ip("netns", "add", name)
            port = f"port{number}"
            _ip("link", "add", port, "netns", self._bridge, "type", "veth", "peer", INTERFACE, "netns", name)
            _ip("-n", self._bridge, "link", "set", port, "master", "bridge0", "up")
            _ip("-n", name, "link", "set", INTERFACE, "address", self._hardware_address(node), "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{self.address(node)}/24", "dev", INTERFACE)
        for node, other in itertools.permutations(self._numbers, 2):
            self._point(node, other, self._hardware_address(other))

    def _hardware_address(self, node: str) -> str:
        return f"02:77:00:00:00:{self._numbers[node]:02x}"

    def _point(self, node: str, other: str, hardware_address: str) -> None:
        neighbour = (self.address(other), "lladdr", hardware_address, "nud", "permanent")
        _ip("-n", self._prefix + node, "neighbour", "replace", *neighbour, "dev", INTERFACE)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter the network namespace: {os.strerror(error)}")
