"""Brokers of two versions in one cluster: no broker writes what another one cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message
from support.brokers.earlier_version import PROGRAM
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make

WAIT_S = 60.0
GROUP, TOPIC = 32, 2
EARLIER, PRESENT = (str(PROGRAM),), ("-m", "nilometer.broker")
FORMAT = "nilometer.metadata.format"


def alter(broker: NilometerBroker, resource_type: int, name: str, key: str, value: str) -> Message:
    """Set a key of one resource; return the resource's result."""
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    change = make(api, 1, "AlterableConfig", name=key, config_operation=0, value=value)
    resource = make(
        api, 1, "AlterConfigsResource", resource_type=resource_type, resource_name=name, configs=(change,)
    )
    with WirePeer(broker.bootstrap) as peer:
        (result,) = peer.ask(api, 1, resources=(resource,), validate_only=False).responses
    return result


def alter_group(broker: NilometerBroker) -> Message:
    return alter(broker, GROUP, "readers", "consumer.session.timeout.ms", "50000")


def raise_format(broker: NilometerBroker) -> Message:
    update = make(
        ApiKey.UPDATE_FEATURES, 2, "FeatureUpdateKey", feature=FORMAT, max_version_level=3, upgrade_type=1
    )
    with WirePeer(broker.bootstrap) as peer:
        return peer.ask(ApiKey.UPDATE_FEATURES, 2, feature_updates=(update,), timeout_ms=30_000)


def finalized(broker: NilometerBroker) -> dict[str, int]:
    with WirePeer(broker.bootstrap) as peer:
        answer = peer.ask(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    return {feature.name: feature.max_version_level for feature in answer.finalized_features}


def retention_at(broker: NilometerBroker) -> str | None:
    """The setting of topic ``t`` as this broker describes it."""
    api = ApiKey.DESCRIBE_CONFIGS
    resource = make(
        api,
        4,
        "DescribeConfigsResource",
        resource_type=TOPIC,
        resource_name="t",
        configuration_keys=("retention.ms",),
    )
    with WirePeer(broker.bootstrap) as peer:
        (result,) = peer.ask(api, 4, resources=(resource,), include_documentation=False).results
    return next((config.value for config in result.configs), None)


def test_group_settings_wait_for_the_last_broker_of_an_upgrade(tmp_path: Path) -> None:
    cluster = NilometerCluster(tmp_path / "cluster", brokers=2)
    upgraded, earlier = cluster.brokers[1], cluster.brokers[2]
    upgraded.program = earlier.program = EARLIER
    with cluster:
        assert FORMAT not in finalized(upgraded)
        cluster.create_topic("t")

        cluster.stop(1)
        upgraded.program = PRESENT
        cluster.start(1)
        cluster.stop(2)  # so that the upgraded broker is the controller that decides
        cluster.start(2)
        eventually(lambda: cluster.controller() == 1, "the upgraded broker is the controller", WAIT_S)

        for asked in (upgraded, earlier):
            refused = alter_group(asked)
            assert refused.error_code is ErrorCode.unsupported_version, refused
            assert f"upgrade --feature {FORMAT}=3" in refused.error_message
        refused = raise_format(upgraded)
        assert refused.error_code is ErrorCode.invalid_update_version, refused
        assert "Broker 2 does not support this feature" in refused.error_message
        assert alter(upgraded, TOPIC, "t", "retention.ms", "7200000").error_code is ErrorCode.none
        eventually(lambda: retention_at(earlier) == "7200000", "the earlier version follows", WAIT_S)

        cluster.stop(2)
        earlier.program = PRESENT
        cluster.start(2)
        assert raise_format(upgraded).error_code is ErrorCode.none
        eventually(lambda: finalized(earlier).get(FORMAT) == 3, "both brokers follow", WAIT_S)
        for asked in (upgraded, earlier):
            assert alter_group(asked).error_code is ErrorCode.none

        cluster.stop(2)
        earlier.program = EARLIER
        with pytest.raises(RuntimeError, match=r"upgrade this broker|does not support level 3"):
            cluster.start(2)
