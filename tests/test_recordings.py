"""Recorded answers of Apache Kafka: what differs from them is found, on either side."""

from __future__ import annotations

import pytest

from support.brokers.comparison import same
from support.brokers.recordings import Kafka, as_json
from support.brokers.two_brokers import Plain, Side

NILOMETER = Side("Nilometer", "127.0.0.1:1")
APACHE_KAFKA = Side("Apache Kafka", "127.0.0.1:1")


def answer(side: Side) -> Plain:
    return {"error": "none", "records": [(0, None, side.name.encode())]}


def test_an_answer_that_is_not_the_recorded_one_is_found() -> None:
    same((Kafka(None, [as_json(answer(NILOMETER))]), NILOMETER), answer)
    with pytest.raises(AssertionError, match="/records/0/2: \"b'Apache Kafka'\" is what Kafka says"):
        same((Kafka(None, [as_json(answer(APACHE_KAFKA))]), NILOMETER), answer)


def test_what_apache_kafka_answers_otherwise_than_recorded_is_found() -> None:
    kafka = Kafka(APACHE_KAFKA, [as_json(answer(APACHE_KAFKA))])
    kafka.answer(answer)
    kafka.check()
    kafka.answer(answer)
    with pytest.raises(AssertionError, match="make record"):
        kafka.check()


def test_an_answer_of_an_unknown_type_is_not_written() -> None:
    with pytest.raises(TypeError, match="no answer has"):
        as_json({"at": object()})
