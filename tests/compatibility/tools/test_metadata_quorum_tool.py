"""kafka-metadata-quorum.sh of Kafka 4.4.0, unmodified, changes the voters of Nilometer's brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.brokers.quorum_brokers import QuorumBrokers
from support.brokers.quorum_clients import described
from support.brokers.quorum_nodes import JAAS, login
from support.kafka.apache_kafka import run_tool
from support.ports import HOST

pytestmark = pytest.mark.java

TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"


def test_a_controller_is_added_by_a_broker_and_removed_by_a_controller(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 1, voters=1, has_key=False) as cluster:
        joiner = cluster.add_controller()
        config = tmp_path / "controller.properties"
        config.write_text(
            f"node.id={joiner}\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n"
            f"listeners=CONTROLLER://{HOST}:{cluster.joiners[joiner]}\n"
            f"log.dirs={cluster.brokers[joiner].data_dir}\n"
        )
        brokers = ("--bootstrap-server", cluster.bootstrap)
        added = run_tool(TOOL, *brokers, "--command-config", str(config), "add-controller")
        directory = cluster.directory_id(joiner)
        assert f"Added controller {joiner} with directory id {directory}" in added
        controllers = ("--bootstrap-controller", f"{HOST}:{cluster.joiners[joiner]}")
        status = run_tool(TOOL, *controllers, "describe", "--status")
        assert "LeaderId:               1" in status
        assert f'"id": {joiner}, "directoryId": "{directory}"' in status
        which = ("--controller-id", str(joiner), "--controller-directory-id", directory)
        removed = run_tool(TOOL, *controllers, "remove-controller", *which)
        assert f"Removed KRaft controller {joiner} with directory id {directory}" in removed
        found = described(cluster, joiner)
        assert found is not None
        assert (found.voters, found.observers) == ([1], [joiner])
        with pytest.raises(RuntimeError, match="VoterNotFoundException"):
            run_tool(TOOL, *brokers, "remove-controller", *which)


def test_a_user_logs_in_to_a_controller(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 1, login(), voters=1, has_key=False) as cluster:
        config = tmp_path / "client.properties"
        controllers = ("--bootstrap-controller", f"{HOST}:{cluster.controllers[1]}")
        for user, is_let_in in (("node", True), ("other", False)):
            config.write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\ndefault.api.timeout.ms=5000\n"
                f"request.timeout.ms=2000\nsasl.jaas.config={login(user)[JAAS]}\n"
            )
            asked = (*controllers, "--command-config", str(config), "describe", "--status")
            if is_let_in:
                assert "LeaderId:               1" in run_tool(TOOL, *asked)
            else:
                with pytest.raises(RuntimeError, match="TimeoutException"):
                    run_tool(TOOL, *asked)
                assert "its user, 'User:other', is none of super.users" in cluster.output()
