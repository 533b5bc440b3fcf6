"""One connection: two ends and the two directions between them."""

from __future__ import annotations

import errno

from nilometer.simulation.direction import Direction
from nilometer.simulation.fabric import Fabric, NetworkUser
from nilometer.simulation.transport import VirtualTransport


class Connection:
    def __init__(
        self, fabric: Fabric, number: int, client: NetworkUser, server: NetworkUser, server_port: int
    ) -> None:
        self._fabric = fabric
        self.number = number
        near, far = client.host.name, server.host.name
        self.hosts = (near, far)
        out = Direction(fabric, f"{number} {client.name}>{server.name}", near, far)
        back = Direction(fabric, f"{number} {server.name}>{client.name}", far, near)
        ends = (near, fabric.next_port(near)), (far, server_port)
        self.client = VirtualTransport(fabric, client, out, back, ends[0], ends[1])
        self.server = VirtualTransport(fabric, server, back, out, ends[1], ends[0])
        self.client.on_closed = self.server.on_closed = self.forget_if_done
        out.sender = back.receiver = self.client
        out.receiver = back.sender = self.server
        self._directions = (out, back)
        observers = fabric.observer.on_connection(client, server) if fabric.observer is not None else None
        if observers is not None:
            out.observer, back.observer = observers

    def is_open_to(self, server: object) -> bool:
        return self.server.process is server and not self.server.closed

    def on_heal(self, source: str, target: str) -> None:
        for direction in self._directions:
            direction.on_heal(source, target)

    def on_host_up(self, name: str) -> None:
        near, far = self.hosts
        self.on_heal(near, far)
        self.on_heal(far, near)
        self.forget_if_done()

    def on_process_gone(self, process: NetworkUser) -> None:
        for end in (self.client, self.server):
            if end.process is process:
                end.on_process_gone()
        self.forget_if_done()

    def reset(self) -> None:
        error = "reset by the network"
        for end in (self.client, self.server):
            end.on_lost(ConnectionResetError(errno.ECONNRESET, error))

    def forget_if_done(self) -> None:
        done = self.client.closed and self.server.closed
        if done and self in self._fabric.connections:
            self._fabric.connections.remove(self)
