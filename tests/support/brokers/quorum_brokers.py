"""Brokers that keep their metadata in a quorum of their own: `with QuorumBrokers(folder) as cluster: …`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..ports import HOST, free_ports
from .nilometer_broker import NilometerBroker
from .nilometer_cluster import NilometerCluster

KEY = "a key that only the nodes of this quorum have\n"


class QuorumBrokers(NilometerCluster):
    """``voters``: how many of the brokers vote; the others observe."""

    def __init__(
        self, folder: Path, brokers: int = 3, overrides: Mapping[str, str] | None = None, *, voters: int = 3
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key = folder / "quorum.key"
        self._key.touch(0o600)
        self._key.write_text(KEY)
        self.controllers = dict(zip(range(1, min(brokers, voters) + 1), free_ports(voters), strict=False))
        """The ports of the voters' listeners of controllers."""
        super().__init__(folder, brokers, overrides, coordination="quorum")

    def _configure(self, broker_id: int, port: int) -> None:
        voters = ",".join(f"{voter}@{HOST}:{at}" for voter, at in self.controllers.items())
        settings = {
            "process.roles": "broker",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "nilometer.quorum.secret.file": str(self._key),
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }
        if broker_id in self.controllers:
            own = f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{self.controllers[broker_id]}"
            settings |= {"process.roles": "broker,controller", "listeners": own}
        settings |= {**self._shared, **self._own.get(broker_id, {})}
        folder = self.folder / f"broker-{broker_id}"
        self.brokers[broker_id] = NilometerBroker(folder, settings, port, broker_id)

    def metadata_folder(self, broker_id: int) -> Path:
        return self.brokers[broker_id].data_dir / "__cluster_metadata-0"
