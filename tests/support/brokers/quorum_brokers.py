"""Brokers that keep their metadata in a quorum of their own: `with QuorumBrokers(folder) as cluster: …`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..ports import HOST, free_ports
from .nilometer_broker import NilometerBroker, Place
from .nilometer_cluster import NilometerCluster

KEY = "a key that only the nodes of this quorum have\n"


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
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key = folder / "quorum.key"
        self._key.touch(0o600)
        self._key.write_text(KEY)
        self.controllers = dict(zip(range(1, min(brokers, voters) + 1), free_ports(voters), strict=False))
        """The ports of the voters' listeners of controllers."""
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
        settings = {
            "process.roles": "broker",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "nilometer.quorum.secret.file": str(self._key),
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }
        if broker_id in self.controllers:
            host = self._host(broker_id)
            own = f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{self.controllers[broker_id]}"
            settings |= {"process.roles": "broker,controller", "listeners": own}
        settings |= {**self._shared, **self._own.get(broker_id, {})}
        folder = self.folder / f"broker-{broker_id}"
        place = self._places.get(broker_id)
        self.brokers[broker_id] = NilometerBroker(folder, settings, port, broker_id, place)

    def metadata_folder(self, broker_id: int) -> Path:
        return self.brokers[broker_id].data_dir / "__cluster_metadata-0"
