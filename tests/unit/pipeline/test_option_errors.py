"""An option that is wrong is shown with its value, unless that is a secret."""

from __future__ import annotations

import pytest

from nilometer.pipeline.errors import OptionError
from nilometer.pipeline.run.runner import Job
from nilometer.pipeline.sink.spark_sink import parse_sink_options
from nilometer.pipeline.source.source_options import parse_options

SECRET = "open-sesame-7731"
CLIENT = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": f'ScramLoginModule required username="demo" password="{SECRET}";',
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "/etc/authority.pem",
}


@pytest.mark.parametrize(
    "option", ["sasl.jaas.config", "kafka.sasl.jaas.confg", "kafka.ssl.key.passwrd", "ssl.keystore.key"]
)
def test_a_secret_is_not_shown(option: str) -> None:
    base = {"kafka.bootstrap.servers": "h:1", option: SECRET}
    for parse in (
        lambda: parse_options({**base, "subscribe": "t"}, streaming=True),
        lambda: parse_sink_options({**base, "topic": "t"}),
    ):
        with pytest.raises(OptionError, match=option.replace(".", r"\.")) as raised:
            parse()
        assert SECRET not in str(raised.value)
        assert "(hidden)" in str(raised.value)


def test_other_values_are_shown() -> None:
    with pytest.raises(OptionError, match="subscrib = 't'"):
        parse_options({"kafka.bootstrap.servers": "h:1", "subscrib": "t"}, streaming=True)


def test_a_job_connects_its_sources_and_its_sink_alike() -> None:
    job = Job("t", "out", "h:1", client=CLIENT, to_topic="alerts")
    assert SECRET not in repr(job)
    consumer = dict(parse_options(job.source_options("t"), streaming=True).consumer)
    assert CLIENT.items() <= consumer.items()

    def start(*, available_now: bool, seconds: int, to_topic: dict[str, str]) -> None:
        """Only the names of its parameters matter."""

    sink = parse_sink_options(job.for_pipeline(start)["to_topic"])
    assert CLIENT.items() <= dict(sink.producer).items()
    assert sink.bootstrap_servers == "h:1"
