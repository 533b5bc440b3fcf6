"""Random messages of every API and version: our writer against kio's, and the survey over both."""

from __future__ import annotations

import io
import random

import pytest
from kio.serial import entity_reader, entity_writer

from nilometer.wire.messages import ApiKey, api, supported_versions
from nilometer.wire.survey import survey
from support.wire.random_messages import random_message

EVERY_API = list(ApiKey)
ROUNDS = 12


@pytest.mark.parametrize("key", EVERY_API)
def test_our_writer_makes_the_bytes_that_kio_makes(key: int) -> None:
    low, high = supported_versions(key)
    for version in range(low, high + 1):
        codec = api(key, version)
        for seed in range(ROUNDS):
            chance = random.Random(f"{key}.{version}.{seed}")
            request = random_message(codec.request_type, chance)
            assert codec.write_request(request) == by_kio(request), (key, version, seed)
            response = random_message(codec.response_type, chance)
            assert codec.write_response(response) == by_kio(response), (key, version, seed)


@pytest.mark.parametrize("key", EVERY_API)
def test_valid_messages_pass_the_survey_and_come_back_equal(key: int) -> None:
    low, high = supported_versions(key)
    for version in range(low, high + 1):
        codec = api(key, version)
        for seed in range(ROUNDS):
            chance = random.Random(f"{key}.{version}.{seed}")
            for kind in (codec.request_type, codec.response_type):
                encoded = b"abc" + by_kio(message := random_message(kind, chance))
                assert survey(kind, encoded, 3) is None
                assert entity_reader(kind)(encoded, 3) == (message, len(encoded) - 3)


def by_kio(message: object) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()
