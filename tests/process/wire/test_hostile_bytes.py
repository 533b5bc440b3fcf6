"""Whatever a peer sends ends in a value or a MalformedMessage, within bounded memory.

In a process of its own with little address space: a decoder that believes a count of four billion does not
raise but takes the process with it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.wire import messages
from nilometer.wire.errors import MalformedRequest, MalformedResponse
from nilometer.wire.messages import ApiKey, api, decode_request, decode_response

CHILD = Path(__file__).with_name("hostile_child.py")
COUNT = 12_000


def test_hostile_requests_and_responses_are_refused_without_harm() -> None:
    done = subprocess.run(
        [sys.executable, str(CHILD), "7", str(COUNT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"replay: {done.stderr[-1500:]}"
    refused, decoded = map(int, done.stdout.split())
    assert refused + decoded == 2 * COUNT
    assert refused > COUNT
    assert decoded > COUNT // 10


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9])
def test_frames_too_short_for_a_header(length: int) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(bytes(length))
    if length < 4:
        with pytest.raises(MalformedResponse):
            decode_response(ApiKey.METADATA, 12, bytes(length))


@pytest.mark.parametrize("client_id", [b"\xff\xfe", b"\x80\x00", b"\x7f\xffab", b"\x00\x02\xff\xfe"])
def test_client_ids_that_are_none(client_id: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(b"\x00\x12\x00\x03\x00\x00\x00\x01" + client_id)


def test_header_tags_beyond_the_frame() -> None:
    start = b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff"
    for tags in (b"", b"\x01", b"\x01\x00\x7f", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x01"):
        with pytest.raises(MalformedRequest):
            decode_request(start + tags)


def test_header_tags_are_skipped() -> None:
    start = b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff"
    body = api(ApiKey.API_VERSIONS, 3).write_request(api(ApiKey.API_VERSIONS, 3).request())
    header, request = decode_request(start + b"\x02\x05\x03abc\x07\x00" + body)
    assert header.client_id is None
    assert request == api(ApiKey.API_VERSIONS, 3).request()


def test_a_panic_of_the_reader_is_a_malformed_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such exceptions are no ``Exception``: unhandled, one would end the event loop."""
    panic = type("PanicException", (BaseException,), {})

    def panicking(body: bytes, position: int) -> None:
        raise panic("called `Option::unwrap()` on a `None` value")

    codec = messages.KafkaApi(ApiKey.METADATA, 12)
    monkeypatch.setattr(codec, "_read_request", panicking)
    with pytest.raises(MalformedRequest, match="unwrap"):
        codec.read_request(codec.write_request(codec.request()))
    monkeypatch.setattr(codec, "_read_request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        codec.read_request(codec.write_request(codec.request()))


def interrupted(body: bytes, position: int) -> None:
    raise KeyboardInterrupt
