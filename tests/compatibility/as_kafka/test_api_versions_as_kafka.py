"""The APIs and their versions that are advertised to clients: those of a default Apache Kafka broker."""

from __future__ import annotations

import pytest

from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from support.brokers.two_brokers import Side

pytestmark = pytest.mark.java

OF_THE_QUORUM = {94: (0, 0)}
"""UnregisterController: controllers are brokers, too."""


def advertised(side: Side, version: int) -> dict[int, tuple[int, int]]:
    told = side.ask(ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1")
    return {one["api_key"]: (one["min_version"], one["max_version"]) for one in told["api_keys"]}


@pytest.mark.parametrize("version", [3, 5])
def test_the_same_apis_in_the_same_versions(kafka: Side, nilometer: Side, version: int) -> None:
    theirs, ours = advertised(kafka, version), advertised(nilometer, version)
    own = {key: ours.pop(key) for key in list(ours) if key >= min(NilometerApiKey)}
    assert own
    assert {key: theirs.pop(key) for key in OF_THE_QUORUM} == OF_THE_QUORUM
    assert ours == theirs


def test_a_client_that_means_another_broker_or_cluster_is_sent_back(kafka: Side, nilometer: Side) -> None:
    """KIP-1242."""

    def told(side: Side, **meant: object) -> object:
        software = {"client_software_name": "test", "client_software_version": "1"}
        return side.ask(ApiKey.API_VERSIONS, 5, **software, **meant)["error_code"]

    for side in (kafka, nilometer):
        cluster_id = side.message(ApiKey.DESCRIBE_CLUSTER, 1).cluster_id
        assert told(side, cluster_id=cluster_id, node_id=1) == "none"
        assert told(side, cluster_id=cluster_id, node_id=2) == "rebootstrap_required"
        assert told(side, cluster_id="another", node_id=1) == "rebootstrap_required"
        assert told(side, cluster_id=cluster_id, node_id=-1) == "invalid_request"
        assert told(side, cluster_id=None, node_id=1) == "invalid_request"
        assert told(side, cluster_id=None, node_id=-1) == "none"
