"""Null where the schema allows none: refused by the decoder, so that no handler has to expect it."""

from __future__ import annotations

import pytest

from nilometer.wire.errors import MalformedMessage
from nilometer.wire.messages import ApiKey, api
from nilometer.wire.survey import survey


@pytest.mark.parametrize(("version", "null"), [(4, b"\xff\xff\xff\xff"), (12, b"\x00")])
def test_an_array_that_may_not_be_null(version: int, null: bytes) -> None:
    codec = api(ApiKey.FETCH, version)
    whole = codec.write_request(codec.request(topics=(codec.make_request("FetchTopic"),)))
    empty = codec.write_request(codec.request())
    array = b"\x00\x00\x00\x00" if version == 4 else b"\x01"
    at = next(i for i, (a, b) in enumerate(zip(whole, empty, strict=False)) if a != b) - len(array) + 1
    assert empty[at : at + len(array)] == array
    nothing = empty[:at] + null + empty[at + len(array) :]
    assert survey(codec.request_type, empty, 0) is None
    with pytest.raises(MalformedMessage, match="topics is null"):
        survey(codec.request_type, nothing, 0)


def test_an_array_that_may_be_null() -> None:
    codec = api(ApiKey.METADATA, 9)
    assert codec.read_request(codec.write_request(codec.request(topics=None))).topics is None
