"""Every API and version goes out and comes back; hostile bytes end in an exception."""

from __future__ import annotations

from types import ModuleType

import pytest

from nilometer.wire import building
from nilometer.wire.errors import ErrorCode, MalformedRequest, UnsupportedVersion
from nilometer.wire.later_versions import API_NAMES, nested_types, schema_module, versions_of
from nilometer.wire.messages import (
    ApiKey,
    api,
    build,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    encode_unsupported_api_versions,
    supported_versions,
)
from nilometer.wire.primitives import STRING_BYTES_MAX

EVERY_VERSION = [
    (key, version)
    for key in ApiKey
    for low, high in [supported_versions(key)]
    for version in range(low, high + 1)
]


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_empty_messages_round_trip(key: int, version: int) -> None:
    codec = api(key, version)
    header, request = decode_request(encode_request(7, "me", codec.request())[4:])
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (
        key,
        version,
        7,
        "me",
    )
    assert request == codec.request()
    frame = encode_response(-9, key, version, codec.response())
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_response(key, version, frame[4:]) == (-9, codec.response())


def test_fields_that_a_version_lacks_are_dropped_and_misspelt_ones_refused() -> None:
    old = api(ApiKey.FETCH, 4).response(throttle_time_ms=5, session_id=3)
    assert not hasattr(old, "session_id")
    assert api(ApiKey.FETCH, 7).response(throttle_time_ms=5, session_id=3).session_id == 3
    with pytest.raises(TypeError, match="sesion_id"):
        api(ApiKey.FETCH, 4).response(sesion_id=3)


def test_duration_in_milliseconds() -> None:
    response = api(ApiKey.HEARTBEAT, 4).response(throttle_time_ms=1234)
    assert response.throttle_time.total_seconds() == 1.234


def test_unknown_api_or_version_leaves_the_header_readable() -> None:
    for key, version in [(1, 99), (999, 0), (3, -1)]:
        frame = (
            key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + b"\x00\x00\x00\x05\x00\x02me"
        )
        header = decode_request_header(frame)
        assert (header.api_key, header.api_version) == (key, version)
        assert (header.correlation_id, header.client_id) == (5, "me")
        with pytest.raises(UnsupportedVersion):
            decode_request(frame)


def test_unsupported_api_versions_is_answered_in_version_0() -> None:
    frame = encode_unsupported_api_versions(3, {1: (4, 17), 0: (0, 12)})
    correlation_id, response = decode_response(ApiKey.API_VERSIONS, 0, frame[4:])
    assert correlation_id == 3
    assert response.error_code is ErrorCode.unsupported_version
    assert [(a.api_key, a.min_version, a.max_version) for a in response.api_keys] == [(0, 0, 12), (1, 4, 17)]


def test_a_count_of_billions_does_not_allocate() -> None:
    start = encode_request(1, "x", api(ApiKey.METADATA, 12).request())[4:-4]
    with pytest.raises(MalformedRequest, match="elements"):
        decode_request(start + b"\xff\xff\xff\xff\x0f")
    start = encode_request(1, "x", api(ApiKey.METADATA, 1).request())[4:-4]
    for count in (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"):
        with pytest.raises(MalformedRequest, match=r"elements|array length"):
            decode_request(start + count)


def test_unknown_tagged_fields_are_ignored() -> None:
    codec = api(ApiKey.METADATA, 12)
    topic = codec.make_request("MetadataRequestTopic", name="t")
    frame = encode_request(1, "x", codec.request(topics=(topic,), allow_auto_topic_creation=True))[4:]
    with_tag = frame[:-1] + b"\x02\x05\x02ab\x06\x00"
    header, request = decode_request(with_tag)
    assert request == decode_request(frame)[1]
    assert build(codec.request_type, topics=None).topics is None
    assert header.client_id == "x"


@pytest.mark.parametrize("length", [STRING_BYTES_MAX, STRING_BYTES_MAX + 1, 2 * STRING_BYTES_MAX])
@pytest.mark.parametrize("letter", ["m", "é", "€"])
@pytest.mark.parametrize("key", [ApiKey.CREATE_ACLS, ApiKey.STREAMS_GROUP_HEARTBEAT])
def test_a_text_that_quotes_long_names_is_cut_so_that_clients_can_read_it(
    letter: str, length: int, key: ApiKey
) -> None:
    """In both encodings of strings."""
    codec, text = api(key, 1), letter * length
    if key is ApiKey.CREATE_ACLS:
        results = (codec.make("AclCreationResult", error_code=ErrorCode.invalid_request, error_message=text),)
        frame = encode_response(1, key, 1, codec.response(results=results))
        read = decode_response(key, 1, frame[4:])[1].results[0].error_message
    else:
        status = (codec.make("Status", status_code=4, status_detail=text),)
        frame = encode_response(1, key, 1, codec.response(status=status))
        read = decode_response(key, 1, frame[4:])[1].status[0].status_detail
    if len(text.encode()) <= STRING_BYTES_MAX:
        assert read == text
    else:
        assert read.endswith("…")
        assert text.startswith(read[:-1])
        assert STRING_BYTES_MAX - 4 < len(read.encode()) <= STRING_BYTES_MAX


def test_few_versions_are_loaded_to_tell_a_field_of_another_version_from_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = list[int]()

    def count(name: str, version: int, part: str) -> ModuleType:
        loaded.append(version)
        return schema_module(name, version, part)

    monkeypatch.setattr(building, "schema_module", count)
    for name in API_NAMES.values():
        newest_first = sorted(versions_of(name), reverse=True)
        types_of = {
            (version, part): nested_types(vars(schema_module(name, version, part)))
            for version in newest_first
            for part in ("request", "response")
        }
        newest = newest_first[0]
        for (version, part), types in types_of.items():
            for type_name, message_type in types.items():
                other = types_of[newest, part].get(type_name)
                fields = {field.name for field in building.shape_of(message_type).fields}
                if version == newest or other is None:
                    continue
                for field in fields - {each.name for each in building.shape_of(other).fields}:
                    loaded.clear()
                    assert building._has_another_version.__wrapped__(other, field)
                    assert len(loaded) <= 3, (name, part, type_name, field, loaded)
