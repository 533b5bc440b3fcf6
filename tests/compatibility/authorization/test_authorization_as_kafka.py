"""Every API under every right, with resources that exist and that do not, as Apache Kafka answers it.

Apache Kafka has its StandardAuthorizer; `support.authorization` has the rights and the requests. Compared are
whole answers: error codes, the names and ids shown, and the bit sets of authorized operations.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.authorization.prepared import AUTHORIZED, PreparedBroker
from support.authorization.probes import NOT_PROBED, probes
from support.authorization.profiles import Profile, profiles
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.served_apis import APIS
from support.brokers.two_brokers import CLOSED, differences
from support.kafka.apache_kafka import ApacheKafka

pytestmark = pytest.mark.java
PROFILES = profiles()


def test_every_api_has_a_probe() -> None:
    """An API that is added here without a probe must say why."""
    probed = {int(probe.key) for probe in probes()}
    assert probed.isdisjoint(map(int, NOT_PROBED))
    assert probed | set(map(int, NOT_PROBED)) == set(APIS)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedBroker]:
    apache = ApacheKafka(tmp_path_factory.mktemp("authorized-kafka"), overrides=AUTHORIZED)
    try:
        apache.start()
        yield PreparedBroker("Apache Kafka", apache.bootstrap, PROFILES)
    finally:
        apache.kill()


@pytest.fixture(scope="module")
def nilometer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedBroker]:
    folder = tmp_path_factory.mktemp("authorized") / "data"
    with NilometerBroker(folder, AUTHORIZED) as broker:
        yield PreparedBroker("Nilometer", broker.bootstrap, PROFILES)
    assert "Traceback" not in broker.output


@pytest.mark.parametrize("profile", [pytest.param(each, id=each.name) for each in PROFILES])
def test_answers_are_those_of_kafka(
    kafka: PreparedBroker, nilometer: PreparedBroker, profile: Profile
) -> None:
    found: list[str] = []
    with kafka.client(profile) as theirs, nilometer.client(profile) as ours:
        for probe in probes():
            answers = [
                client.ask(probe.key, probe.version, **probe.fields(broker.names(profile)))
                for client, broker in ((theirs, kafka), (ours, nilometer))
            ]
            expected, here = (each if each == CLOSED else probe.compared(each) for each in answers)
            label = f"{probe.key.name} {probe.version} {probe.name}"
            found += [f"{label} {line}" for line in differences(expected, here)]
    assert not found, "\n".join(found)
