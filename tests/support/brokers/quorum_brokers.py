"""Brokers that keep their metadata in a quorum of their own: `with QuorumBrokers(folder) as cluster: …`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..ports import HOST, free_ports
from .nilometer_broker import NilometerBroker, Place
from .nilometer_cluster import NilometerCluster

KEY = "a key that only the nodes of this quorum have\n"


def write_key(path: Path, key: str) -> Path:
    """Write a key file, which only its owner can read."""
    path.touch(0o600)
    path.write_text(key)
    return path


class QuorumBrokers(NilometerCluster):
    """``voters``: how many of the brokers vote; the others observe."""

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        overrides: Mapping[str, str] | None = None,
        *,
        voters: int = 3,
        own_overrides: Mapping[int, Mapping[str, str]] | None = None,
        places: Mapping[int, Place] | None = None,
        has_key: bool = True,
    ) -> None:
        """``has_key``: else who connects from this machine is let in, as a tool of Kafka's."""
        self._has_key = has_key
        folder.mkdir(parents=True, exist_ok=True)
        self._key = write_key(folder / "quorum.key", KEY)
        self.controllers = dict(zip(range(1, min(brokers, voters) + 1), free_ports(voters), strict=False))
        """The ports of the first voters' listeners of controllers."""
        self.joiners: dict[int, int] = {}
        """The ports of those that were added later: :meth:`add_controller`."""
        super().__init__(
            folder,
            brokers,
            overrides,
            coordination="quorum",
            own_overrides=own_overrides,
            places=places,
        )

    def _host(self, broker_id: int) -> str:
        place = self._places.get(broker_id)
        return HOST if place is None else place.host

    def _configure(self, broker_id: int, port: int) -> None:
        voters = ",".join(f"{voter}@{self._host(voter)}:{at}" for voter, at in self.controllers.items())
        found_by = {"controller.quorum.voters": voters}
        if broker_id in self.joiners:
            servers = voters.replace("@", ",").split(",")[1::2]
            found_by = {"controller.quorum.bootstrap.servers": ",".join(servers)}
        settings = {
            "process.roles": "broker",
            **found_by,
            "controller.listener.names": "CONTROLLER",
            **({"nilometer.quorum.secret.file": str(self._key)} if self._has_key else {}),
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }
        own_port = self.controllers.get(broker_id) or self.joiners.get(broker_id)
        if own_port is not None:
            host = self._host(broker_id)
            own = f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{own_port}"
            settings |= {"process.roles": "broker,controller", "listeners": own}
        settings |= {**self._shared, **self._own.get(broker_id, {})}
        folder = self.folder / f"broker-{broker_id}"
        place = self._places.get(broker_id)
        self.brokers[broker_id] = NilometerBroker(folder, settings, port, broker_id, place)

    def add_controller(self, overrides: Mapping[str, str] | None = None) -> int:
        """Start one more broker, which may vote, but is no voter yet; return its id."""
        self.joiners[max(self.brokers) + 1] = free_ports(1)[0]
        return self.add_broker(overrides)

    def move_controller(self, broker_id: int, port: int) -> None:
        """Let a voter that is down listen for the others at another port, which only itself knows."""
        self.controllers[broker_id] = port
        self._configure(broker_id, self.brokers[broker_id].port)

    def change_settings(self, broker_id: int, overrides: Mapping[str, str]) -> None:
        """Give a broker that is down settings of its own, in place of those that it had."""
        self._own = {**self._own, broker_id: overrides}
        self._configure(broker_id, self.brokers[broker_id].port)

    def directory_id(self, broker_id: int) -> str:
        text = (self.brokers[broker_id].data_dir / "meta.properties").read_text()
        return next(line.partition("=")[2] for line in text.splitlines() if line.startswith("directory.id"))

    def metadata_folder(self, broker_id: int) -> Path:
        return self.brokers[broker_id].data_dir / "__cluster_metadata-0"
