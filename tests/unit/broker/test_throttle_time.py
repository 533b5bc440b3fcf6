"""The throttle time is written into each encoded response that has such a field; nothing else changes."""

from __future__ import annotations

import dataclasses
import random
from datetime import timedelta

import pytest

from nilometer.broker.api.throttling import throttle_ms_of, with_throttle_ms
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import api, decode_response, encode_response
from nilometer.wire.own_apis import OWN_VERSIONS
from support.brokers.served_apis import APIS
from support.wire.random_messages import random_message

_BY_THEIR_ENCODER = (ApiKey.PRODUCE,)
SERVED = [
    (int(spec.key), version)
    for spec in APIS.values()
    if isinstance(spec.key, ApiKey) and spec.key not in _BY_THEIR_ENCODER
    for version in range(spec.versions[0], spec.versions[1] + 1)
]


@pytest.mark.parametrize(("key", "version"), SERVED, ids=str)
def test_the_field_is_written_and_read(key: int, version: int) -> None:
    codec = api(key, version)
    response = random_message(codec.response_type, random.Random(key * 100 + version))
    has_field = any(field.name == "throttle_time" for field in dataclasses.fields(codec.response_type))
    expected = (
        dataclasses.replace(response, throttle_time=timedelta(milliseconds=1234)) if has_field else response
    )
    frame = encode_response(7, key, version, response)
    changed = with_throttle_ms(key, version, frame, 1234)
    assert decode_response(key, version, changed[4:]) == (7, expected)
    assert int.from_bytes(changed[:4], "big") == len(changed) - 4
    assert throttle_ms_of(key, version, changed) == (1234 if has_field else 0)


@pytest.mark.parametrize("key", sorted(OWN_VERSIONS))
def test_own_responses_have_no_such_field(key: int) -> None:
    frame = bytes(64)
    assert with_throttle_ms(key, 0, frame, 1234) == frame
    assert throttle_ms_of(key, 0, frame) == 0
